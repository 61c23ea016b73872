"""Hinted plays of an environment: how well its regret is known, against what that costs."""

from collections.abc import Iterator

from ml_collections import config_dict

from spade_jax.configs.sweeps import Point


def points(c: config_dict.ConfigDict) -> Iterator[Point]:
    for plays in (2, 4, 8, 16):
        yield {"play.hint_plays": plays}
