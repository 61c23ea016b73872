"""The whole method and one part less at a time, with three seeds each."""

from collections.abc import Iterator

from ml_collections import config_dict

from spade_jax.configs.sweeps import Point

WORDS = (
    "no_corpus",
    "no_memory",
    "no_designer_training",
    "two_skills",
    "solve_rate",
    "learning_potential",
    "fixed_pool",
    "procedural",
)


def points(c: config_dict.ConfigDict) -> Iterator[Point]:
    for seed in range(c.seed, c.seed + 3):
        yield {"seed": seed}
        for word in WORDS:
            yield {"words": word, "seed": seed}
