"""tau2-bench, its retail domain: an agent serves users who are acted, in a shop with rules.

`data` is a checkout of github.com/sierra-research/tau2-bench (arXiv 2506.07982), a folder with one
called tau2-bench, or the checkout's own folder data/tau2. Read from the last:

    domains/retail/db.json      products, users and orders
    domains/retail/policy.md    the rules
    domains/retail/tasks.json   a list; of each task its id, user_scenario and evaluation_criteria
                                (actions, communicate_info, reward_basis)
    user_simulator/simulation_guidelines.md    how to act a user

The tools are `retail`'s. Supported is what can be judged offline: the database in the end (DB), and
whether the agent said what it should (COMMUNICATE). NL_ASSERTION wants a judge; where a task has
it, what is to be said is compared in its place. Other domains are not supported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from spade_jax.envs import parsers
from spade_jax.evals import calls, prompts
from spade_jax.evals.retail import TOOLS, Shop
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
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Message, UsageError, dataclass

MEND = (
    "check out github.com/sierra-research/tau2-bench and give that folder by --data=PATH, or one "
    "it is in"
)
ENDS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")  # what the user says to end it
STEPS = 200  # messages of a conversation
ERRORS = 10  # tools that refuse, after which it ends
SPOKEN = ("COMMUNICATE", "NL_ASSERTION")
OFFERED: Tools = tuple(
    calls.tool(
        {
            "name": name,
            "description": purpose,
            "parameters": {"type": "object", "properties": wanted, "required": list(wanted)},
        }
    )
    for name, (purpose, wanted) in TOOLS.items()
)


@dataclass
class Task:
    """One user with a concern. `actions` are the true calls, `informs` what must be said."""

    id: str
    user: str
    actions: tuple[tuple[str, Mapping[str, Any]], ...]
    informs: tuple[str, ...]
    basis: tuple[str, ...]


@dataclass
class Shared:
    """What all tasks share: the rules, and the database as JSON, of which each play has a copy."""

    system: str
    database: str


def read(data: Path | None) -> tuple[Shared, list[Task]]:
    """The domain; a UsageError names the file that is missing or damaged."""
    if data is None:
        raise UsageError(f"tau2 needs its data, which we do not ship; {MEND}")
    places = (data / "tau2-bench" / "data" / "tau2", data / "data" / "tau2")
    folder = next((place for place in places if place.is_dir()), data)
    domain = folder / "domains" / "retail"
    guidelines = _text(folder / "user_simulator" / "simulation_guidelines.md")
    shared = Shared(
        system=prompts.fill("tau2_agent", policy=_text(domain / "policy.md").strip()),
        database=_text(domain / "db.json"),
    )
    _check(_json(domain / "db.json", shared.database), domain / "db.json")
    file = domain / "tasks.json"
    tasks = _json(file, _text(file))
    try:
        return shared, [_task(task, guidelines) for task in tasks]
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"a task in {file} lacks {error}; {MEND}") from None


def _task(task: Mapping[str, Any], guidelines: str) -> Task:
    criteria = task["evaluation_criteria"]
    scenario = task["user_scenario"]
    told = {"persona": scenario.get("persona"), **_lines(scenario["instructions"])}
    words = "\n".join(f"{name}: {text}" for name, text in told.items() if text)
    return Task(
        id=str(task["id"]),
        user=prompts.fill("tau2_user", guidelines=guidelines.strip(), scenario=words),
        actions=tuple((a["name"], a["arguments"]) for a in criteria["actions"] or ()),
        informs=tuple(criteria.get("communicate_info") or ()),
        basis=tuple(criteria["reward_basis"]),
    )


def _lines(instructions: Any) -> dict[str, str]:
    if isinstance(instructions, str):
        return {"instructions": instructions}
    return {name.replace("_", " "): text for name, text in instructions.items()}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read ({error}); {MEND}") from None


def _json(file: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{file} is damaged or cut off; {MEND}") from None


def _check(database: Any, file: Path) -> None:
    for kind in ("products", "users", "orders"):
        if not isinstance(database, dict) or not isinstance(database.get(kind), dict):
            raise UsageError(f"{file} has no {kind}; {MEND}")


# -- playing ----------------------------------------------------------------------------------


@dataclasses.dataclass
class _Talk:
    """What the agent did so far."""

    shop: Shop
    said: list[str] = dataclasses.field(default_factory=list)
    made: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    refused: int = 0


def course(task: Task, shared: Shared, play: int) -> Course:
    """A task's course: won where the database ends as it should and all was said."""
    talk = _Talk(Shop((yield Work(do=functools.partial(json.loads, shared.database)))))
    lost = yield from _conversation(task, shared, talk)
    if not lost:
        lost = yield Work(do=functools.partial(_judge, task, shared, talk))
    return Outcome(
        score=float(not lost),
        won=not lost,
        answer=json.dumps(talk.made),
        details={"lost": lost, "refused": talk.refused, "basis": list(task.basis)},
    )


def _conversation(task: Task, shared: Shared, talk: _Talk) -> Generator[Say, Any, str]:
    """Until the user ends it; why the task is lost, if it is by then."""
    begun = Message(role="user", content=prompts.fill("tau2_greeting"))
    heard = yield from ask_user(Message(role="system", content=task.user), begun)
    said: tuple[Message, ...] = (Message(role="system", content=shared.system),)
    said += (Message(role="user", content=heard),)
    tools: Tools | None = OFFERED
    steps = 2
    while steps < STEPS and not any(end in heard for end in ENDS):
        reply = yield Say(messages=said, tools=tools)
        tools, steps = None, steps + 2  # a reply, and what it is answered
        if reply is None:
            return "no room in the context"
        if made := calls.made(reply.text, OFFERED):
            answers = [talk.shop.call(call.name, call.named) for call in made]
            talk.made += [{"name": call.name, "arguments": call.named} for call in made]
            talk.refused += sum(not done for _, done in answers)
            if talk.refused >= ERRORS:
                return f"{ERRORS} calls that were refused"
            said = tuple(Message(role="tool", content=text) for text, _ in answers)
            continue
        talk.said.append(parsers.spoken(reply.text))
        heard = yield from ask_user(Message(role="user", content=talk.said[-1]))
        said = (Message(role="user", content=heard),)
    return "" if any(end in heard for end in ENDS) else f"no end after {STEPS} messages"


def _judge(task: Task, shared: Shared, talk: _Talk) -> str:
    """Why the task is lost, if it is. True calls that the shop refuses change nothing."""
    true = Shop(json.loads(shared.database))
    for name, arguments in task.actions:
        true.call(name, arguments)
    if "DB" in task.basis:
        wrong = [
            name
            for kind, entries in true.database.items()
            for name, entry in entries.items()
            if talk.shop.database[kind][name] != entry
        ]
        if wrong:
            return f"not as it should be: {', '.join(wrong[:5])}"
    if any(each in task.basis for each in SPOKEN):
        spoken = [text.lower().replace(",", "") for text in talk.said]
        for words in task.informs:
            if not any(words.lower() in text for text in spoken):
                return f"not said: {words}"
    return ""


# -- the suite --------------------------------------------------------------------------------


SETTINGS = Settings(plays=1, sampling=Sampling(temperature=0.0), reply=4096, context=32768)


@contextlib.contextmanager
def open_retail(data: Path | None) -> Iterator[Listed]:
    """tau2-bench retail, from a checkout: every task of tasks.json.

    Settings of its `config.py`: temperature 0, 200 messages, 10 errors; of a reply and the context
    it says nothing: 4,096 and 32,768 tokens are ours. Published figures are of four plays a task
    (`--k=4`). Rules and the guidelines of the user are the repository's, the rest of the prompts
    and the words of tools are ours.
    """
    shared, tasks = read(data)
    items = [
        Item(
            id=f"retail_{task.id}",
            group="tau2 retail",
            course=functools.partial(course, task, shared),
        )
        for task in tasks
    ]
    yield Listed(name="tau2_retail", settings=SETTINGS, all=tuple(items), tools=True)
