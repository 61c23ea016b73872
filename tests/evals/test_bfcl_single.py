"""BFCL single-turn: the matcher by hand and against bfcl-eval's own, and the course."""

import copy
import importlib.util
import json
import random
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from spade_jax.evals import bfcl_single, matching
from spade_jax.evals.bfcl_single import Entry
from spade_jax.evals.calls import Call, read_call, read_calls, repaired
from spade_jax.types import UsageError
from tests.evals.courses import drive
from tests.evals.tool_play import call_text, is_golden

ROUTE = {
    "name": "maps.route",
    "description": "Find a way.",
    "parameters": {
        "type": "dict",
        "properties": {
            "to": {"type": "string", "description": "Where."},
            "speed": {"type": "float"},
            "stops": {"type": "array", "items": {"type": "string"}},
            "by": {"type": "dict", "properties": {"kind": {"type": "string"}}},
            "count": {"type": "integer"},
            "legs": {"type": "tuple", "items": {"type": "dict"}},
        },
        "required": ["to"],
    },
}
TRUE = {
    "to": ["New York", "NYC"],
    "speed": [3.0, ""],
    "stops": [["Rome", "Paris"], ""],
    "by": [{"kind": ["train", ""], "class": [1, ""]}, ""],
    "count": [2, "n", ""],
    "legs": [[{"a": [1]}], ""],
}


@pytest.mark.parametrize(
    ("named", "right"),
    [
        ({"to": "new-york."}, True),
        ({"to": "Boston"}, False),
        ({}, False),
        ({"to": "NYC", "speed": 3}, True),
        ({"to": "NYC", "speed": "3"}, False),
        ({"to": "NYC", "stops": ["rome", "PARIS"]}, True),
        ({"to": "NYC", "stops": ["Paris", "Rome"]}, False),
        ({"to": "NYC", "stops": ["Rome", 1]}, False),
        ({"to": "NYC", "by": {"kind": "Train"}}, True),
        ({"to": "NYC", "by": {"class": 1}}, True),
        ({"to": "NYC", "by": {"kind": "train", "x": 1}}, False),
        ({"to": "NYC", "by": "train"}, False),
        ({"to": "NYC", "count": True}, False),
        ({"to": "NYC", "count": 2.0}, False),
        ({"to": "NYC", "legs": [{"a": 1}]}, True),
        ({"to": "NYC", "legs": [{"a": 2}]}, False),
        ({"to": "NYC", "via": "Rome"}, False),
    ],
)
def test_matcher(named: dict[str, Any], right: bool) -> None:
    made = [Call(name="maps.route", named=named)]
    assert (matching.mismatch([ROUTE], made, [{"maps.route": TRUE}]) == "") is right


def test_a_value_of_another_type_stands_for_a_variable() -> None:
    truth = [{"maps.route": {"to": ["NYC"], "count": ["total"]}}]
    for count, right in (("total", True), ("Total", False), (2, False)):
        made = [Call(name="maps.route", named={"to": "NYC", "count": count})]
        assert (matching.mismatch([ROUTE], made, truth) == "") is right


def test_calls_in_any_order_each_once() -> None:
    truths = [{"maps.route": {"to": [place]}} for place in ("Rome", "Paris")]
    rome, paris = (Call(name="maps.route", named={"to": place}) for place in ("Rome", "Paris"))
    assert matching.mismatch([ROUTE], [paris, rome], truths) == ""
    assert matching.mismatch([ROUTE], [rome, rome], truths) == "to is 'Rome'"
    assert matching.mismatch([ROUTE], [rome], truths) == "1 calls, not 2"
    other = Call(name="maps", named={"to": "Rome"})
    assert matching.mismatch([ROUTE], [other, paris], truths).startswith("maps was called")


def test_written_calls_are_read_not_run() -> None:
    call = read_call("f('a', -1, b=[1, {'c': None}], d=2.5)")
    assert call == Call(name="f", values=("a", -1), named={"b": [1, {"c": None}], "d": 2.5})
    assert [c.name for c in read_calls("[a.b(x=1), c()]")] == ["a.b", "c"]
    for text in ("f(g())", "f(x)", "f(*a)", "f(**a)", "1", "f(1+1)", "f(", "(lambda: 1)()"):
        with pytest.raises(ValueError):
            read_call(text)


def test_types_of_schemas_are_repaired() -> None:
    assert repaired(ROUTE["parameters"])["properties"] == {
        "to": {"type": "string", "description": "Where."},
        "speed": {"type": "number"},
        "stops": {"type": "array", "items": {"type": "string"}},
        "by": {"type": "object", "properties": {"kind": {"type": "string"}}},
        "count": {"type": "integer"},
        "legs": {"type": "array", "items": {"type": "object"}},
    }
    named_type = {"type": "dict", "properties": {"type": {"type": "any"}}}
    assert repaired(named_type)["properties"] == {"type": {"type": "string"}}
    assert repaired({"type": "list(enum)"}) == {"type": "array", "items": {"type": "string"}}
    assert repaired({"type": "objectArray"}) == {"type": "array", "items": {"type": "object"}}


# -- the course -------------------------------------------------------------------------------


def lines(file: Path, *objects: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(each) + "\n" for each in objects))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for category in (*bfcl_single.NON_LIVE, *bfcl_single.LIVE):
        entry = {
            "id": f"{category}_0",
            "question": [[{"role": "user", "content": "To New York, please."}]],
            "function": [ROUTE],
        }
        lines(tmp_path / f"BFCL_v4_{category}.json", entry)
        truth = {"id": f"{category}_0", "ground_truth": [{"maps.route": TRUE}]}
        if not category.endswith(bfcl_single.UNJUDGED):
            lines(tmp_path / "possible_answer" / f"BFCL_v4_{category}.json", truth)
    return tmp_path


GO = call_text("maps.route", {"to": "NYC"})


@pytest.mark.parametrize(
    ("category", "reply", "score"),
    [
        ("live_simple", GO, 1.0),
        ("live_simple", f"<think>{GO}</think>Take the train.", 0.0),
        ("live_simple", GO + GO, 0.0),
        ("live_multiple", GO[:-12], 0.0),
        ("live_irrelevance", "Nothing fits.", 1.0),
        ("live_irrelevance", GO, 0.0),
        ("live_irrelevance", GO[:-12], 1.0),
        ("live_relevance", GO, 1.0),
        ("live_relevance", "Hm.", 0.0),
        ("live_parallel", None, 0.0),
    ],
)
def test_course(data: Path, category: str, reply: str | None, score: float) -> None:
    with bfcl_single.open_live(data) as suite:
        [item] = [item for item in suite.items() if item.id == f"{category}_0"]
    outcome, log = drive(item.course(0), [reply])
    assert (outcome.score, outcome.won) == (score, score == 1.0)
    assert len(log.says) == 1


def test_prompts_as_a_model_reads_them(data: Path) -> None:
    with bfcl_single.open_non_live(data) as suite:
        for item in suite.items():
            _, log = drive(item.course(0), [None])
            named = {"BFCL v4 simple_java": "bfcl_java"}.get(item.group, "bfcl_single")
            if item.group != "BFCL v4 simple_javascript":
                assert is_golden(named, log.says[0])


def test_truncated_data(data: Path) -> None:
    file = data / "BFCL_v4_parallel.json"
    file.write_text(file.read_text()[:-20])
    with pytest.raises(UsageError, match="line 1 of .*BFCL_v4_parallel.json is damaged"):
        with bfcl_single.open_non_live(data):
            pass


# -- the package itself -----------------------------------------------------------------------


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """bfcl-eval's own verdict; the table of models it imports needs clients of many servers."""
    if importlib.util.find_spec("bfcl_eval") is None:
        pytest.skip("bfcl-eval is not installed (launch/install_eval.sh)")
    name = "bfcl_eval.constants.model_config"
    plain = types.SimpleNamespace(underscore_to_dot=False)
    table = types.SimpleNamespace(MODEL_CONFIG_MAPPING={"model": plain})
    monkeypatch.setitem(sys.modules, name, table)
    checker = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
    language = importlib.import_module("bfcl_eval.constants.enums").Language
    languages = {"simple_java": language.JAVA, "simple_javascript": language.JAVASCRIPT}

    def valid(entry: Entry, made: Sequence[Call]) -> bool:
        verdict = checker.ast_checker(
            list(entry.functions),
            [{call.name: call.named} for call in made],
            list(entry.truths),
            languages.get(entry.category, language.PYTHON),
            entry.category,
            "model",
        )
        return verdict["valid"]

    return valid


def true_calls(entry: Entry, rng: random.Random) -> list[Call]:
    """Calls with values drawn from those that will do."""
    made = []
    for truth in entry.truths:
        [(name, allowed)] = truth.items()
        drawn = {p: drawn_value(rng.choice(o), rng) for p, o in allowed.items() if o}
        made.append(Call(name=name, named={p: v for p, v in drawn.items() if v != ""}))
    return made


def drawn_value(value: Any, rng: random.Random) -> Any:
    if isinstance(value, Mapping):
        options = {k: o if isinstance(o, list) else [o] for k, o in value.items()}
        return {k: drawn_value(rng.choice(o), rng) for k, o in options.items() if o and o[0] != ""}
    return [drawn_value(v, rng) for v in value] if isinstance(value, list) else value


def altered(made: Sequence[Call], rng: random.Random) -> list[Call]:
    """The calls with one thing changed: a call or a value more, less, or another."""
    calls = copy.deepcopy(list(made))
    call = rng.choice(calls)
    named = dict(call.named)
    at = calls.index(call)
    match rng.randrange(6):
        case 0:
            return [*calls, call]
        case 1:
            del calls[at]
            return calls
        case 2:
            return calls[::-1]
        case 3:
            named["more"] = 1
        case 4 if named:
            del named[rng.choice(list(named))]
        case _ if named:
            name = rng.choice(list(named))
            value = named[name]
            others = [str(value), [value], {}, "", 0, True, None, []]
            if isinstance(value, list) and value:
                others += [value[::-1], [*value[:-1], rng.choice([str(value[-1]), 1, None])]]
            if isinstance(value, dict) and value:
                others += [dict(list(value.items())[:-1]), {**value, rng.choice(list(value)): "x"}]
            named[name] = rng.choice(others)
    calls[at] = Call(name=call.name, named=named)
    return calls


@pytest.mark.parametrize("category", [*bfcl_single.NON_LIVE, *bfcl_single.LIVE])
def test_as_the_package_judges(checker: Callable[..., bool], category: str) -> None:
    if category.endswith(bfcl_single.UNJUDGED):
        return
    rng = random.Random(category)
    language = bfcl_single.language_of(category)
    verdicts = set()
    for entry in bfcl_single.entries(bfcl_single.package() / "data", category)[:200]:
        made = true_calls(entry, rng)
        for calls in (made, altered(made, rng), altered(made, rng)):
            right = matching.mismatch(entry.functions, calls, entry.truths, language) == ""
            assert right == checker(entry, calls), (entry.id, calls)
            verdicts.add(right)
    assert verdicts == {True, False}


def test_entries_of_the_package(checker: Callable[..., bool]) -> None:
    counts = {}
    for opened in (bfcl_single.open_non_live(), bfcl_single.open_live()):
        with opened as suite:
            counts[suite.name] = len(suite.items())
            assert len({item.id for item in suite.items()}) == len(suite.items())
            told = [next(item.course(0)).tools for item in suite.items()]
            assert '"type": "dict"' not in json.dumps(told)
    assert counts == {"bfcl_non_live": 1390, "bfcl_live": 2251}
