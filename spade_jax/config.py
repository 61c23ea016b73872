"""Configs: found by name or path, checked before any work, kept beside the run they describe."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import os
import types as python_types
from collections.abc import Callable, Iterable
from pathlib import Path

from ml_collections import config_dict

from spade_jax.design.skills import KINDS
from spade_jax.learn.advantages import AGENT_ADVANTAGES, PENALTIES
from spade_jax.learn.regret import DESIGNER_REWARDS
from spade_jax.learn.returns import RETURNS
from spade_jax.policy.templates import THINK
from spade_jax.types import UsageError

FILE = "config.json"  # in a workdir
FREE = ("iterations", "checkpoint.", "evaluation.", "log.")  # may change when a run is resumed
PROMPTS = Path(__file__).parent / "design" / "prompts"


class ConfigError(UsageError):
    """A config that cannot be used, in one sentence that names field, value and remedy."""


# -- loading ----------------------------------------------------------------------------------


def load(name_or_path: str) -> config_dict.ConfigDict:
    """The locked config of `name_or_path`.

    A bundled name (`tiny`), a path to a Python file with `get_config` (`configs/tiny.py`), or a
    run's own `config.json`. What follows a colon is the argument of `get_config`
    (`games:qwen3_4b`).
    """
    name, colon, variant = name_or_path.partition(":")
    if name.endswith(".json"):
        config = _from_json(Path(name))
    else:
        config = _call(name, _module(name).get_config, [variant] if colon else [])
    return config.lock()


def bundled() -> list[str]:
    """Names of the configs shipped as `spade_jax.configs`."""
    package = importlib.import_module("spade_jax.configs")
    folder = Path(package.__path__[0])
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def _module(name: str) -> python_types.ModuleType:
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"the config file {name} does not exist; give a path or {_names()}")
        spec = importlib.util.spec_from_file_location(f"spade_jax_config_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        _call(name, spec.loader.exec_module, [module])
    elif name in bundled():
        module = importlib.import_module(f"spade_jax.configs.{name}")
    else:
        near = _near(name, bundled())
        raise ConfigError(f"no bundled config is called {name!r}{near}; give {_names()}, or a path")
    if not callable(getattr(module, "get_config", None)):
        raise ConfigError(f"the config {name} defines no get_config(); add one that returns it")
    return module


def _call(name: str, function: Callable, arguments: list) -> config_dict.ConfigDict:
    """Run a part of a config; whatever it raises is a mistake in that config."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        takes = "takes no" if arguments else "needs a"
        raise ConfigError(
            f"the config {name} {takes} variant after a colon; correct --config={name}"
        ) from None
    try:
        return function(*arguments)
    except Exception as error:
        raise ConfigError(
            f"the config {name} raised {type(error).__name__} ({error}); mend it or its variant"
        ) from error


def _names() -> str:
    return f"a bundled name ({', '.join(bundled())})"


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


@dataclasses.dataclass(frozen=True)
class Range:
    """Allowed numbers: from `low` (excluded where `above`) up to `high`, finite.

    In a tuple each number must be one of them.
    """

    low: float
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float):
            return False
        after_low = value > self.low if self.above else value >= self.low
        return math.isfinite(value) and after_low and value <= self.high

    def __str__(self) -> str:
        low = f"above {self.low:g}" if self.above else f"at least {self.low:g}"
        return low if math.isinf(self.high) else f"{low} and at most {self.high:g}"


COUNT = Range(1)
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, above=True)
SHARE = Range(0, 1)
PART = Range(0, 1, above=True)

RANGES: dict[str, Range] = {
    "seed": NOT_NEGATIVE,
    "iterations": COUNT,
    "model.max_loss": SHARE,
    "model.lora.rank": NOT_NEGATIVE,
    "model.lora.alpha": POSITIVE,
    "skills_per_epoch": COUNT,
    "corpus.seed": NOT_NEGATIVE,
    "corpus.max_words": COUNT,
    "memory.size": COUNT,
    "memory.positives": NOT_NEGATIVE,
    "memory.negatives": NOT_NEGATIVE,
    "memory.code_characters": COUNT,
    "design.num_envs": COUNT,
    "design.regenerate_every": COUNT,
    "design.fixed_pool": NOT_NEGATIVE,
    "design.max_tokens": COUNT,
    "design.temperature": POSITIVE,
    "design.top_p": PART,
    "design.top_k": NOT_NEGATIVE,
    "design.min_p": SHARE,
    "validation.seeds": COUNT,
    "validation.solve_seeds": COUNT,
    "validation.max_trivial": SHARE,
    "validation.max_random": SHARE,
    "sandbox.step_seconds": POSITIVE,
    "sandbox.cpu_seconds": POSITIVE,
    "sandbox.memory_mb": COUNT,
    "sandbox.max_instances": COUNT,
    "sandbox.max_observation": COUNT,
    "play.plays": COUNT,
    "play.hint_plays": NOT_NEGATIVE,
    "play.max_turns": COUNT,
    "play.reply_tokens": COUNT,
    "play.context": COUNT,
    "play.temperature": POSITIVE,
    "play.top_p": PART,
    "play.top_k": NOT_NEGATIVE,
    "play.min_p": SHARE,
    "sampling.slots": COUNT,
    "sampling.block": COUNT,
    "reward.discount": PART,
    "reward.w_regret": NOT_NEGATIVE,
    "reward.w_plateau": NOT_NEGATIVE,
    "reward.regret_scale": POSITIVE,
    "reward.plateau_low": Range(-1, 1),
    "reward.plateau_high": Range(-1, 1),
    "reward.plateau_ramp": POSITIVE,
    "reward.penalty": Range(-10, 0),
    "reward.hang_penalty": Range(-10, 0),
    "reward.max_role_scale": POSITIVE,
    "reward.gamma_fast": PART,
    "reward.gamma_slow": PART,
    "advantage.ema_decay": SHARE,
    "learn.designer_delay": NOT_NEGATIVE,
    "learn.passes": COUNT,
    "learn.minibatches": COUNT,
    "learn.row_tokens": COUNT,
    "learn.rows": COUNT,
    "learn.clip_low": PART,
    "learn.clip_high": POSITIVE,
    "learn.importance_cap": NOT_NEGATIVE,
    "learn.kl": NOT_NEGATIVE,
    "learn.entropy": NOT_NEGATIVE,
    "learn.logprob_gap": NOT_NEGATIVE,
    "learn.max_skipped": COUNT,
    "optimizer.lr": POSITIVE,
    "optimizer.final_norm_rate": POSITIVE,
    "optimizer.warmup": NOT_NEGATIVE,
    "optimizer.beta1": SHARE,
    "optimizer.beta2": SHARE,
    "optimizer.eps": POSITIVE,
    "optimizer.weight_decay": NOT_NEGATIVE,
    "optimizer.clip_norm": POSITIVE,
    "checkpoint.every": COUNT,
    "checkpoint.keep": COUNT,
    "evaluation.every": NOT_NEGATIVE,
    "evaluation.per_level": COUNT,
    "evaluation.seed": NOT_NEGATIVE,
    "log.episodes": Range(-1),
}

CHOICES: dict[str, tuple[str, ...]] = {
    "schedule": ("deterministic", "overlap"),
    "model.compute_dtype": ("float32", "bfloat16"),
    "model.attention": ("auto", "einsum", "dot_product", "cudnn", "splash"),
    "model.remat": ("none", "dots", "attention", "layer"),
    "model.think": THINK,
    "design.prompts": tuple(sorted(path.name for path in PROMPTS.iterdir() if path.is_dir())),
    "reward.episode_return": tuple(RETURNS),
    "reward.designer": tuple(DESIGNER_REWARDS),
    "reward.penalties": PENALTIES,
    "advantage.agent": tuple(AGENT_ADVANTAGES),
    "learn.aggregation": ("token_mean", "sequence_mean"),
}

# (holds, sentence with the values and the remedy), checked in order once each field is in range.
RULES: tuple[tuple[Callable[[config_dict.ConfigDict], bool], str], ...] = (
    (
        lambda c: c.skills_per_epoch <= len(c.skills),
        "skills_per_epoch is {c.skills_per_epoch} but only {n_skills} skills are listed; lower it "
        "or extend skills",
    ),
    (
        lambda c: not 0 < c.design.fixed_pool < c.design.num_envs,
        "design.fixed_pool is {c.design.fixed_pool} but must hold design.num_envs = "
        "{c.design.num_envs} environments; raise it, or set 0 to let the designer write them",
    ),
    (
        lambda c: c.play.context > c.play.reply_tokens,
        "play.context is {c.play.context} but must exceed play.reply_tokens "
        "({c.play.reply_tokens}) to hold a prompt too; raise play.context",
    ),
    (
        lambda c: len(c.learn.row_tokens) == len(c.learn.rows),
        "learn.row_tokens is {c.learn.row_tokens} and learn.rows is {c.learn.rows}, which must "
        "name as many lengths as counts; correct one of them",
    ),
    (
        lambda c: list(c.learn.row_tokens) == sorted(set(c.learn.row_tokens)),
        "learn.row_tokens is {c.learn.row_tokens} but lengths must ascend; sort them, and "
        "learn.rows with them",
    ),
    (
        lambda c: max(c.learn.row_tokens) >= c.play.context,
        "learn.row_tokens is {c.learn.row_tokens} but the longest must hold an episode of "
        "play.context ({c.play.context}) tokens; raise it or lower play.context",
    ),
    (
        lambda c: max(c.learn.row_tokens) > c.design.max_tokens,
        "learn.row_tokens is {c.learn.row_tokens} but the longest must exceed design.max_tokens "
        "({c.design.max_tokens}) to hold the prompt too; raise it",
    ),
    (
        lambda c: c.learn.minibatches <= c.design.num_envs * c.play.plays,
        "learn.minibatches is {c.learn.minibatches} but an iteration has only "
        "design.num_envs * play.plays = {n_plays} episodes; lower learn.minibatches",
    ),
    (
        lambda c: c.learn.designer_delay <= c.design.regenerate_every,
        "learn.designer_delay is {c.learn.designer_delay} but an environment is played for "
        "design.regenerate_every = {c.design.regenerate_every} iterations only; lower the delay",
    ),
    (
        lambda c: c.sampling.slots <= c.sandbox.max_instances,
        "sampling.slots is {c.sampling.slots} but each plays in a process of its own, of which "
        "sandbox.max_instances allows {c.sandbox.max_instances}; lower sampling.slots",
    ),
    (
        lambda c: c.reward.plateau_low <= c.reward.plateau_high,
        "reward.plateau_low is {c.reward.plateau_low} but must not exceed reward.plateau_high "
        "({c.reward.plateau_high}); swap them",
    ),
    (
        lambda c: c.reward.gamma_fast > c.reward.gamma_slow,
        "reward.gamma_fast is {c.reward.gamma_fast} but must exceed reward.gamma_slow "
        "({c.reward.gamma_slow}); raise it",
    ),
    (
        lambda c: c.play.hint_plays > 0 or c.reward.designer not in ("blend", "regret"),
        "play.hint_plays is 0 but reward.designer is {c.reward.designer!r}, which needs hinted "
        "plays; raise play.hint_plays or choose solve_rate or learning_potential",
    ),
    (
        lambda c: c.sandbox.cpu_seconds >= c.sandbox.step_seconds,
        "sandbox.cpu_seconds is {c.sandbox.cpu_seconds} but must allow one step of "
        "sandbox.step_seconds ({c.sandbox.step_seconds}); raise sandbox.cpu_seconds",
    ),
    (
        lambda c: c.optimizer.beta1 < 1 and c.optimizer.beta2 < 1,
        "optimizer.beta1 and optimizer.beta2 are {c.optimizer.beta1} and {c.optimizer.beta2} but "
        "must be below 1; the published values are 0.9 and 0.98",
    ),
)


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
    for field in known:
        if field not in values:
            raise ConfigError(f"the config lacks the field {field}; start it from a bundled config")


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


def compare(config: config_dict.ConfigDict, workdir: str | os.PathLike[str]) -> bool:
    """Whether the workdir holds a run of this config (True) or none yet (False).

    A workdir of another config is a ConfigError that names the fields that differ.
    """
    path = Path(workdir) / FILE
    if not path.exists():
        return False
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
    return True


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
    except ValueError as error:
        raise ConfigError(
            f"the config {path} is no valid JSON ({error}); restore it, or choose another --workdir"
        ) from error
    if not isinstance(tree, dict):
        raise ConfigError(f"the config {path} holds no JSON object; choose another --workdir")
    return tree
