"""Files with a program: read as what they are, with a verdict where there is nothing to run."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

from spade_jax.envs import contract, parsers
from spade_jax.types import Kind, Reason, UsageError, Verdict, dataclass

MAX_BYTES = 1_000_000


@dataclass
class ProgramFile:
    """A program as it was read, or the rejection of a file that cannot hold one."""

    path: Path
    kind: Kind
    code: str | None = None
    rejection: Verdict | None = None


def read_program(path: Path, kind: Kind | None = None) -> ProgramFile:
    """Read a file of Python, or a text with a program in a code block, as a designer replies.

    Without `kind` it is recognised from the base class. UsageError for what is no readable file.
    """
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder; name the files in it")
        size = path.stat().st_size
        if not path.is_file():
            raise UsageError(f"{path} is not a regular file; name a file of Python")
        data = path.read_bytes() if size <= MAX_BYTES else b""
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path} cannot be read ({reason}); check its name") from None
    if size > MAX_BYTES:
        problem = f"The file has {size:,} bytes; a program has at most {MAX_BYTES:,}, shorten it."
        return _rejected(path, kind, Reason.LIMITS, problem)
    try:
        text = _decode(data)
    except (SyntaxError, ValueError, LookupError) as error:
        problem = f"The file is not text in the encoding it claims ({error}); save it as UTF-8."
        return _rejected(path, kind, Reason.PARSE, problem)
    if "\0" in text:
        problem = "The file holds zero bytes, so it is no Python text; save it as UTF-8."
        return _rejected(path, kind, Reason.PARSE, problem)
    if not text.strip():
        problem = "The file is empty; write a program with a class whose name ends in Env."
        return _rejected(path, kind, Reason.EXTRACT, problem)
    fenced = path.suffix != ".py" and "```" in text
    code = parsers.extract_code(text) if fenced else text
    return ProgramFile(path=path, kind=kind or kind_of(code or ""), code=code)


def kind_of(code: str) -> Kind:
    """TOOL_USE for a program with a class that subclasses `ToolUseBaseEnv`, else GAME."""
    try:
        tree = parsers.parse_program(code)
    except SyntaxError:
        return Kind.GAME
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names = [getattr(base, "id", getattr(base, "attr", "")) for base in node.bases]
            if contract.TOOL_BASE in names:
                return Kind.TOOL_USE
    return Kind.GAME


def _decode(data: bytes) -> str:
    """Text in the encoding that its mark or its first lines declare, UTF-8 by default."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    text = io.TextIOWrapper(io.BytesIO(data), encoding).read()
    text.encode()  # an odd encoding may give half characters, which the sandbox cannot be sent
    return text


def _rejected(path: Path, kind: Kind | None, reason: Reason, message: str) -> ProgramFile:
    verdict = Verdict(reason=reason, message=message, phase="source")
    return ProgramFile(path=path, kind=kind or Kind.GAME, rejection=verdict)
