"""Shapes of the sampler's programs: a few sizes that all others are rounded up to, so that soon
nothing compiles any more, and how many steps a block of decoding has."""

from __future__ import annotations

from collections.abc import Sequence

GROUP = 16  # rows of a program that reads, and of one that decodes copies
COMPACT_READING = 4  # of one that reads into copies: few conversations come back at once
LONG = 8192  # columns of each of them that a program may copy; where there are more, fewer rows
WIDTHS = (16, 32, 64, 96, 128, 192, 256)  # new tokens of a row; longer texts are read in pieces
COLUMN_STEP = 64  # columns in use are rounded up to 2, 3, 4, 6, 8, 12, ... of these
STEP_COLUMNS = 512  # what a step of decoding costs a CPU beside its columns, in columns


def width(n: int) -> int:
    """Columns of the program that reads n tokens, or the first piece of them."""
    return next((width for width in WIDTHS if n <= width), WIDTHS[-1])


def columns(n: int) -> int:
    """Columns that are read where n are in use, at most about half more than n."""
    if n == 0:
        return 0
    step = COLUMN_STEP
    while n > 4 * step:
        step *= 2
    return max(2, -(-n // step)) * step


def rows(columns: int, group: int = GROUP) -> int:
    """Rows of a program that copies so many columns of each."""
    return max(1, min(group, group * LONG // max(1, columns)))


def most_steps(block: int) -> int:
    """Steps that a block of decoding has at most, `block` of them on average."""
    return 3 * block // 2


def steps(columns: Sequence[int], block: int) -> list[int]:
    """Steps, `block` on average, of groups that read so many columns, a core each: of short
    conversations more than of long ones, so that all groups take equally long."""
    costs = [STEP_COLUMNS + n for n in columns]
    time = block * len(costs) / sum(1 / cost for cost in costs)
    return [min(round(time / cost), most_steps(block)) for cost in costs]
