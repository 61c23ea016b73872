r"""Boxed answers: `\boxed{...}` and `\fbox{...}`."""

from __future__ import annotations

import re

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_BRACES = re.compile(r"\\{1,2}(?:boxed|fbox)[ \t]*\{|\\.|[{}]", re.DOTALL)


def boxed(text: str) -> str | None:
    r"""Content of the last balanced `\boxed{}` or `\fbox{}`; None if there is none or it is empty.

    Only what follows the last `</think>` counts, and of that what precedes a `<think>`. Escaped
    braces do not count; of nested boxes the one that starts last is read.
    """
    closed = text.rfind(_THINK_CLOSE)
    start = closed + len(_THINK_CLOSE) if closed >= 0 else 0
    opened = text.find(_THINK_OPEN, start)
    stack: list[int | None] = []  # where each open brace's content starts, None if not a box
    last: tuple[int, int] | None = None
    for match in _BRACES.finditer(text, start, opened if opened >= 0 else len(text)):
        token = match[0]
        if token == "}":
            content = stack.pop() if stack else None
            if content is not None and (last is None or content > last[0]):
                last = (content, match.start())
        elif token == "{":
            stack.append(None)
        elif token.endswith("{") and len(token) > 2:
            stack.append(match.end())
    return (text[last[0] : last[1]].strip() or None) if last else None
