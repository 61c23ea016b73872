"""The held-out success of groups as a picture, for a README."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.figure

from spade_jax.report.compare import success
from spade_jax.report.runs import Group


def overlay(groups: Sequence[Group]) -> matplotlib.figure.Figure:
    """Held-out success over iterations, a curve for each group."""
    figure = matplotlib.figure.Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    for group in groups:
        points = success(group)
        x, y = [k for k, _ in points], [m.value for _, m in points]
        count = f" ({len(group.runs)} runs)" if len(group.runs) > 1 else ""
        axis.plot(x, y, marker=".", label=group.label + count)
        low, high = ([m.value + s * m.half_width for _, m in points] for s in (-1, 1))
        axis.fill_between(x, low, high, alpha=0.12)
    axis.set_xlabel("iterations")
    axis.set_ylabel("held-out success (95% interval)")
    axis.legend(fontsize=8)
    return figure
