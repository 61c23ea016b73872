"""What fields may hold: every field has its bounds, and what does not go together is named."""

import pytest
from ml_collections import config_dict

from spade_jax import config as configs
from spade_jax import config_rules
from tests.small_run import with_field


def test_every_number_has_a_range(default: config_dict.ConfigDict) -> None:
    numbers = {f for f, v in configs.flatten(default).items() if type(v) in (int, float, tuple)}
    names = {"skills", "environments.tasks", "evaluation.suites"}
    assert numbers - names == set(config_rules.RANGES)


def test_every_text_is_a_path_or_a_choice(default: config_dict.ConfigDict) -> None:
    texts = {f for f, value in configs.flatten(default).items() if isinstance(value, str)}
    free = {"model.path", "model.template_options", "model.lora.targets"}
    free |= {"corpus.data_dir", "corpus.split", "log.project"}
    free |= {"evaluation.data", "corpus.path", "environments.path", "reward.penalty_by_reason"}
    readers = ("hint", "judge")
    free |= {f"{g}.endpoint_{field}" for g in readers for field in ("url", "model", "key")}
    assert texts - free == set(config_rules.CHOICES)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("design.num_envs", 0, "design.num_envs is 0 but must be at least 1; set --config.design"),
        ("play.plays", -1, "play.plays is -1 but must be at least 1"),
        ("optimizer.lr", 0.0, "optimizer.lr is 0.0 but must be above 0"),
        ("optimizer.lr", float("nan"), "optimizer.lr is nan but"),
        ("optimizer.lr", float("inf"), "optimizer.lr is inf but"),
        ("reward.penalty", 0.5, "must be at least -10 and at most 0"),
        ("reward.designer", "bland", r"'bland' \(near: blend\); choose one of blend, regret"),
        ("schedule", "lap", r"'lap' \(near: overlap\); choose one of deterministic"),
        ("design.prompts", "chess", "design.prompts is 'chess'; choose one of games"),
        ("play.plays", 8.5, "of type float; give it a value of type int"),
        ("learn.train_designer", 1, "of type int; give it a value of type bool"),
        ("play.playz", 8, r"unknown field play.playz \(near: play.plays"),
        ("skills", (), "skills is empty"),
        ("skills", ("Optimisation",) * 3, r"'Optimisation' \(near: Optimization\)"),
        ("skills", ("Optimization",) * 3, "lists 'Optimization' twice"),
        ("skills_per_epoch", 7, "skills_per_epoch is 7 but only 6 skills are listed"),
        (
            "design.per_prompt",
            5,
            "design.num_envs is 24 but must be a multiple of design.per_prompt",
        ),
        (
            "hint.source",
            "none",
            "hint.source is 'none'; choose one of method, self, reply, endpoint",
        ),
        ("hint.source", "endpoint", "hint.endpoint_url is '' and hint.endpoint_model ''; set both"),
        ("judge.source", "endpoint", "judge.endpoint_url is '' and judge.endpoint_model ''; set"),
        ("play.context", 8192, r"must exceed play.reply_tokens \(8192\)"),
        ("learn.row_tokens", (8192, 32767), r"hold an episode of play.context \(32768\)"),
        ("learn.row_tokens", (8192, 0), r"learn.row_tokens is \(8192, 0\) but must be at least 1"),
        ("learn.row_tokens", (32768,), "which must name as many lengths as counts"),
        ("learn.rows", (), r"learn.rows is \(\) but must be at least 1"),
        ("learn.rows", ("4", "1"), r"learn.rows is \('4', '1'\), but '4' is no int; correct --c"),
        ("learn.rows", (8.5, 2), r"learn.rows is \(8.5, 2\), but 8.5 is no int"),
        ("mesh", (1, True, 1, 1), "but True is no int; correct --config.mesh"),
        ("environments.tasks", (1,), r"environments.tasks is \(1,\), but 1 is no str"),
        ("reward.penalty_by_reason", "[" * 100_000, "no JSON .maximum recursion depth"),
        ("environments.size", 23, "design.num_envs = 24"),
        ("environments.path", "pool", "set environments.source=fixed"),
        ("environments.gamma_slow", 0.35, r"exceed environments.gamma_slow \(0.35\)"),
        ("design.max_tokens", 32768, r"must exceed design.max_tokens \(32768\)"),
        ("learn.minibatches", 193, "only design.num_envs \\* play.plays = 192 episodes"),
        ("learn.designer_delay", 5, "for design.regenerate_every = 4 iterations only"),
        ("reward.plateau_low", 0.7, r"must not exceed reward.plateau_high \(0.6\)"),
        ("reward.gamma_slow", 0.98, r"must exceed reward.gamma_slow \(0.98\)"),
        ("play.hint_plays", 0, "'blend', which needs hinted plays"),
        ("reward.penalty_by_reason", '{"leek": -1}', "names 'leek', for which nothing is rejected"),
        ("reward.w_micro", -0.1, "reward.w_micro is -0.1 but must be at least 0"),
        ("reward.leak_penalty", 0.1, "must be at least -10 and at most 0"),
        ("advantage.designer", "skills", r"\(near: skill\); choose one of skill, prompt"),
        ("sandbox.cpu_seconds", 1.0, r"sandbox.step_seconds \(2.0\)"),
        ("optimizer.beta2", 1.0, "must be below 1"),
        ("learn.ema_decay", 1.0, "learn.ema_decay is 1.0, with which the mean never moves"),
        ("health.regret_ratio", 1.0, "health.regret_ratio is 1.0 but must be at most 0"),
    ],
)
def test_values_out_of_bounds(
    default: config_dict.ConfigDict, field: str, value: object, message: str
) -> None:
    with pytest.raises(configs.ConfigError, match=message) as raised:
        configs.check(with_field(default, field, value))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"advantage.designer": "prompt"},
            "per_prompt is 1, so that each valid design is compared",
        ),
        ({"play.paired_plays": True, "play.hint_plays": 8}, "have partners among play.plays = 8"),
        ({"reward.w_micro": 0.1, "reward.designer": "regret"}, "only the blend has these terms"),
        ({"reward.w_frontier": 0.1, "reward.designer": "micro_lp"}, "only the blend has these"),
        (
            {"reward.designer": "micro_lp", "learn.designer_delay": 0},
            "compare the iterations of a window, which is one with learn.designer_delay = 0",
        ),
        (
            {"reward.w_micro": 0.1, "design.regenerate_every": 1, "learn.designer_delay": 1},
            "is one with learn.designer_delay = 1 and design.regenerate_every = 1; raise these",
        ),
        (
            {
                **{"reward.leak_penalty": -0.5, "play.hint_plays": 0},
                **{"reward.designer": "solve_rate"},
            },
            "reward.leak_penalty is -0.5 but play.hint_plays is 0, so that no hint is ever shown",
        ),
    ],
)
def test_fields_that_do_not_go_together(
    default: config_dict.ConfigDict, fields: dict[str, object], message: str
) -> None:
    for field, value in fields.items():
        default = with_field(default, field, value)
    with pytest.raises(configs.ConfigError, match=message) as raised:
        configs.check(default)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"play.paired_plays": True},
        {"reward.w_micro": 0.1, "reward.w_frontier": 0.1},
        {"reward.designer": "micro_lp", "learn.designer_delay": 1, "design.regenerate_every": 2},
        {"reward.designer": "regret", "reward.w_variance": 1.0, "reward.leak_penalty": -0.5},
    ],
)
def test_fields_that_go_together(
    default: config_dict.ConfigDict, fields: dict[str, object]
) -> None:
    for field, value in fields.items():
        default = with_field(default, field, value)
    configs.check(default)


def test_a_missing_field_is_named(default: config_dict.ConfigDict) -> None:
    tree = default.to_dict()
    del tree["play"]["plays"]
    with pytest.raises(configs.ConfigError, match="lacks the field play.plays"):
        configs.check(config_dict.ConfigDict(tree))


def test_a_tracker_that_is_not_installed_is_named(
    default: config_dict.ConfigDict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    configs.check(default)
    with pytest.raises(configs.ConfigError, match="the package wandb is missing; run pip install"):
        configs.check(with_field(default, "log.wandb", "offline"))
