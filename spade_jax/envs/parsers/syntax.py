"""Syntax trees of Python text that may be anything."""

from __future__ import annotations

import ast
import warnings


def parse_program(code: str) -> ast.Module:
    """The syntax tree; SyntaxError for anything Python cannot read, however it says so."""
    return _parse(code, "exec")


def parse_expression(source: str) -> ast.expr:
    """The syntax tree of one expression; SyntaxError like `parse_program`."""
    return _parse(source, "eval").body


def _parse(source: str, mode: str) -> ast.AST:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source, mode=mode)
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or "nested too deeply") from error
