"""BFCL v4 single-turn: one reply, whose calls must be the true ones.

Data are those of the package bfcl-eval; calls are compared by `matching`. Values of Java and
JavaScript come as text in that language, which bfcl-eval's own converters read.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spade_jax.evals import calls, matching
from spade_jax.evals.bfcl import MEND, package
from spade_jax.evals.data import read_lines, with_answers
from spade_jax.evals.suites import Course, Item, Listed, Outcome, Say, Settings, Tools
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Message, UsageError, dataclass

NON_LIVE = (
    *("simple_python", "simple_java", "simple_javascript", "multiple", "parallel"),
    *("parallel_multiple", "irrelevance"),
)
LIVE = (
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
    *("live_irrelevance", "live_relevance"),
)
UNJUDGED = ("irrelevance", "relevance")  # whether there is a call is all that counts there


@dataclass
class Entry:
    """One question. `truths` is None where only whether there are calls counts."""

    id: str
    category: str
    messages: tuple[Message, ...]
    functions: tuple[Mapping[str, Any], ...]
    tools: Tools
    truths: tuple[matching.Truth, ...] | None


def entries(data: Path, category: str) -> list[Entry]:
    """The entries of a category in their order; a UsageError where the data are damaged."""
    file = data / f"BFCL_v4_{category}.json"
    given = read_lines(file, MEND, ("id", "question", "function"))
    if category.endswith(UNJUDGED):
        return [_entry(category, entry, None) for entry in given]
    answers = data / "possible_answer" / file.name
    truths = read_lines(answers, MEND, ("id", "ground_truth"))
    both = with_answers(given, truths, answers, MEND)
    return [_entry(category, entry, answer["ground_truth"]) for entry, answer in both]


def _entry(category: str, entry: Mapping[str, Any], truth: Sequence[Any] | None) -> Entry:
    functions = tuple(entry["function"])
    named = next(
        (n for c, n in (("_javascript", "JavaScript"), ("_java", "Java")) if c in category), ""
    )
    shown = [in_language(f, named) for f in functions] if named else functions
    return Entry(
        id=entry["id"],
        category=category,
        messages=tuple(Message(role=m["role"], content=m["content"]) for m in entry["question"][0]),
        functions=functions,
        tools=tuple(map(calls.tool, shown)),
        truths=None if truth is None else tuple(truth),
    )


def in_language(function: Mapping[str, Any], language: str) -> dict[str, Any]:
    """A function whose values are to be written as text in another language.

    What their types are there is said in words, as bfcl-eval does (ours are other words).
    """
    parameters = function["parameters"]
    properties = {
        name: {
            "type": "string",
            "description": f"{schema.get('description', '')} {_in_words(schema, language)}".strip(),
        }
        for name, schema in parameters["properties"].items()
    }
    return {
        **function,
        "description": f"{function.get('description', '')} (a function of {language})".strip(),
        "parameters": {**parameters, "properties": properties},
    }


def _in_words(schema: Mapping[str, Any], language: str) -> str:
    kind = "value of any type" if schema["type"] == "any" else schema["type"]
    words = f"As text: a {language} {kind}, written as in source code."
    if inner := schema.get("items", {}).get("type"):
        words += f" Its items are of type {inner}."
    if "properties" in schema:
        words += f" Its fields: {json.dumps(schema['properties'])}"
    return words


@functools.cache
def language_of(category: str) -> matching.Language:
    """How values are read in a category."""
    if "simple_java" not in category:
        return matching.PYTHON
    name = "js" if category.endswith("javascript") else "java"
    try:
        types = importlib.import_module("bfcl_eval.constants.type_mappings")
        reader = importlib.import_module(
            f"bfcl_eval.eval_checker.ast_eval.type_convertor.{name}_type_converter"
        )
        convert = getattr(reader, f"{name}_type_converter")
        known = getattr(types, f"{name.upper()}_TYPE_CONVERSION")
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{category} of BFCL cannot be judged ({error}); {MEND}") from None
    return matching.Language(
        types=known, lists=("Array", "ArrayList", "array"), read=_reader(convert)
    )


def _reader(convert: Callable[..., Any]) -> Callable[[Any, str, str | None], Any]:
    def read(value: Any, kind: str, inner: str | None) -> Any:
        if type(value) is not str:
            return None  # of no type that is wanted
        return convert(value, kind, inner) if inner else convert(value, kind)

    return read


def course(entry: Entry, play: int) -> Course:
    """One reply, and whether its calls are right."""
    reply = yield Say(messages=entry.messages, tools=entry.tools)
    if reply is None:
        return Outcome(score=0.0, won=False, details={"lost": "no room in the context"})
    made = calls.made(reply.text, entry.tools)
    if entry.truths is not None:
        language = language_of(entry.category)
        lost = matching.mismatch(entry.functions, made, entry.truths, language)
    elif entry.category.endswith("irrelevance"):
        lost = "a call where no function fits" if made else ""
    else:
        lost = "" if made else "no call"
    answer = json.dumps([{"name": c.name, "arguments": c.named} for c in made])
    return Outcome(score=float(not lost), won=not lost, answer=answer, details={"lost": lost})


SETTINGS = Settings(plays=1, sampling=Sampling(temperature=0.001), reply=4096, context=16384)


@contextlib.contextmanager
def open_non_live(data: Path | None = None) -> Iterator[Listed]:
    """BFCL v4 non-live: 1,390 entries of bfcl-eval's authors, from its data or a folder like that.

    Settings of bfcl-eval 2026.3.23: temperature 0.001, at most 4,096 tokens a reply
    (`base_oss_handler`); no system prompt but the entries' own. The context of 16,384 is ours. The
    leaderboard's figures are unweighted means over categories, with those of simple_* taken as one.
    """
    yield _suite("bfcl_non_live", NON_LIVE, data)


@contextlib.contextmanager
def open_live(data: Path | None = None) -> Iterator[Listed]:
    """BFCL v4 live: 2,251 entries that users contributed; settings as in `open_non_live`."""
    yield _suite("bfcl_live", LIVE, data)


def _suite(name: str, categories: Sequence[str], data: Path | None) -> Listed:
    folder = data or package() / "data"
    items = [
        Item(id=entry.id, group=f"BFCL v4 {each}", course=functools.partial(course, entry))
        for each in categories
        for entry in entries(folder, each)
    ]
    return Listed(name=name, settings=SETTINGS, all=tuple(items), tools=True)
