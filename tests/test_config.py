"""Configs: loading, checking, overriding on the command line, and keeping beside a run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags
from ml_collections import config_dict

from spade_jax import config as configs
from spade_jax import config_rules
from spade_jax.configs import ablations
from spade_jax.program import parse_flags
from spade_jax.types import UsageError


@pytest.fixture
def default() -> config_dict.ConfigDict:
    return configs.load("default")


def with_field(config: config_dict.ConfigDict, field: str, value: object) -> config_dict.ConfigDict:
    """The config with one field set, whatever its type."""
    tree = config.to_dict()
    *groups, leaf = field.split(".")
    inner = tree
    for group in groups:
        inner = inner[group]
    inner[leaf] = value
    return config_dict.ConfigDict(tree).lock()


def parse(*arguments: str) -> config_dict.ConfigDict:
    flag_values = flags.FlagValues()
    parse_flags(["program", *arguments], "default", flag_values)
    return flag_values.config


# -- loading ----------------------------------------------------------------------------------


def test_bundled_name_and_path_are_the_same_config(default: config_dict.ConfigDict) -> None:
    path = Path(__file__).parents[1] / "configs" / "default.py"
    assert configs.load(str(path)) == default
    assert default.is_locked


@pytest.mark.parametrize("name", sorted({*configs.bundled()} - {"warmstart"}))
def test_every_bundled_training_config_is_valid(name: str) -> None:
    configs.check(configs.load(name))


def test_a_program_may_have_fields_of_its_own(default: config_dict.ConfigDict) -> None:
    warmstart = configs.load("warmstart")
    configs.check_fields(warmstart, warmstart)
    with pytest.raises(configs.ConfigError, match="lacks the field data.code_characters"):
        configs.check_fields(config_dict.ConfigDict({"seed": 1}), warmstart)
    with pytest.raises(configs.ConfigError, match="unknown field data"):
        configs.check(warmstart)


VARIANTS = """
from spade_jax.configs import default

def get_config(model):
    config = default.get_config()
    config.play.plays = {"small": 2, "large": 16}[model]
    return config
"""


def test_part_after_the_colon_goes_to_get_config(tmp_path: Path) -> None:
    path = tmp_path / "variants.py"
    path.write_text(VARIANTS)
    assert configs.load(f"{path}:large").play.plays == 16
    with pytest.raises(configs.ConfigError, match=r"raised KeyError \('huge'\); mend it"):
        configs.load(f"{path}:huge")
    with pytest.raises(configs.ConfigError, match="needs a variant after a colon"):
        configs.load(str(path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("defualt", r"no bundled config is called 'defualt' \(near: default\)"),
        ("absent/config.py", "config file absent/config.py does not exist"),
        ("absent/config.json", "cannot be read"),
        ("default:big", "config default takes no variant"),
        ("runs/tiny/config.json:no_memory", "a run's own and takes no words after a colon"),
    ],
)
def test_configs_that_are_not_there(name: str, message: str) -> None:
    with pytest.raises(configs.ConfigError, match=message):
        configs.load(name)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def get_config(:", "raised SyntaxError"),
        ("import absent_module_name", "raised ModuleNotFoundError"),
        ("config = 1", r"defines no get_config\(\)"),
    ],
)
def test_broken_config_files(tmp_path: Path, source: str, message: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    with pytest.raises(configs.ConfigError, match=message):
        configs.load(str(path))


# -- words after the colon --------------------------------------------------------------------


def differences(one: str, other: str) -> dict[str, object]:
    """The fields in which a config is another than `one`, with its values."""
    before = configs.flatten(configs.load(one))
    return {f: v for f, v in configs.flatten(configs.load(other)).items() if v != before[f]}


TWO_SKILLS = {"skills": ("Mathematical Reasoning", "Logical Deduction"), "skills_per_epoch": 2}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("no_corpus", {"corpus.enabled": False}),
        ("no_memory", {"memory.enabled": False}),
        ("no_designer_training", {"learn.train_designer": False}),
        ("two_skills", TWO_SKILLS),
        ("regret", {"reward.designer": "regret"}),
        ("solve_rate", {"reward.designer": "solve_rate"}),
        ("learning_potential", {"reward.designer": "learning_potential"}),
        ("micro_lp", {"reward.designer": "micro_lp"}),
        ("fixed_pool", {"environments.source": "fixed"}),
    ],
)
def test_each_word_is_one_change(word: str, expected: dict[str, object]) -> None:
    for base in ("tiny", "games:qwen3_4b"):
        joint = "," if ":" in base else ":"
        assert differences(base, f"{base}{joint}{word}") == expected
    configs.check(configs.load(f"tiny:{word}"))


def test_every_word_is_tested_above() -> None:
    [words] = [m.args[1] for m in test_each_word_is_one_change.pytestmark]
    assert {word for word, _ in words} | {"procedural"} == set(ablations.WORDS)


def test_the_procedural_baseline() -> None:
    """The recipe of RLVE, arXiv 2511.07317, over whatever config."""
    c = configs.load("tool_use:qwen3_8b,procedural")
    assert (c.environments.source, c.environments.difficulty) == ("procedural", "window")
    assert (c.design.num_envs, c.design.num_envs * c.play.plays) == (16, 256)
    assert (c.environments.attempts, c.environments.success, c.environments.window) == (128, 0.9, 4)
    assert (c.environments.gamma_fast, c.environments.gamma_slow) == (0.35, 0.15)
    assert c.environments.random_share == 0.5
    assert (c.play.temperature, c.play.top_p, c.play.top_k, c.learn.kl) == (1.0, 1.0, 0, 0.0)


def test_words_add_up_in_any_order() -> None:
    expected = {"corpus.enabled": False, "memory.enabled": False, **TWO_SKILLS}
    for words in ("no_corpus,two_skills,no_memory", "two_skills, no_memory, no_corpus"):
        assert differences("tiny", f"tiny:{words}") == expected
        assert differences("tiny", f"configs/tiny.py:{words}") == expected
    assert configs.load("tiny:") == configs.load("tiny")
    both = configs.load("games:no_memory,qwen3_30b_a3b")
    assert both == configs.load("games:qwen3_30b_a3b,no_memory")
    assert configs.load("games:no_memory") == configs.load("games:qwen3_4b,no_memory")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiny:no_corups", r"config tiny: unknown word 'no_corups' .* choose from no_corpus, no_m"),
        ("tiny:qwen3_4b", "unknown word 'qwen3_4b' after the colon; choose from no_corpus"),
        ("games:qwen3_5b", "unknown word 'qwen3_5b' after the colon; choose from qwen3_4b, "),
        ("tiny:no_corpus,", "unknown word '' after"),
        ("tiny:no_corpus,no_corpus", "the word no_corpus comes twice"),
        ("tiny:regret,solve_rate", "words regret and solve_rate .* both set reward.designer"),
        # regret changes nothing there, and is undone all the same
        ("tool_use:regret,solve_rate", "words regret and solve_rate .* both set reward.designer"),
        ("games:qwen3_4b,qwen3_8b", "qwen3_4b and qwen3_8b exclude each other"),
    ],
)
def test_words_that_make_no_config(name: str, message: str) -> None:
    with pytest.raises(configs.ConfigError, match=message) as raised:
        configs.load(name)
    assert "\n" not in str(raised.value)


# -- checking ---------------------------------------------------------------------------------


def test_every_number_has_a_range(default: config_dict.ConfigDict) -> None:
    numbers = {f for f, v in configs.flatten(default).items() if type(v) in (int, float, tuple)}
    assert numbers - {"skills", "environments.tasks"} == set(config_rules.RANGES)


def test_every_text_is_a_path_or_a_choice(default: config_dict.ConfigDict) -> None:
    texts = {f for f, value in configs.flatten(default).items() if isinstance(value, str)}
    free = {"model.path", "model.template_options", "model.lora.targets"}
    free |= {"corpus.data_dir", "corpus.split"}
    free |= {"corpus.path", "environments.path", "reward.penalty_by_reason"}
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


# -- the command line -------------------------------------------------------------------------


def test_overrides_keep_their_types(tmp_path: Path) -> None:
    config = parse(
        "--config.play.plays=4",
        "--config.optimizer.lr",
        "1e-3",
        "--noconfig.log.tensorboard",
        "--config.skills=('Optimization', 'Logical Deduction')",
        "--config.skills_per_epoch=2",
        "--config.corpus.path=a b.jsonl",
    )
    assert (config.play.plays, config.optimizer.lr, config.log.tensorboard) == (4, 1e-3, False)
    assert config.skills == ("Optimization", "Logical Deduction")
    assert config.corpus.path == "a b.jsonl"
    assert config.is_locked


def test_words_and_overrides_on_one_line(tmp_path: Path) -> None:
    config = parse("--config=tiny:no_memory", "--config.iterations=3")
    assert (config.memory.enabled, config.iterations) == (False, 3)
    configs.save(config, tmp_path)
    again = parse(f"--config={tmp_path}/config.json", "--config.iterations=4")
    assert (again.memory.enabled, again.iterations) == (False, 4)
    assert configs.compare(again, tmp_path)


def test_config_is_found_anywhere_on_the_line(tmp_path: Path) -> None:
    path = tmp_path / "variants.py"
    path.write_text(VARIANTS)
    assert parse("--config.seed=1", f"--config={path}:small").play.plays == 2
    assert parse("--config", f"{path}:large", "--config.seed=1").play.plays == 16


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.play.playz=1", r"no field 'play.playz' \(near: play.plays"),
        ("--config.plays=1", r"no field 'plays' \(near: play.plays\)"),
        ("--config.play=1", "config.play is a group and cannot be set as a whole"),
        ("--config.play.plays=many", "--config.play.plays=many: invalid literal"),
        ("--config.play.plays=0", "play.plays is 0 but must be at least 1"),
        ("--config=nowhere", "no bundled config is called 'nowhere'"),
        ("--config", "--config is given no value"),
        ("--workdri=here", "Unknown command line flag 'workdri'"),
        ("here", "unexpected argument 'here'"),
    ],
)
def test_wrong_usage_is_one_sentence(argument: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        parse(argument)
    assert "\n" not in str(raised.value)


PROGRAM = '''
"""Prints what its config says."""
from absl import flags
from spade_jax.program import run_program
from spade_jax.types import UsageError

def main():
    plays = flags.FLAGS.config.play.plays
    if plays == 5:
        raise UsageError("five is right out; choose three")
    if plays == 6:
        raise RuntimeError("broken")
    if plays == 7:
        open("/absent/metrics.jsonl")
    if plays == 8:
        raise UsageError("a name with \\x1b[31m\\nin it")
    print(plays)

if __name__ == "__main__":
    run_program(main, config="default")
'''


@pytest.mark.parametrize(
    ("argument", "code", "out", "err"),
    [
        ("--config.play.plays=4", 0, r"4\n", ""),
        ("--help", 0, r"(?s)Prints what its config says.*--config:.*'default'.*", ""),
        ("--config.play.plays=5", 2, "", r"error: five is right out; choose three\n"),
        ("--config.play.plays=0", 2, "", r"error: play.plays is 0 but must be[^\n]+\n"),
        ("--nothing", 2, "", r"error: Unknown command line flag 'nothing'[^\n]+\n"),
        ("--config.play.plays=6", 1, "", r"(?s)Traceback.*RuntimeError: broken\n"),
        (
            "--config.play.plays=7",
            1,
            "",
            r"error: [^\n]*'/absent/metrics.jsonl'; make room [^\n]+\n",
        ),
        ("--config.play.plays=8", 2, "", r"error: a name with \\x1b\[31m in it\n"),
    ],
)
def test_exit_codes(tmp_path: Path, argument: str, code: int, out: str, err: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), argument], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert re.fullmatch(out, done.stdout)
    assert re.fullmatch(err, done.stderr)


# -- keeping ----------------------------------------------------------------------------------


def test_saved_config_is_found_again(default: config_dict.ConfigDict, tmp_path: Path) -> None:
    workdir = tmp_path / "deep" / "run"
    assert not configs.compare(default, workdir)
    configs.save(default, workdir)
    assert configs.compare(default, workdir)
    assert configs.load(str(workdir / "config.json")) == default
    assert [path.name for path in workdir.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("iterations", 7),
        ("health.stop_after", 9),
        ("checkpoint.every", 3),
        ("evaluation.every", 0),
        ("log.episodes", -1),
    ],
)
def test_what_may_change_on_resume(
    default: config_dict.ConfigDict, tmp_path: Path, field: str, value: int
) -> None:
    configs.save(default, tmp_path)
    changed = with_field(default, field, value)
    assert configs.compare(changed, tmp_path)
    assert configs.fingerprint(changed) == configs.fingerprint(default)


def test_workdir_of_another_config_names_the_fields(
    default: config_dict.ConfigDict, tmp_path: Path
) -> None:
    configs.save(default, tmp_path)
    other = with_field(with_field(default, "play.plays", 4), "skills", ("Optimization",))
    with pytest.raises(configs.ConfigError) as raised:
        configs.compare(other, tmp_path)
    assert "play.plays is 8 there and 4 here" in str(raised.value)
    assert "skills is" in str(raised.value) and "seed" not in str(raised.value)
    assert configs.fingerprint(other) != configs.fingerprint(default)


def test_workdir_of_an_older_program_names_what_it_lacks(
    default: config_dict.ConfigDict, tmp_path: Path
) -> None:
    tree = default.to_dict()
    del tree["play"]["plays"]
    (tmp_path / "config.json").write_text(json.dumps(tree))
    with pytest.raises(configs.ConfigError, match="play.plays is absent there and 8 here"):
        configs.compare(default, tmp_path)


def test_broken_saved_config(default: config_dict.ConfigDict, tmp_path: Path) -> None:
    for broken in ("{", "[" * 100_000):
        (tmp_path / "config.json").write_text(broken)
        with pytest.raises(configs.ConfigError, match=r"config.json is no valid JSON"):
            configs.compare(default, tmp_path)


def test_unwritable_workdir(default: config_dict.ConfigDict, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(configs.ConfigError, match="cannot be written .*; choose another --workdir"):
        configs.save(default, tmp_path / "file" / "run")
