"""Configs: found by name or path, checked before any work, kept beside the run they describe."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import types as python_types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from ml_collections import config_dict

from spade_jax.config_rules import CHOICES, RANGES, RULES
from spade_jax.design.skills import KINDS
from spade_jax.learn import rewards
from spade_jax.types import UsageError

PACKAGE = "spade_jax.configs"
FILE = "config.json"  # in a workdir
# What may change when a run is resumed.
FREE = (
    *("iterations", "mesh", "hosts.", "sampling.tensor", "sampling.expert"),
    *("health.", "checkpoint.", "watchdog.", "evaluation.", "log."),
    *(f"{group}.endpoint_{field}" for group in ("hint", "judge") for field in ("url", "key")),
)

T = TypeVar("T")


class ConfigError(UsageError):
    """A config that cannot be used, in one sentence that names field, value and remedy."""


# -- loading ----------------------------------------------------------------------------------


def load(name_or_path: str) -> config_dict.ConfigDict:
    """The locked config of `name_or_path`.

    A bundled name (`tiny`), a path to a Python file with `get_config` (`configs/tiny.py`), or a
    run's own `config.json`. What follows a colon is the argument of `get_config`, words in most
    configs (`games:qwen3_4b,no_memory`).
    """
    name, colon, words = name_or_path.partition(":")
    if not name.endswith(".json"):
        config = call(name, module(name).get_config, [words] if colon else [])
    elif colon:
        raise ConfigError(
            f"the config {name} is a run's own and takes no words after a colon; give them to the "
            "config it was started with"
        )
    else:
        config = _from_json(Path(name))
    return config.lock()


def bundled(package: str = PACKAGE, function: str = "get_config") -> list[str]:
    """Names of a package's modules that define `function`: the configs, as a rule."""
    folder = Path(importlib.import_module(package).__path__[0])
    return sorted(
        path.stem for path in folder.glob("*.py") if f"\ndef {function}(" in path.read_text("utf-8")
    )


def module(
    name: str, kind: str = "config", package: str = PACKAGE, function: str = "get_config"
) -> python_types.ModuleType:
    """The module of that name in the package, or at that path, which defines `function`.

    Raises a ConfigError that calls it a `kind`.
    """
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            names = _names(package, function)
            raise ConfigError(f"the {kind} file {name} does not exist; give a path or {names}")
        spec = importlib.util.spec_from_file_location(f"spade_jax_{kind}_{path.stem}", path)
        found = importlib.util.module_from_spec(spec)
        call(name, spec.loader.exec_module, [found], kind)
    elif name in bundled(package, function):
        found = importlib.import_module(f"{package}.{name}")
    else:
        near, names = _near(name, bundled(package, function)), _names(package, function)
        raise ConfigError(f"no bundled {kind} is called {name!r}{near}; give {names}, or a path")
    if not callable(getattr(found, function, None)):
        raise ConfigError(f"the {kind} {name} defines no {function}(); add one that returns it")
    return found


def call(name: str, function: Callable[..., T], arguments: list, kind: str = "config") -> T:
    """Run a part of a config; whatever it raises is a mistake in that config."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        takes = "takes no" if arguments else "needs a"
        raise ConfigError(
            f"the {kind} {name} {takes} variant after a colon; correct --config={name}"
        ) from None
    try:
        return function(*arguments)
    except UsageError as error:
        raise ConfigError(f"{kind} {name}: {error}") from None
    except Exception as error:
        raise ConfigError(
            f"the {kind} {name} raised {type(error).__name__} ({error}); mend it or its variant"
        ) from error


def _names(package: str, function: str) -> str:
    return f"a bundled name ({', '.join(bundled(package, function))})"


def _near(name: str, known: Iterable[str]) -> str:
    """The known names that look like `name`, as a clause to add to a sentence."""
    known = list(known)
    leaf = name.rpartition(".")[2]
    same_leaf = [each for each in known if each.rpartition(".")[2] == leaf]
    matches = dict.fromkeys([*same_leaf, *difflib.get_close_matches(name, known, n=3)])
    return f" (near: {', '.join(matches)})" if matches else ""


def _from_json(path: Path) -> config_dict.ConfigDict:
    return config_dict.ConfigDict(_with_tuples(_read(path)))


def _with_tuples(value: object) -> object:
    """JSON knows no tuples: every list becomes one."""
    if isinstance(value, dict):
        return {key: _with_tuples(each) for key, each in value.items()}
    return tuple(_with_tuples(each) for each in value) if isinstance(value, list) else value


# -- checking ---------------------------------------------------------------------------------


def check(config: config_dict.ConfigDict) -> None:
    """Check a config of a training run: the fields of `configs/default.py`, each in its bounds.

    Raises a ConfigError for the first mistake.
    """
    check_fields(config, load("default"))
    values = flatten(config)
    for field, allowed in CHOICES.items():
        if values[field] not in allowed:
            near = _near(values[field], allowed)
            raise ConfigError(
                f"{field} is {values[field]!r}{near}; choose one of {', '.join(allowed)}"
            )
    for field, allowed in RANGES.items():
        value = values[field]
        numbers = value if isinstance(value, tuple) else (value,)
        if not numbers or any(number not in allowed for number in numbers):
            raise ConfigError(f"{field} is {value} but must be {allowed}; set --config.{field}")
    _check_skills(config.skills)
    _check_penalties(config.reward.penalty_by_reason)
    n_skills, n_plays = len(config.skills), config.design.num_envs * config.play.plays
    for holds, sentence in RULES:
        if not holds(config):
            raise ConfigError(sentence.format(c=config, n_skills=n_skills, n_plays=n_plays))


def check_fields(config: config_dict.ConfigDict, pattern: config_dict.ConfigDict) -> None:
    """Raise a ConfigError unless fields and their types are those of `pattern`."""
    values, known = flatten(config), flatten(pattern)
    for field, value in values.items():
        if field not in known:
            near = _near(field, known)
            raise ConfigError(f"the config has an unknown field {field}{near}; rename or remove it")
        expected = type(known[field])
        if type(value) is not expected and (expected, type(value)) != (float, int):
            raise ConfigError(
                f"{field} is {value!r} of type {type(value).__name__}; give it a value of type "
                f"{expected.__name__}"
            )
        if expected is tuple:
            _check_entries(field, value, type(known[field][0]) if known[field] else str)
    for field in known:
        if field not in values:
            raise ConfigError(f"the config lacks the field {field}; start it from a bundled config")


def _check_entries(field: str, entries: tuple[object, ...], expected: type) -> None:
    for entry in entries:
        if type(entry) is not expected:
            raise ConfigError(
                f"{field} is {entries!r}, but {entry!r} is no {expected.__name__}; correct "
                f"--config.{field}"
            )


def _check_skills(skills: tuple[str, ...]) -> None:
    if not skills:
        raise ConfigError("skills is empty; list at least one skill")
    for skill in skills:
        if skill not in KINDS:
            near = _near(str(skill), KINDS)
            raise ConfigError(
                f"skills names {skill!r}{near}, which is none; choose from {', '.join(KINDS)}"
            )
        if skills.count(skill) > 1:
            raise ConfigError(f"skills lists {skill!r} twice; remove one")


def _check_penalties(by_reason: str) -> None:
    try:
        rewards.read_penalties(by_reason)
    except UsageError as error:
        raise ConfigError(str(error)) from None


def check_field(config: config_dict.ConfigDict, field: str) -> None:
    """Raise a ConfigError unless `field` (dotted) is a field of the config, and no group."""
    known = flatten(config)
    if field in known:
        return
    members = [each for each in known if each.startswith(field + ".")]
    if members:
        raise ConfigError(
            f"config.{field} is a group and cannot be set as a whole; set one of "
            f"{', '.join(members)}"
        )
    raise ConfigError(
        f"the config has no field {field!r}{_near(field, known)}; its file lists them all"
    )


def flatten(config: config_dict.ConfigDict) -> dict[str, object]:
    """Values by dotted field name."""
    return _flatten(config.to_dict())


def _flatten(tree: dict[str, object], prefix: str = "") -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            values.update(_flatten(value, f"{prefix}{key}."))
        else:
            values[prefix + key] = value
    return values


# -- keeping ----------------------------------------------------------------------------------


def fingerprint(config: config_dict.ConfigDict) -> str:
    """Hash of the fields that make the run what it is; FREE ones do not count."""
    return hashlib.sha256(json.dumps(_fixed(config.to_dict())).encode()).hexdigest()[:16]


def save(config: config_dict.ConfigDict, workdir: str | os.PathLike[str]) -> None:
    """Write the config into the workdir, which is made where it is missing, in one rename."""
    folder = Path(workdir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"{FILE}.{os.getpid()}"
        draft.write_text(json.dumps(config.to_dict(), indent=2) + "\n", encoding="utf-8")
        draft.replace(folder / FILE)
    except OSError as error:
        raise ConfigError(
            f"the workdir {workdir} cannot be written ({error.strerror}); choose another --workdir"
        ) from error


def compare(config: config_dict.ConfigDict, workdir: str | os.PathLike[str]) -> None:
    """Raise a ConfigError that names the fields that differ where the workdir has another config.

    A workdir without a config is fit for any, and FREE fields may differ.
    """
    path = Path(workdir) / FILE
    if not path.exists():
        return
    there, here = _fixed(_read(path)), _fixed(config.to_dict())
    different = [
        f"{field} is {there.get(field, 'absent')} there and {here.get(field, 'absent')} here"
        for field in dict.fromkeys([*here, *there])
        if there.get(field) != here.get(field) or (field in there) != (field in here)
    ]
    if different:
        raise ConfigError(
            f"the workdir {workdir} belongs to another config ({'; '.join(different)}): choose "
            "another --workdir, or the same values to go on"
        )


def _fixed(tree: dict[str, object]) -> dict[str, object]:
    """Fields that may not change on resume, by sorted name, as JSON keeps them."""
    values = json.loads(json.dumps(_flatten(tree)))
    return {field: values[field] for field in sorted(values) if not field.startswith(FREE)}


def _read(path: Path) -> dict[str, object]:
    """The nested dict a config file of a workdir holds."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the config {path} cannot be read ({error.strerror}); check the path and its rights"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"the config {path} is no valid JSON ({error}); restore it, or choose another --workdir"
        ) from error
    if not isinstance(tree, dict):
        raise ConfigError(f"the config {path} holds no JSON object; choose another --workdir")
    return tree
