"""How many environments the memory holds, from an epoch's to all of a long run's."""

from collections.abc import Iterator

from ml_collections import config_dict

from spade_jax.configs.sweeps import Point


def points(c: config_dict.ConfigDict) -> Iterator[Point]:
    for size in (25, 50, 100, 200, 400):
        yield {"memory.size": size}
