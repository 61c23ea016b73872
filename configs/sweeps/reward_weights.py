"""The blend of the designer's reward, from the plateau alone to regret alone."""

from collections.abc import Iterator

from ml_collections import config_dict

from spade_jax.configs.sweeps import Point


def points(c: config_dict.ConfigDict) -> Iterator[Point]:
    for tenths in (0, 2, 4, 6, 8, 10):
        yield {
            "reward.designer": "blend",
            "reward.w_regret": tenths / 10,
            "reward.w_plateau": (10 - tenths) / 10,
        }
