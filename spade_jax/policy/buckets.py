"""Shapes of the sampler's programs: a few sizes that all others are rounded up to, so that soon
nothing compiles any more."""

from __future__ import annotations

from collections.abc import Sequence

GROUP = 16  # rows of a program that reads, and of one that decodes copies
COMPACT_READING = 4  # of one that reads into copies: few conversations come back at once
LONG = 8192  # columns of each of them that a program may copy; where there are more, fewer rows
WIDTHS = (16, 32, 64, 96, 128, 192, 256)  # new tokens of a row; longer texts are read in pieces
COLUMN_STEP = 64  # columns in use are rounded up to 2, 3, 4, 6, 8, 12, ... of these


def width(n: int) -> int:
    """Columns of the program that reads n tokens, or the first piece of them."""
    return next((width for width in WIDTHS if n <= width), WIDTHS[-1])


def columns(n: int) -> int:
    """Columns that are read where n are in use, at most about half more than n."""
    return max(2 * COLUMN_STEP, _rounded(n, COLUMN_STEP)) if n else 0


def blocks(lengths: Sequence[int]) -> int:
    """Blocks of COLUMN_STEP columns that are read where rows use so many columns."""
    return _rounded(sum(-(-n // COLUMN_STEP) for n in lengths), GROUP)


def _rounded(n: int, step: int) -> int:
    """Up to 1, 2, 3, 4, 6, 8, 12, ... times `step`."""
    while n > 4 * step:
        step *= 2
    return -(-n // step) * step


def rows(columns: int, group: int = GROUP) -> int:
    """Rows of a program that copies so many columns of each."""
    return max(1, min(group, group * LONG // max(1, columns)))
