"""Words of a config's argument, each one change to the method: `tiny:no_corpus,two_skills`.

Any number of words, after commas, in any order; words that set the same field exclude each other.
Where a config has variants (`games:qwen3_30b_a3b,no_memory`), the first is taken if none is named.
"""

from collections.abc import Callable, Mapping

from ml_collections import config_dict

from spade_jax.config import flatten
from spade_jax.types import UsageError

Change = Callable[[config_dict.ConfigDict], None]


def no_corpus(c: config_dict.ConfigDict) -> None:
    """Design without documents."""
    c.corpus.enabled = False


def no_memory(c: config_dict.ConfigDict) -> None:
    """Design without examples of earlier environments."""
    c.memory.enabled = False


def no_designer_training(c: config_dict.ConfigDict) -> None:
    """The designer's tokens leave the loss; it still changes with the weights both roles share."""
    c.learn.train_designer = False


def two_skills(c: config_dict.ConfigDict) -> None:
    """Only the first two of the config's skills, both always active."""
    c.skills = c.skills[:2]
    c.skills_per_epoch = 2


def regret(c: config_dict.ConfigDict) -> None:
    """The designer earns what the hint is worth, and nothing for the plateau."""
    c.reward.designer = "regret"


def solve_rate(c: config_dict.ConfigDict) -> None:
    """The designer earns the plateau alone: no regret."""
    c.reward.designer = "solve_rate"


def learning_potential(c: config_dict.ConfigDict) -> None:
    """The designer earns the distance of its skill's returns from their slow average."""
    c.reward.designer = "learning_potential"


def micro_lp(c: config_dict.ConfigDict) -> None:
    """The designer earns what the returns gain from the first to the second half of a window."""
    c.reward.designer = "micro_lp"


def fixed_pool(c: config_dict.ConfigDict) -> None:
    """The bundled pool in place of the designer, or that of --config.environments.path."""
    c.environments.source = "fixed"


def procedural(c: config_dict.ConfigDict) -> None:
    """Tasks of rising difficulty in place of the designer, as RLVE has it (arXiv 2511.07317).

    Other tasks than the bundled ones by --config.environments.provider and .tasks, the other
    schedule by --config.environments.difficulty=potential.
    """
    c.environments.source = "procedural"
    c.design.num_envs = 16
    c.design.regenerate_every = 1
    c.play.plays = 16  # 256 sequences
    c.play.hint_plays = 0
    c.play.temperature = 1.0
    c.play.top_p = 1.0
    c.play.top_k = 0
    c.learn.kl = 0.0


WORDS: dict[str, Change] = {
    change.__name__: change
    for change in (
        no_corpus,
        no_memory,
        no_designer_training,
        two_skills,
        regret,
        solve_rate,
        learning_potential,
        micro_lp,
        fixed_pool,
        procedural,
    )
}


def vary(
    c: config_dict.ConfigDict, argument: str, variants: Mapping[str, Change] | None = None
) -> config_dict.ConfigDict:
    """`c` changed as the words of `argument` say: first one of `variants`, then the ablations.

    Raises UsageError for a word that is unknown, given twice, or contradicts an earlier one.
    """
    variants = dict(variants or {})
    words = [word.strip() for word in argument.split(",")] if argument else []
    for word in words:
        if word not in variants and word not in WORDS:
            known = ", ".join([*variants, *WORDS])
            raise UsageError(f"unknown word {word!r} after the colon; choose from {known}")
        if words.count(word) > 1:
            raise UsageError(f"the word {word} comes twice after the colon; remove one")
    named = [word for word in words if word in variants]
    if len(named) > 1:
        raise UsageError(
            f"{' and '.join(named)} exclude each other after the colon; keep one of them"
        )
    for variant in named or list(variants)[:1]:
        variants[variant](c)
    _apply(c, [word for word in words if word not in variants])
    return c


def _apply(c: config_dict.ConfigDict, words: list[str]) -> None:
    """Change `c` word by word, none undoing what an earlier one has done."""
    for n, word in enumerate(words):
        WORDS[word](c)
        values = flatten(c)
        for earlier in words[:n]:
            again = c.copy_and_resolve_references()
            WORDS[earlier](again)
            undone = [field for field, value in flatten(again).items() if value != values[field]]
            if undone:
                raise UsageError(
                    f"the words {earlier} and {word} after the colon both set {undone[0]}; keep one"
                )
