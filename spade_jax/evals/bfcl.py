"""BFCL v4 multi-turn: tools called over several turns, judged by the state they leave.

Data and simulators are those of the package bfcl-eval (Berkeley Function Calling Leaderboard,
github.com/ShishirPatil/gorilla); how an entry is played and judged follows its `base_handler`,
`multi_turn_checker` and `eval_runner`, in code of our own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import json
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spade_jax.evals import calls
from spade_jax.evals.calls import Call
from spade_jax.evals.data import read_lines, with_answers
from spade_jax.evals.suites import Course, Item, Listed, Outcome, Say, Settings, Tools, Work
from spade_jax.evals.worlds import Part, Simulators, WorldLost, Worlds, open_simulators
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Message, UsageError, dataclass

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
MEND = "run bash launch/install_eval.sh, which installs bfcl-eval"
MODEL, TRUTH = "model", "truth"  # the two worlds of an entry


@dataclass
class Source:
    """Where entries, documents of tools and simulators are, and what the package fixes.

    `steps` are the most replies with calls in a turn; `revealed` is what the user says where a
    function that was withheld is shown.
    """

    data: Path
    imports: Path  # where Python finds the modules
    documents: Mapping[str, str]  # class -> file in multi_turn_func_doc
    modules: Mapping[str, str]  # class -> module
    stateless: Collection[str]  # classes without a scenario to load
    steps: int
    revealed: str


def package() -> Path:
    """The folder of bfcl-eval; a UsageError where it is not installed. Nothing is imported."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"the suites of BFCL need the package bfcl-eval; {MEND}")
    return Path(next(iter(spec.submodule_search_locations)))


def installed() -> Source:
    """The source in the installed package."""
    folder = package()
    try:
        backend = importlib.import_module("bfcl_eval.constants.executable_backend_config")
        texts = importlib.import_module("bfcl_eval.constants.default_prompts")
        return Source(
            data=folder / "data",
            imports=folder.parent,
            documents=backend.MULTI_TURN_FUNC_DOC_FILE_MAPPING,
            modules=backend.CLASS_FILE_PATH_MAPPING,
            stateless=backend.STATELESS_CLASSES,
            steps=texts.MAXIMUM_STEP_LIMIT,
            revealed=texts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC,
        )
    except (ImportError, AttributeError) as error:
        raise UsageError(f"this bfcl-eval is not the one wanted ({error}); {MEND}") from None


# -- entries ----------------------------------------------------------------------------------


@dataclass
class Entry:
    """One conversation: by turn what the user says, the tools on offer and the true calls."""

    id: str
    category: str
    turns: tuple[tuple[Message, ...], ...]
    tools: tuple[Tools, ...]
    truth: tuple[tuple[Call, ...], ...]
    parts: tuple[Part, ...]


def entries(source: Source, category: str) -> list[Entry]:
    """The entries of a category in their order; a UsageError where the data are damaged."""
    name = f"BFCL_v4_multi_turn_{category}.json"
    file, answers = source.data / name, source.data / "possible_answer" / name
    fields = ("id", "question", "initial_config", "involved_classes")
    given = read_lines(file, MEND, fields)
    truths = read_lines(answers, MEND, ("id", "ground_truth"))
    tools = functools.cache(functools.partial(_tools, source))
    return [
        _entry(source, category, entry, answer["ground_truth"], tools)
        for entry, answer in with_answers(given, truths, answers, MEND)
    ]


def _tools(source: Source, name: str) -> Tools:
    """The functions of a class, as they are offered."""
    if name not in source.documents or name not in source.modules:
        raise UsageError(f"BFCL's data name {name}, of which there is no simulator; {MEND}")
    file = source.data / "multi_turn_func_doc" / source.documents[name]
    return tuple(map(calls.tool, read_lines(file, MEND, ("name", "parameters"))))


def _entry(
    source: Source,
    category: str,
    entry: Mapping[str, Any],
    truth: Sequence[Sequence[str]],
    tools_of: Callable[[str], Tools],
) -> Entry:
    classes, initial = entry["involved_classes"], entry["initial_config"]
    offered = [tool for name in classes for tool in tools_of(name)]
    withheld = entry.get("missed_function", {})
    later = {name: int(turn) for turn, names in withheld.items() for name in names}
    shown = [t for t in offered if t["function"]["name"] not in later]
    tools, turns = [], []
    for number, said in enumerate(entry["question"]):
        shown = shown + [t for t in offered if later.get(t["function"]["name"]) == number]
        tools.append(tuple(shown))
        turns.append(tuple(Message(role=m["role"], content=m["content"]) for m in said))
    if len(turns) != len(truth):
        raise UsageError(f"{entry['id']} of BFCL has {len(truth)} answers to its turns; {MEND}")
    return Entry(
        id=entry["id"],
        category=category,
        turns=tuple(turns),
        tools=tuple(tools),
        truth=tuple(tuple(map(calls.read_call, turn)) for turn in truth),
        parts=tuple(
            Part(
                name=name,
                module=source.modules[name],
                scenarios=() if name in source.stateless else (initial.get(name, {}),),
                long_context=category == "long_context",
            )
            for name in classes
        ),
    )


# -- playing ----------------------------------------------------------------------------------


@dataclasses.dataclass
class _Played:
    """What the model did so far: calls by turn, and all that they answered."""

    calls: list[list[Call]] = dataclasses.field(default_factory=list)
    answers: list[str] = dataclasses.field(default_factory=list)

    def outcome(self, why: str = "") -> Outcome:
        """Won where nothing says why not."""
        made = [[{"name": c.name, "arguments": c.named} for c in turn] for turn in self.calls]
        return Outcome(
            score=float(not why),
            won=not why,
            answer=json.dumps(made),
            details={"turns": len(self.calls), "lost": why},
        )


def course(entry: Entry, source: Source, simulators: Simulators, play: int) -> Course:
    """An entry's course, in a world for the model and one for the truth; it ends where it is lost.

    Raises WorldLost where something other than the model's calls broke the worlds.
    """
    worlds = yield Work(do=simulators.open)
    played = _Played()
    try:
        yield Work(do=functools.partial(worlds.build, (MODEL, TRUTH), entry.parts))
        for number, truth in enumerate(entry.truth):
            said = entry.turns[number] or (Message(role="user", content=source.revealed),)
            fresh = number == 0 or entry.tools[number] != entry.tools[number - 1]
            first = Say(messages=said, tools=entry.tools[number] if fresh else None)
            played.calls.append([])
            why = yield from _turn(first, entry.tools[number], source.steps, worlds, played)
            why = why or (yield from _judge(truth, worlds, played))
            if why:
                return played.outcome(why)
        return played.outcome()
    finally:
        worlds.close()


def _turn(
    say: Say, tools: Tools, steps: int, worlds: Worlds, played: _Played
) -> Generator[Say | Work, Any, str]:
    """Replies until one holds no call that can be read; why the entry is lost, if it is."""
    for step in range(steps + 1):
        reply = yield say
        if reply is None:
            return "no room in the context"
        made = calls.made(reply.text, tools)
        if not made:
            return ""
        if step == steps:
            break
        try:
            answers = yield Work(do=functools.partial(worlds.call, MODEL, made))
        except WorldLost as error:
            return str(error)
        played.calls[-1] += made
        played.answers += answers
        say = Say(messages=tuple(Message(role="tool", content=answer) for answer in answers))
    return f"calls after {steps} steps"


def _judge(truth: Sequence[Call], worlds: Worlds, played: _Played) -> Generator[Work, Any, str]:
    """Why the turn is lost, if it is; a turn without true calls is not judged.

    The attributes of both worlds must agree, and what the true calls answer must be among all that
    the model was answered so far, each as often.
    """
    if not truth:
        return ""
    if not played.calls[-1]:
        return "no call in a turn that needs one"
    answers, differ = yield Work(do=functools.partial(worlds.compare, MODEL, TRUTH, truth))
    if differ:
        return f"state: {', '.join(differ)}"
    left = list(played.answers)
    for answer in answers:
        if answer not in left:
            return f"answer missing: {answer[:200]}"
        left.remove(answer)
    return ""


# -- the suite --------------------------------------------------------------------------------


SETTINGS = Settings(plays=1, sampling=Sampling(temperature=0.001), reply=4096, context=32768)


@contextlib.contextmanager
def open_multi_turn(
    categories: Sequence[str] = CATEGORIES, source: Source | None = None
) -> Iterator[Listed]:
    """BFCL v4 multi-turn: 800 entries in four categories, from the package or a source like that.

    Settings of bfcl-eval 2026.3.23: temperature 0.001, at most 4,096 tokens a reply
    (`base_oss_handler`), at most 20 replies with calls a turn (`default_prompts`), no system
    prompt for models that call tools natively. Of the context it says nothing: 32,768 is ours. An
    entry is won where every turn is; a reply with a call that cannot be read ends its turn.
    """
    source = source or installed()
    chosen = tuple(entry for each in categories for entry in entries(source, each))
    with open_simulators([e.parts for e in chosen], [source.imports], MEND) as simulators:
        items = [
            Item(
                id=entry.id,
                group=f"BFCL v4 multi-turn: {entry.category}",
                course=functools.partial(course, entry, source, simulators),
            )
            for entry in chosen
        ]
        yield Listed(name="bfcl_multi_turn", settings=SETTINGS, all=tuple(items), tools=True)
