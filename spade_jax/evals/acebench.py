"""ACEBench, the categories of one reply: normal and special.

The data are not on PyPI. `data` is a checkout of github.com/chenchen0103/ACEBench (arXiv
2501.12851), or a folder with one called ACEBench; for the agent's part see `acebench_agent`. Of it
these files are read, which hold a JSON object a line:

    data_all/data_en/data_CATEGORY.json
        id, question, function; time or profile where there is one
    data_all/data_en/possible_answer/data_CATEGORY.json
        id, ground_truth

In normal categories `ground_truth` is {function: {parameter: value}}, or a list of such that will
do; a function called twice has _1, _2 after its name. In special_incomplete it is {function:
[missing parameters]}, in special_error_param {parameter: [wrong values]}; special_irrelevant needs
none. The question is the conversation so far as text. English only.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spade_jax.envs import parsers
from spade_jax.evals import calls, prompts
from spade_jax.evals.calls import Call
from spade_jax.evals.data import read_lines, with_answers
from spade_jax.evals.matching import plain
from spade_jax.evals.suites import Course, Item, Listed, Outcome, Say, Settings, Tools
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Message, UsageError, dataclass

MEND = (
    "check out github.com/chenchen0103/ACEBench and give that folder by --data=PATH, or one it is "
    "in"
)
NORMAL = (
    *("normal_single_turn_single_function", "normal_single_turn_parallel_function"),
    *("normal_multi_turn_user_adjust", "normal_multi_turn_user_switch", "normal_similar_api"),
    *("normal_preference", "normal_atom_bool", "normal_atom_enum", "normal_atom_number"),
    *("normal_atom_list", "normal_atom_object_deep", "normal_atom_object_short"),
)
SPECIAL = ("special_incomplete", "special_error_param", "special_irrelevant")
# What a reply must say, by category; the words are the benchmark's.
MARKS = {
    "special_incomplete": "Missing necessary parameters",
    "special_error_param": "There is incorrect value",
    "special_irrelevant": "the limitations of the function",
}
SETTINGS = Settings(plays=1, sampling=Sampling(temperature=0.001), reply=1000, context=16384)


@dataclass
class Entry:
    """One question, and what its answer must hold."""

    id: str
    category: str
    messages: tuple[Message, ...]
    functions: tuple[Mapping[str, Any], ...]
    tools: Tools
    truth: Any


def checkout(data: Path | None) -> Path:
    """The checkout at, or in, a folder."""
    if data is None:
        raise UsageError(f"ACEBench needs its data, which we may not ship; {MEND}")
    return data / "ACEBench" if (data / "ACEBench").is_dir() else data


def read(
    root: Path, category: str, fields: Sequence[str]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Entries of a category with their answers; a UsageError where there are none to read."""
    folder = root / "data_all" / "data_en"
    file, answers = (f / f"data_{category}.json" for f in (folder, folder / "possible_answer"))
    given = read_lines(file, MEND, ("id", "question", "function", *fields))
    truths = read_lines(answers, MEND, ("id", "ground_truth"))
    return with_answers(given, truths, answers, MEND)


def entries(root: Path, category: str) -> list[Entry]:
    """The entries of a category in their order."""
    name = "special" if category in SPECIAL else category.removeprefix("normal_")
    name = name if name in ("special", "preference") else "normal"
    return [
        Entry(
            id=entry["id"],
            category=category,
            messages=(
                Message(
                    role="system",
                    content=prompts.fill(
                        f"acebench_{name}",
                        time=entry.get("time") or "not known",
                        profile=_text(entry.get("profile", "")),
                    ),
                ),
                Message(role="user", content=f"The conversation so far:\n{entry['question']}"),
            ),
            functions=tuple(entry["function"]),
            tools=tuple(map(calls.tool, entry["function"])),
            truth=answer["ground_truth"],
        )
        for entry, answer in read(root, category, ())
    ]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# -- judging ----------------------------------------------------------------------------------


def mismatch(
    functions: Sequence[Mapping[str, Any]], made: Sequence[Call], truth: Mapping[str, Any]
) -> str:
    """Why the calls are not the true ones, "" if they are; their order does not count."""
    if len(made) != len(truth):
        return f"{len(made)} calls, not {len(truth)}"
    known = {function["name"]: function for function in functions}
    left = list(made)
    for written, wanted in truth.items():
        name = written if written in known else re.sub(r"_\d+$", "", written)
        if name not in known:
            return f"no function is called {name}"
        faults = [_call(known[name], call, wanted) for call in left]
        if "" not in faults:
            return faults[0]
        del left[faults.index("")]
    return ""


def _call(function: Mapping[str, Any], call: Call, wanted: Mapping[str, Any]) -> str:
    if call.name != function["name"]:
        return f"{call.name} was called, not {function['name']}"
    required = function.get("parameters", {}).get("required", ())
    if missing := [name for name in required if name not in call.named]:
        return f"{missing[0]} is missing"
    for name, value in call.named.items():
        if name not in wanted:
            return f"{name} is not asked for"
        if not alike(value, wanted[name]):
            return f"{name} is {value!r:.200}"
    return ""


def alike(value: Any, wanted: Any) -> bool:
    """Whether a value is the true one: text holds it, lists and objects item by item.

    As ACEBench's checker, but that numbers and truth values are compared too, which it leaves out.
    """
    if isinstance(wanted, bool) and value in ("true", "false"):
        value = value == "true"
    if isinstance(wanted, str):
        return isinstance(value, str) and plain(wanted) in plain(value)
    if isinstance(wanted, list):
        if not isinstance(value, list) or len(value) != len(wanted):
            return False
        return all(
            alike(v, w) if isinstance(w, dict) else plain(v) == plain(w)
            for v, w in zip(value, wanted, strict=True)
        )
    if isinstance(wanted, dict):
        return (
            isinstance(value, dict)
            and value.keys() == wanted.keys()
            and all(alike(value[name], wanted[name]) for name in wanted)
        )
    return isinstance(value, bool) == isinstance(wanted, bool) and value == wanted


def unsaid(category: str, reply: str, truth: Any) -> str:
    """What a reply in a special category does not say, "" if nothing."""
    needed = [MARKS[category]]
    if category != "special_irrelevant" and isinstance(truth, Mapping):
        for name, values in truth.items():
            needed += [name] if category == "special_incomplete" else []
            needed += map(str, values)
    missing = [words for words in needed if words not in reply]
    return f"not said: {missing[0]}" if missing else ""


def course(entry: Entry, play: int) -> Course:
    """One reply, and whether it is right."""
    reply = yield Say(messages=entry.messages, tools=entry.tools)
    if reply is None:
        return Outcome(score=0.0, won=False, details={"lost": "no room in the context"})
    if entry.category in SPECIAL:
        answer = parsers.spoken(reply.text)
        lost = unsaid(entry.category, answer, entry.truth)
    else:
        made = calls.made(reply.text, entry.tools)
        answer = json.dumps([{"name": c.name, "arguments": c.named} for c in made])
        truths = entry.truth if isinstance(entry.truth, list) else [entry.truth]
        faults = [mismatch(entry.functions, made, truth) for truth in truths]
        lost = "" if "" in faults else faults[0]
    return Outcome(score=float(not lost), won=not lost, answer=answer, details={"lost": lost})


# -- the suites -------------------------------------------------------------------------------


@contextlib.contextmanager
def open_normal(data: Path | None) -> Iterator[Listed]:
    """ACEBench normal: functions are to be called; its figure is the mean over categories.

    Settings of the repository's `generate.py`: temperature 0.001, top-p 1, at most 1,000 tokens a
    reply. Of the context it says nothing: 16,384 is ours. The prompts say the same in our words and
    leave the form of calls to the model's template. Steps of a multi-turn dialogue are items each,
    as in its process accuracy; its end-to-end accuracy wants all of a dialogue.
    """
    yield _suite("acebench_normal", NORMAL, data)


@contextlib.contextmanager
def open_special(data: Path | None) -> Iterator[Listed]:
    """ACEBench special: something is wrong with the request; settings as in `open_normal`."""
    yield _suite("acebench_special", SPECIAL, data)


def _suite(name: str, categories: Sequence[str], data: Path | None) -> Listed:
    root = checkout(data)
    items = [
        Item(
            id=entry.id,
            group="ACEBench {}: {}".format(*category.split("_", 1)),
            course=functools.partial(course, entry),
        )
        for category in categories
        for entry in entries(root, category)
    ]
    return Listed(name=name, settings=SETTINGS, all=tuple(items), tools=True)
