"""Procedural environments: programs of tasks at a level of difficulty, in place of the designer's.

Tasks come from the bundled families, from reasoning-gym or from rlve-gym. Of the latter two a
program holds one instance, by its seed: the package, which is imported in the sandbox only, makes
the instance and scores the answer there. A program of a bundled family draws an instance for every
play.
"""

from __future__ import annotations

import dataclasses
import difflib
import random
import string
from collections.abc import Callable, Sequence

from spade_jax.design.corpus import Corpus
from spade_jax.design.families import FAMILIES, LEVELS, sample_program, theme_of
from spade_jax.envs import adapters
from spade_jax.envs.sandbox import Reset, Sandbox, Solution
from spade_jax.types import Environment, Failure, Kind, UsageError, dataclass

Write = Callable[[random.Random, int], str]  # a program, from rng and level


@dataclass
class Procedural:
    """A task with levels 1 (the easiest) to `levels`; `write` draws a program of one."""

    name: str
    skill: str
    kind: Kind
    levels: int
    write: Write
    modules: tuple[str, ...] | None = None

    def make(self, rng: random.Random, level: int, name: str, iteration: int) -> Environment:
        """The environment `name` of that level."""
        return Environment(
            id=name,
            kind=self.kind,
            skill=self.skill,
            code=self.write(rng, level),
            iteration=iteration,
            task=self.name,
            level=level,
            modules=self.modules,
        )


# -- the bundled families ---------------------------------------------------------------------


def bundled_tasks(corpus: Corpus) -> list[Procedural]:
    """The bundled families, about the documents of `corpus`."""
    themes = [theme_of(corpus.document(n).text) for n in range(len(corpus))]

    def writer(family: str) -> Write:
        return lambda rng, level: sample_program(rng, family, level, rng.choice(themes)).code

    return [
        Procedural(
            name=family.name,
            skill=family.skill,
            kind=family.kind,
            levels=LEVELS[-1],
            write=writer(family.name),
        )
        for family in FAMILIES.values()
    ]


# -- packages ---------------------------------------------------------------------------------

_REASONING_GYM = (
    """
from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum


class ReasoningGymEnv:
    def reset(self, seed=None):
        dataset, config = DATASETS[$name]
        options = {"seed": $seed, "size": 1}
        if $name in CURRICULA:
            curriculum = create_curriculum($name)
            curriculum.set_global_level($level - 1)
            self.data = dataset(curriculum.generate_configuration(options))
        else:
            self.data = dataset(config(**options))
        self.entry = self.data[0]
        return self.entry["question"], {}
"""
    + adapters.REASONING_GYM_STEP
)

_REASONING_GYM_TASKS = """
from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum


class TasksEnv:
    def reset(self, seed=None):
        return "Tasks.", {}

    def step(self, action):
        return "Done.", 0.0, True, False, {}

    def solution(self):
        return [f"{name} {self.levels(name)}" for name in sorted(DATASETS) if name != "composite"]

    def levels(self, name):
        attributes = create_curriculum(name).attributes.values() if name in CURRICULA else ()
        return max([1, *(len(attribute.levels) for attribute in attributes)])
"""

# The package bounds the time of its own functions by threads, of which a sandboxed process has one;
# there the sandbox's limit holds.
_RLVE_GYM = """
import concurrent.futures
import random

import Gym.environment
from Gym.environments import identifier2environment
from Gym.parameter_controllers import identifier2controller


class SameThread:
    def __init__(self, max_workers):
        self.future = concurrent.futures.Future()

    def submit(self, function, *args, **kwargs):
        try:
            self.future.set_result(function(*args, **kwargs))
        except Exception as error:
            self.future.set_exception(error)
        return self.future

    def shutdown(self, wait, cancel_futures):
        pass


Gym.environment.ThreadPoolExecutor = SameThread


class RlveGymEnv:
    def reset(self, seed=None):
        controller = identifier2controller[$name]()
        for _ in range($level - 1):
            controller.update()
        rng = random.Random($seed)
        self.task = identifier2environment[$name](answer_markers=("<answer>", "</answer>"))
        for _ in range(8):
            parameter = rng.choice(controller.get_parameter_list())
            if self.task.generator(rng.randrange(2**31), parameter):
                return self.task.prompt_generator(), {}
        raise ValueError("no instance could be made")

    def step(self, action):
        score = float(self.task.verifier(f"<answer>{action}</answer>")["reward"])
        return f"Score {score:g}.", score, True, False, {}

    def solution(self):
        answer = self.task.parameter.get("reference_answer")
        return None if answer is None else [str(answer)]
"""

_RLVE_GYM_TASKS = """
from Gym.environments import identifier2environment


class TasksEnv:
    def reset(self, seed=None):
        return "Tasks.", {}

    def step(self, action):
        return "Done.", 0.0, True, False, {}

    def solution(self):
        return [f"{name} 0" for name in sorted(identifier2environment)]
"""


@dataclass
class Package:
    """A package of tasks: what to import of it, a task's program, and one that lists the tasks."""

    modules: tuple[str, ...]
    program: str
    tasks: str


PACKAGES = {
    "reasoning_gym": Package(
        modules=("reasoning_gym",), program=_REASONING_GYM, tasks=_REASONING_GYM_TASKS
    ),
    "rlve_gym": Package(
        modules=("Gym.environments", "Gym.parameter_controllers"),
        program=_RLVE_GYM,
        tasks=_RLVE_GYM_TASKS,
    ),
}
PROVIDERS = ("families", *PACKAGES)
# A play is won with a return above this: packages give part of it for a part of the answer.
WON = {"families": 0.5, **dict.fromkeys(PACKAGES, 1 - 1e-6)}


def package_tasks(provider: str, sandbox: Sandbox, max_level: int) -> list[Procedural]:
    """The tasks of an installed package, which is asked in the sandbox.

    One that says nothing of its levels has no hardest one; it gets `max_level`.
    """
    package = PACKAGES[provider]
    modules = adapters.to_import(package.modules)
    instance = sandbox.open(package.tasks, Kind.GAME, modules=modules)
    [begun] = sandbox.exchange([(instance, Reset(0))])
    [told] = sandbox.exchange([(instance, Solution())])
    sandbox.close_instances([instance])
    if isinstance(begun, Failure) or isinstance(told, Failure):
        failure = begun if isinstance(begun, Failure) else told
        needs = adapters.INSTALLED_BY[package.modules[0].partition(".")[0]]
        raise UsageError(
            f"{provider} does not run in the sandbox ({failure.message}); run `{needs}`, or choose "
            "another environments.provider"
        )
    return [
        Procedural(
            name=name,
            skill=name,
            kind=Kind.GAME,
            levels=int(levels) or max_level,
            write=_writer(package.program, name),
            modules=modules,
        )
        for name, levels in (each.rsplit(" ", 1) for each in told)
    ]


def _writer(program: str, name: str) -> Write:
    template = string.Template(program.lstrip())

    def write(rng: random.Random, level: int) -> str:
        return template.substitute(name=repr(name), level=level, seed=rng.randrange(2**31))

    return write


# -- all of them ------------------------------------------------------------------------------


def tasks(
    provider: str, names: Sequence[str], max_level: int, sandbox: Sandbox, corpus: Corpus
) -> dict[str, Procedural]:
    """The tasks `names` of a provider, all where it is empty; none has levels above `max_level`."""
    if provider == "families":
        known = bundled_tasks(corpus)
    else:
        known = package_tasks(provider, sandbox, max_level)
    found = {task.name: task for task in known}
    for name in names:
        if name not in found:
            near = difflib.get_close_matches(name, found, n=3) or list(found)[:3]
            raise UsageError(
                f"environments.tasks names {name!r}, which is no task of {provider} (it has "
                f"{', '.join(near)}, ...); correct it, or leave it empty to take all"
            )
    return {
        name: dataclasses.replace(found[name], levels=min(found[name].levels, max_level))
        for name in names or found
    }
