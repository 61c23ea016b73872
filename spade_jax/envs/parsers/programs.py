"""Programs in a designer's reply: fenced blocks that define an environment; hints beside them."""

from __future__ import annotations

import re
import textwrap

from spade_jax.types import CUT_OFF

ANY_PROGRAM = re.compile(r"\S")
_FENCE = re.compile(r"[ \t]*(`{3,}(?=[^`]*$)|~{3,})(.*)", re.DOTALL)
_ENV_CLASS = re.compile(r"^[ \t]*class[ \t]+\w*Env\b", re.MULTILINE)
_PYTHON_TAGS = ([], ["python"], ["py"], ["python3"])
_QUOTES = re.compile(r"\\.|#|'''|\"\"\"|'|\"", re.DOTALL)
_THOUGHT = re.compile(r"^[ \t]*</think>|</think>[ \t]*\r?$", re.MULTILINE)
_HINT = re.compile(r"[ \t>#*_-]*hint[ \t*_]*:[ \t*_]*(.*)", re.IGNORECASE | re.DOTALL)
_MAX_QUOTED = 16  # fences that one block may hold in its docstrings


def extract_code(reply: str, holds: re.Pattern[str] = _ENV_CLASS) -> str | None:
    """The last complete code block that `holds` is found in: a class whose name ends in `Env`.

    CUT_OFF where there is none and the reply ends within a block or within its thinking, else
    None. Fences inside a docstring do not end a block.
    """
    lines = _said(reply)
    if lines is None:
        return CUT_OFF
    code, line = None, 0
    while line < len(lines):
        fence = _FENCE.match(lines[line])
        line += 1
        if fence is None:
            continue
        python = fence[2].lower().split()[:1] in _PYTHON_TAGS
        end = _closing(lines, line, fence[1], python)
        if end is None:
            begun = python and any(map(str.strip, lines[line:]))
            return CUT_OFF if begun and code is None else code
        if python:
            block = _block(lines[line:end])
            code = block if holds.search(block) else code
        line = end + 1
    return code


def extract_hint(reply: str) -> str | None:
    """The last section outside thinking and code blocks that a line starting with `Hint:` opens.

    It ends at a blank line, a code block or the end of the reply; an empty one counts as none.
    """
    lines = _said(reply) or []
    hint, line = None, 0
    while line < len(lines):
        fence = _FENCE.match(lines[line])
        opening = _HINT.match(lines[line])
        line += 1
        if fence is not None:
            python = fence[2].lower().split()[:1] in _PYTHON_TAGS
            end = _closing(lines, line, fence[1], python)
            line = len(lines) if end is None else end + 1
        elif opening is not None:
            section = [opening[1]]
            while line < len(lines) and not _FENCE.match(lines[line]):
                if not lines[line].strip() and "".join(section).strip():
                    break
                section.append(lines[line])
                line += 1
            hint = "\n".join(section).strip() or hint
    return hint


def _said(reply: str) -> list[str] | None:
    """The lines after the thinking; None where that does not end."""
    thoughts = [match.end() for match in _THOUGHT.finditer(reply)]
    if not thoughts and reply.lstrip().startswith("<think>"):
        return None
    return [line.removesuffix("\r") for line in reply[max(thoughts, default=0) :].split("\n")]


def _closing(lines: list[str], start: int, mark: str, python: bool) -> int | None:
    """The fence that closes a block: in Python the first outside a docstring, if there is one."""
    first, quoted, quote = None, 0, ""
    for n in range(start, len(lines)):
        fence = _FENCE.match(lines[n])
        if fence and fence[1].startswith(mark) and not fence[2].strip():
            if not quote:
                return n
            first = n if first is None else first
            quoted += 1
            if quoted == _MAX_QUOTED:
                break
        elif python:
            quote = _open_quote(lines[n], quote)
    return first


def _open_quote(line: str, quote: str) -> str:
    """The triple quote that is open at a line's end; `quote` is the one open at its start."""
    for match in _QUOTES.finditer(line):
        token = match[0]
        if quote:
            if token.startswith(quote):
                quote = ""
        elif token == "#":
            break
        elif token[0] in "'\"":
            quote = token
    return quote if len(quote) == 3 else ""


def _block(lines: list[str]) -> str:
    """The block's text; where its first line is indented, without what all lines share of that."""
    text = "".join(line + "\n" for line in lines)
    return textwrap.dedent(text) if text.lstrip("\n").startswith((" ", "\t")) else text
