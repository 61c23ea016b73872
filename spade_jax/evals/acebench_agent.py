"""ACEBench agent: tasks in simulated apps, step by step or in talk with a user who is acted.

From the checkout that `acebench` describes it needs besides

    data_all/data_en/data_agent_multi_step.json, data_agent_multi_turn.json
        also initial_config ({class: scenario}) and involved_classes
    data_all/data_en/possible_answer/ of the same names
        ground_truth ([{class: {attribute: value}}]) and mile_stone (["[call(a='b')]", ...], or a
        list of such lists)
    model_inference/multi_step/scenariosen/, model_inference/multi_turn/scenariosen/
        the simulators, which are imported in a process of their own
    model_inference/prompt_en.py
        BASE_PROMPT_EN and TRAVEL_PROMPT_EN, the rules the agent keeps
    model_inference/multi_turn/APIModel_user.py
        SYSTEM_PROMPT_BASE_EN and SYSTEM_PROMPT_TRAVEL_EN, the instructions of the user

The texts are read, not run.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spade_jax.envs import parsers
from spade_jax.envs.parsers import parse_program
from spade_jax.evals import acebench, calls, prompts
from spade_jax.evals.acebench import MEND
from spade_jax.evals.calls import Call
from spade_jax.evals.suites import (
    Course,
    Item,
    Listed,
    Outcome,
    Say,
    Settings,
    Tools,
    Work,
    ask_user,
)
from spade_jax.evals.worlds import Part, Simulators, WorldLost, Worlds, open_simulators
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Message, UsageError, dataclass

CATEGORIES = ("agent_multi_step", "agent_multi_turn")
MESSAGES = 40  # of a conversation after the first, whoever says them
END = "finish conversation"
MODULES = {
    "BaseApi": "phone_platform.base_api",
    "MessageApi": "phone_platform.message",
    "ReminderApi": "phone_platform.reminder",
    "FoodPlatform": "phone_platform.food_services",
    "Travel": "travel",
}
# What of the state is compared.
SAVED = {
    "BaseApi": ("wifi", "logged_in"),
    "MessageApi": ("inbox",),
    "ReminderApi": ("reminder_list",),
    "FoodPlatform": ("users", "logged_in_users", "orders"),
    "Travel": ("users", "reservations"),
}
MODEL = "model"  # the world


@dataclass
class Entry:
    """One task. `user` is the instruction of whoever acts the user, None where nobody does."""

    id: str
    category: str
    system: str
    question: str
    user: str | None
    tools: Tools
    parts: tuple[Part, ...]
    state: tuple[Mapping[str, Mapping[str, Any]], ...]
    stones: tuple[tuple[tuple[Call, ...], ...], ...]  # milestones, in each of the ways


def entries(root: Path, category: str) -> list[Entry]:
    """The entries of a category in their order; a UsageError where something is missing."""
    given = acebench.read(root, category, ("initial_config", "involved_classes"))
    acted = category == "agent_multi_turn"
    rules = _texts(root / "model_inference" / "prompt_en.py") if acted else {}
    users = _texts(root / "model_inference" / "multi_turn" / "APIModel_user.py") if acted else {}
    return [_entry(category, entry, answer, rules, users) for entry, answer in given]


def _entry(
    category: str,
    entry: Mapping[str, Any],
    answer: Mapping[str, Any],
    rules: Mapping[str, str],
    users: Mapping[str, str],
) -> Entry:
    classes = entry["involved_classes"]
    for name in classes:
        if name not in MODULES:
            raise UsageError(f"{entry['id']} of ACEBench names {name}, which is no simulator")
    system, user = prompts.fill(category.replace("agent", "acebench")), None
    if category == "agent_multi_turn":
        kinds = [k for n, k in (("Travel", "TRAVEL"), ("BaseApi", "BASE")) if n in classes]
        system += "".join(f"\n\n{_text(rules, f'{kind}_PROMPT_EN')}" for kind in kinds)
        instruction = _text(users, f"SYSTEM_PROMPT_{kinds[-1] if kinds else 'BASE'}_EN")
        user = instruction.replace("{instruction}", entry["question"])
    truth = answer["ground_truth"]
    return Entry(
        id=entry["id"],
        category=category,
        system=system,
        question=entry["question"],
        user=user,
        tools=tuple(map(calls.tool, entry["function"])),
        parts=tuple(_part(category, name, entry["initial_config"]) for name in classes),
        state=tuple(truth if isinstance(truth, list) else [truth]),
        stones=_stones(answer.get("mile_stone", ())),
    )


def _part(category: str, name: str, initial: Mapping[str, Any]) -> Part:
    """A simulator loads its own scenario, then the phone's."""
    package = f"model_inference.{category.removeprefix('agent_')}.scenariosen"
    scenarios = (initial.get(name, {}), initial.get("BaseApi", {}))
    return Part(name=name, module=f"{package}.{MODULES[name]}", scenarios=scenarios)


def _texts(file: Path) -> dict[str, str]:
    """The texts a Python file gives names to, without running it."""
    try:
        tree = parse_program(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read ({error}); {MEND}") from None
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _text(texts: Mapping[str, str], name: str) -> str:
    if name not in texts:
        raise UsageError(f"ACEBench's checkout has no text {name}; {MEND}")
    return texts[name].strip()


def _stones(written: Sequence[Any]) -> tuple[tuple[tuple[Call, ...], ...], ...]:
    ways = written if written and isinstance(written[0], list) else [written]
    return tuple(tuple(map(calls.read_calls, way)) for way in ways)


# -- judging ----------------------------------------------------------------------------------


def wrong(
    state: Mapping[str, Mapping[str, Any]], truth: Sequence[Mapping[str, Mapping[str, Any]]]
) -> str:
    """Which class.attribute is not as it should be, "" if none: of an object, its true members."""
    if len(state) != len(truth):
        return f"{len(state)} classes, not {len(truth)}"
    for expected in truth:
        for name, attributes in expected.items():
            for attribute, value in state.get(name, {"": None}).items():
                if not _holds(value, attributes.get(attribute, ...)):
                    return f"{name}.{attribute}"
    return ""


def _holds(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping) and isinstance(value, Mapping):
        return all(name in value and value[name] == each for name, each in wanted.items())
    return value == wanted


def coverage(made: Sequence[tuple[Call, ...]], ways: Sequence[Sequence[tuple[Call, ...]]]) -> float:
    """The share of milestones that were passed in their order, in the best of the ways.

    As in ACEBench, after a milestone that does not come none counts.
    """
    shares = []
    for way in ways:
        rest = iter(made)
        passed = sum(stone in rest for stone in way)
        shares.append(passed / len(way) if way else 1.0)
    return max(shares, default=1.0)


# -- playing ----------------------------------------------------------------------------------


def course(entry: Entry, simulators: Simulators, play: int) -> Course:
    """A task's course: it is won where the apps end as they should."""
    worlds = yield Work(do=simulators.open)
    made: list[tuple[Call, ...]] = []
    try:
        yield Work(do=functools.partial(worlds.build, [MODEL], entry.parts))
        lost = yield from _talk(entry, worlds, made)
        if not lost:
            saved = functools.partial(worlds.state, MODEL, SAVED)
            lost = wrong((yield Work(do=saved)), entry.state) if made else "no call"
    finally:
        worlds.close()
    steps = [[{"name": c.name, "arguments": c.named} for c in step] for step in made]
    return Outcome(
        score=float(not lost),
        won=not lost,
        answer=json.dumps(steps),
        details={"lost": lost, "milestones": coverage(made, entry.stones) if lost else 1.0},
    )


def _talk(
    entry: Entry, worlds: Worlds, made: list[tuple[Call, ...]]
) -> Generator[Say | Work, Any, str]:
    """The conversation, whose calls `made` gets; why the task is lost, if it is by its end."""
    question, count = entry.question, 0
    if entry.user is not None:
        begin = Message(role="user", content=prompts.fill("acebench_user_begins"))
        question = yield from ask_user(Message(role="system", content=entry.user), begin)
    said: tuple[Message, ...] = (
        Message(role="system", content=entry.system),
        Message(role="user", content=question),
    )
    tools: Tools | None = entry.tools
    while count < MESSAGES:
        reply = yield Say(messages=said, tools=tools)
        tools, count = None, count + 1
        if reply is None:
            return "no room in the context"
        spoken = parsers.spoken(reply.text)
        if END in spoken and count > 2:
            return ""
        count += 1
        if step := calls.made(reply.text, entry.tools):
            try:
                each = yield Work(do=functools.partial(worlds.call, MODEL, step, everywhere=True))
            except WorldLost as error:
                return str(error)
            made.append(step)
            said = tuple(Message(role="tool", content=answer) for answer in each)
            continue
        if entry.user is None:
            words = prompts.fill("acebench_no_questions")
        else:
            words = yield from ask_user(Message(role="user", content=spoken))
            if END in words and count > 2:
                return ""
        said = (Message(role="user", content=words),)
    return ""


# -- the suite --------------------------------------------------------------------------------


SETTINGS = Settings(plays=1, sampling=Sampling(temperature=0.001), reply=1000, context=32768)


@contextlib.contextmanager
def open_agent(data: Path | None, categories: Sequence[str] = CATEGORIES) -> Iterator[Listed]:
    """ACEBench agent: 20 tasks step by step, 30 in talk with a user; its figure is their mean.

    Settings of the repository's `apimodel_inference.py`: temperature 0.001, top-p 1, at most 1,000
    tokens a reply, 40 messages a conversation; the user is acted with the same sampling. Of the
    context it says nothing: 32,768 is ours. A task is won where all saved attributes are as they
    should be (end-to-end accuracy); `milestones` in the details is its process accuracy. Rules and
    the user's instructions are the repository's, the rest of the prompts is ours, and calls have
    the form of the model's template.
    """
    root = acebench.checkout(data)
    chosen = tuple(entry for each in categories for entry in entries(root, each))
    with open_simulators([e.parts for e in chosen], [root], MEND) as simulators:
        items = [
            Item(
                id=entry.id,
                group=f"ACEBench agent: {entry.category.removeprefix('agent_')}",
                course=functools.partial(course, entry, simulators),
            )
            for entry in chosen
        ]
        yield Listed(name="acebench_agent", settings=SETTINGS, all=tuple(items), tools=True)
