"""Fingerprint of a program: its syntax tree without what only words it differently."""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Iterable, Iterator

from spade_jax.envs.parsers import parse_program

_CONTRACT = {"reset", "step", "hint", "solution", "close"}
_LIBRARY = {
    name
    for owner in (str, bytes, list, dict, set, tuple, int, float, random.Random)
    for name in dir(owner)
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (*_FUNCTIONS, *_COMPREHENSIONS)


def fingerprint(code: str) -> str:
    """16 hexadecimal digits, equal for programs that differ in names, strings and comments only.

    SyntaxError for code that cannot be read.
    """
    text = "\x1f".join(words(code))
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def words(code: str) -> list[str]:
    """The syntax tree as a sequence of words, without what only words it differently.

    Docstrings and annotations are dropped, names the program binds are numbered by appearance
    within their scope, string literals lose their text. Numbers, operations, the contract's method
    names and names of libraries are kept. SyntaxError for code that cannot be read.
    """
    tree = parse_program(code)
    try:
        return list(_Writer(tree).write(tree))
    except RecursionError as error:
        raise SyntaxError("the program is nested too deeply") from error


class _Writer:
    """Writes a tree as a sequence of words, renaming as it goes."""

    def __init__(self, tree: ast.Module) -> None:
        self.attributes: dict[str, str] = {}
        self.own = set(_own_attributes(tree)) - _CONTRACT
        self.receivers: list[str] = []  # first arguments of the methods around
        self.scopes: list[dict[str, str]] = [dict.fromkeys(_bound([tree]), "")]
        self.names = 0

    def write(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Expr) and _is_text(node.value):
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is None:
                return
            node = ast.Assign(targets=[node.target], value=node.value)
        if isinstance(node, ast.JoinedStr):
            yield from self._joined(node)
        elif isinstance(node, ast.Constant):
            yield "text" if _is_text(node) else f"{type(node.value).__name__} {node.value!r}"
        elif isinstance(node, ast.ClassDef):
            yield from self._class(node)
        elif isinstance(node, _SCOPES):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield self._name(node.name)
            yield from self._scope(node)
        else:
            yield from self._plain(node)

    def _plain(self, node: ast.AST) -> Iterator[str]:
        yield f"({type(node).__name__}"
        for field, value in ast.iter_fields(node):
            if field in ("ctx", "type_comment", "annotation", "returns", "kind"):
                continue
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, ast.AST):
                    yield from self.write(item)
                elif isinstance(item, str):
                    yield self._identifier(node, field, item)
                else:
                    yield repr(item)
            yield ";"
        yield ")"

    def _identifier(self, node: ast.AST, field: str, name: str) -> str:
        if isinstance(node, ast.Attribute):
            on_self = isinstance(node.value, ast.Name) and node.value.id in self.receivers
            renamed = name in self.own and (on_self or name not in _LIBRARY)
            return self._attribute(name) if renamed else name
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return name
        if isinstance(node, ast.alias):
            return name if field == "name" else self._name(name)
        return self._name(name)

    def _class(self, node: ast.ClassDef) -> Iterator[str]:
        yield "(class"
        yield self._name(node.name)
        for base in (*node.bases, *node.keywords, *node.decorator_list):
            yield from self.write(base)
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"def {self._attribute(statement.name)}"
                first = [*statement.args.posonlyargs, *statement.args.args][:1]
                self.receivers.extend(argument.arg for argument in first)
                yield from self._scope(statement)
                del self.receivers[len(self.receivers) - len(first) :]
            elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
                targets = getattr(statement, "targets", None) or [statement.target]
                if statement.value is None:
                    continue
                yield "set"
                for target in targets:
                    named = isinstance(target, ast.Name)
                    yield from [self._attribute(target.id)] if named else self.write(target)
                yield from self.write(statement.value)
            else:
                yield from self.write(statement)
        yield ")"

    def _scope(self, node: ast.AST) -> Iterator[str]:
        self.scopes.append(dict.fromkeys(_bound([node]), ""))
        if isinstance(node, _COMPREHENSIONS):  # targets appear before what uses them
            yield from (word for part in node.generators for word in self.write(part))
        yield f"({type(node).__name__}"
        for field, value in ast.iter_fields(node):
            if field in ("name", "returns", "type_comment", "generators", "type_params"):
                continue
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, ast.AST):
                    yield from self.write(item)
            yield ";"
        yield ")"
        self.scopes.pop()

    def _joined(self, node: ast.JoinedStr) -> Iterator[str]:
        values = [value for value in node.values if isinstance(value, ast.FormattedValue)]
        yield "text" if not values else "(f-string"
        for value in values:
            yield from self.write(value.value)
            yield str(value.conversion)
            if value.format_spec is not None:
                yield from self.write(value.format_spec)

    def _attribute(self, name: str) -> str:
        if name in _CONTRACT:
            return name
        return self.attributes.setdefault(name, f"a{len(self.attributes)}")

    def _name(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                if not scope[name]:
                    scope[name] = f"v{self.names}"
                    self.names += 1
                return scope[name]
        return name


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def _own_attributes(tree: ast.AST) -> Iterator[str]:
    """Attributes the program itself defines: assigned ones, methods, names of class bodies."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node.attr
        elif isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield statement.name
                elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
                    targets = getattr(statement, "targets", None) or [statement.target]
                    yield from (target.id for target in targets if isinstance(target, ast.Name))


def _bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names bound in the scopes that `nodes` open, not in scopes inside them."""
    for node in nodes:
        shared: set[str] = set()
        names: list[str] = []
        todo = list(ast.iter_child_nodes(node))
        while todo:
            child = todo.pop()
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.append(child.name)
                continue
            if isinstance(child, _SCOPES):
                continue
            names.extend(_binds(child))
            if isinstance(child, (ast.Global, ast.Nonlocal)):
                shared.update(child.names)
            todo.extend(ast.iter_child_nodes(child))
        yield from (name for name in names if name not in shared)


def _binds(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
        return [node.id]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.alias):
        return [node.asname] if node.asname else []
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return [node.name] if node.name else []
    return []
