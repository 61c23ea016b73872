"""The learning rate, from a tenth to ten times that of the config, two to a decade."""

from collections.abc import Iterator

from ml_collections import config_dict

from spade_jax.configs.sweeps import Point


def points(c: config_dict.ConfigDict) -> Iterator[Point]:
    for factor in (0.1, 0.3, 1.0, 3.0, 10.0):
        yield {"optimizer.lr": float(f"{factor * c.optimizer.lr:.6g}")}
