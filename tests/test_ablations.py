"""Words after a config's name: each one change, in any order."""

import pytest

from spade_jax import config as configs
from spade_jax.configs import ablations


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
