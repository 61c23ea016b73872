"""BFCL multi-turn, on two entries of our own with simulators of our own, and on the package's."""

import collections
import dataclasses
import importlib.util
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spade_jax.evals import bfcl
from spade_jax.evals.bfcl import Entry, Source
from spade_jax.evals.calls import Call
from spade_jax.evals.suites import Listed, Outcome
from spade_jax.evals.worlds import WorldLost, open_simulators
from spade_jax.types import UsageError
from tests.evals import scripted
from tests.evals.courses import Log, drive
from tests.evals.oracles import of_multi_turn, true_calls
from tests.evals.tool_play import call_text, is_golden, written

SIMULATORS = """
import os, time
class Shelf:
    def __init__(self): self._log = []; self.books = None
    def _load_scenario(self, scenario, long_context=False):
        self.books = list(scenario["books"]); self.long = long_context
    def add(self, title, copies=1):
        self._log.append(title); self.books += [title] * copies
        return {"books": len(self.books)}
    def take(self, title):
        if title not in self.books: raise ValueError(f"no {title}")
        self.books.remove(title)
        return {"taken": title}
    def zone(self): return os.environ["TZ"] + time.tzname[0]
    def hang(self):
        while True: time.sleep(1)
    def crash(self): os._exit(1)
class Lamp:
    def __init__(self): self.on = False
    def switch(self): self.on = not self.on; return self.on
"""
ADD = {
    "name": "add",
    "description": "Put a book on the shelf.",
    "parameters": {
        "type": "dict",
        "properties": {
            "title": {"type": "string", "description": "Its title."},
            "copies": {"type": "integer", "description": "How many.", "default": 1},
        },
        "required": ["title"],
    },
}
TAKE = {
    "name": "take",
    "description": "Take a book from the shelf.",
    "parameters": {
        "type": "dict",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
    },
}
SWITCH = {"name": "switch", "description": "Press it.", "parameters": {"type": "dict"}}


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


ENTRIES = {
    "base": {
        "id": "multi_turn_base_0",
        "question": [said("Shelve Emma twice, and light!"), said("Thanks."), said("Take Emma.")],
        "initial_config": {"Shelf": {"books": ["Dune"]}},
        "involved_classes": ["Shelf", "Lamp"],
    },
    "miss_func": {
        "id": "multi_turn_miss_func_0",
        "question": [said("Take Dune."), [], said("Bring it back.")],
        "initial_config": {"Shelf": {"books": ["Dune"]}},
        "involved_classes": ["Shelf"],
        "missed_function": {"1": ["take"]},
    },
}
TRUTHS = {
    "base": [["add('Emma', copies=2)", "switch()"], [], ["take(title='Emma')"]],
    "miss_func": [[], ["take(title='Dune')"], ["add(title='Dune')"]],
}


SMALL = tuple(ENTRIES)


def lines(file: Path, *objects: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(each) + "\n" for each in objects))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("bfcl")
    (folder / "simulated_things.py").write_text(SIMULATORS)
    lines(folder / "multi_turn_func_doc" / "shelf.json", ADD, TAKE)
    lines(folder / "multi_turn_func_doc" / "lamp.json", SWITCH)
    for category, entry in ENTRIES.items():
        name = f"BFCL_v4_multi_turn_{category}.json"
        lines(folder / name, entry)
        truth = {"id": entry["id"], "ground_truth": TRUTHS[category]}
        lines(folder / "possible_answer" / name, truth)
    return Source(
        data=folder,
        imports=folder,
        documents={"Shelf": "shelf.json", "Lamp": "lamp.json"},
        modules=dict.fromkeys(("Shelf", "Lamp"), "simulated_things"),
        stateless=("Lamp",),
        steps=3,
        revealed="There is more now.",
    )


@pytest.fixture(scope="module")
def suite(source: Source) -> Iterator[Listed]:
    with bfcl.open_multi_turn(SMALL, source) as opened:
        yield opened


@pytest.fixture(scope="module")
def entries(source: Source) -> list[Entry]:
    return [entry for category in SMALL for entry in bfcl.entries(source, category)]


def play(suite: Listed, number: int, replies: list[str | None]) -> tuple[Outcome, Log]:
    return drive(suite.items()[number].course(0), replies)


@pytest.mark.parametrize("number", (0, 1))
def test_true_calls_win_and_one_less_loses(
    suite: Listed, entries: list[Entry], number: int
) -> None:
    entry = entries[number]
    outcome, _ = play(suite, number, true_calls(entry))
    assert (outcome.score, outcome.won, outcome.details["lost"]) == (1.0, True, "")
    outcome, _ = play(suite, number, true_calls(entry, drop=True))
    assert (outcome.score, outcome.won) == (0.0, False)
    assert play(suite, number, ["I would rather talk."] * 3)[0].score == 0.0


def test_what_is_said_and_shown(suite: Listed, entries: list[Entry]) -> None:
    outcome, log = play(suite, 1, true_calls(entries[1]))
    said = ["Take Dune.", "There is more now.", '{"taken": "Dune"}', "Bring it back."]
    assert log.texts() == [*said, '{"books": 1}']
    names = [say.tools and [t["function"]["name"] for t in say.tools] for say in log.says]
    assert names == [["add"], ["add", "take"], None, None, None]
    assert json.loads(outcome.answer)[1] == [{"name": "take", "arguments": {"title": "Dune"}}]
    assert [m.role for say in log.says for m in say.messages] == ["user", "user", "tool"] + [
        *("user", "tool")
    ]


def test_prompt_as_a_model_reads_it(suite: Listed, entries: list[Entry]) -> None:
    _, log = play(suite, 0, true_calls(entries[0]))
    assert is_golden("bfcl_multi_turn", log.says[0])


EMMA = call_text("add", {"title": "Emma", "copies": 2})
LIGHT, TAKEN = call_text("switch", {}), call_text("take", {"title": "Emma"})


@pytest.mark.parametrize(
    ("replies", "lost"),
    [
        # Calls one by one, in another order, with one that fails and one too many that is undone.
        ([LIGHT, TAKEN, EMMA, "Done.", "Welcome.", TAKEN, "."], ""),
        ([f"<think>{LIGHT}</think>{EMMA}", "."], "state: Lamp.on"),
        # The same state, but what the true call answers was never seen.
        (
            [LIGHT, call_text("add", {"title": "Emma", "copies": 3}), TAKEN, "."],
            'answer missing: {"books": 3}',
        ),
        ([EMMA + LIGHT, ".", LIGHT, ".", TAKEN, "."], "state: Lamp.on"),
        ([EMMA + LIGHT, ".", ".", "No."], "no call in a turn that needs one"),
        ([EMMA + LIGHT[:-5], "."], "no call in a turn that needs one"),
        ([EMMA + LIGHT, None], "no room in the context"),
        ([LIGHT] * 4, "calls after 3 steps"),
        ([call_text("crash", {})], "the process of the simulator has ended"),
    ],
)
def test_how_an_entry_is_lost(suite: Listed, replies: list[str | None], lost: str) -> None:
    outcome, _ = play(suite, 0, replies)
    assert outcome.details["lost"] == lost
    assert outcome.score == float(not lost)
    assert not outcome.failed


def test_errors_are_answers_and_the_model_text_is_never_code(suite: Listed) -> None:
    calls = [
        call_text("take", {"title": "Emma"}),
        call_text("take", {"title": "__import__('os')._exit(1)"}),
        call_text("__import__('os')._exit", {"code": 1}),
        call_text("_load_scenario", {"scenario": {"books": []}}),
        call_text("books", {}),
        call_text("add", {"name": "Emma"}),
        call_text("zone", {}),
    ]
    _, log = play(suite, 0, ["".join(calls), None])
    failed = "Error during execution: "
    assert log.texts()[1:] == [
        f"{failed}no Emma",
        f"{failed}no __import__('os')._exit(1)",
        f"{failed}name '__import__('os')._exit' is not defined",
        f"{failed}name '_load_scenario' is not defined",
        f"{failed}name 'books' is not defined",
        f"{failed}Shelf.add() got an unexpected keyword argument 'name'",
        "UTCUTC",
    ]


def test_worlds_end_with_their_conversation(
    source: Source, suite: Listed, entries: list[Entry]
) -> None:
    replies = true_calls(entries[0])
    for _ in range(3):
        assert play(suite, 0, replies)[0].won
    with open_simulators([entries[0].parts], [source.imports], "mend") as simulators:
        together = [simulators.open() for _ in range(2)]
        for worlds in together:
            worlds.build(["model"], entries[0].parts)
            call = Call(name="add", values=("Emma",), named={})
            assert worlds.call("model", [call]) == ['{"books": 2}']
        for worlds in together:
            worlds.close()
    course = suite.items()[0].course(0)
    opened = course.send(None).do()
    course.send(opened)
    course.close()
    with pytest.raises(WorldLost, match="has ended"):
        opened.call("model", [])


def test_a_call_without_end_loses_the_entry(
    suite: Listed, entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spade_jax.evals.worlds.ANSWER_SECONDS", 0.3)
    outcome, _ = play(suite, 0, [call_text("hang", {})])
    assert outcome.details["lost"] == "the simulator gave no answer within 0.3 s"
    assert play(suite, 1, true_calls(entries[1]))[0].won


def test_missing_package_names_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="bfcl-eval; run bash launch/install_eval.sh"):
        bfcl.installed()


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("BFCL_v4_multi_turn_base.json", '{"id": "multi_turn_b', "line 1 of .* cut off"),
        ("BFCL_v4_multi_turn_base.json", '{"id": "0"}\n', "has no question and no initial_config"),
        ("BFCL_v4_multi_turn_base.json", "", "is empty"),
        (
            "possible_answer/BFCL_v4_multi_turn_base.json",
            '{"id": "multi_turn_base_0", "ground_truth": []}',
            "has 0 answers to its turns",
        ),
        (
            "possible_answer/BFCL_v4_multi_turn_base.json",
            '{"id": "1", "ground_truth": []}',
            "has no answer to multi_turn_base_0",
        ),
        ("multi_turn_func_doc/lamp.json", None, "cannot be read"),
    ],
)
def test_damaged_data(
    source: Source, tmp_path: Path, file: str, text: str | None, message: str
) -> None:
    shutil.copytree(source.data, tmp_path, dirs_exist_ok=True)
    if text is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(text)
    with pytest.raises(UsageError, match=f"{message}.*; run bash launch/install_eval.sh"):
        bfcl.entries(dataclasses.replace(source, data=tmp_path), "base")


def test_simulators_that_cannot_be_imported(source: Source) -> None:
    lacking = dataclasses.replace(source, modules=dict.fromkeys(("Shelf", "Lamp"), "not_there"))
    with pytest.raises(UsageError, match="No module named 'not_there'.*install_eval"):
        with bfcl.open_multi_turn(("base",), lacking):
            pass


def group(category: str) -> str:
    return f"BFCL v4 multi-turn: {category}"


def won(suite: Listed, entries: list[Entry], drop: bool) -> dict[str, int]:
    """Entries won by category with the true calls, through the runner."""
    speaker = of_multi_turn(entries, drop=drop)
    results = scripted.play(suite, speaker, seed=0, seats=16, patient=False)
    assert not any(result.failed for result in results)
    counts = dict.fromkeys((result.group for result in results), 0)
    for result in results:
        counts[result.group] += result.won
    return counts


@pytest.mark.parametrize("drop", (False, True))
def test_through_the_runner(suite: Listed, entries: list[Entry], drop: bool) -> None:
    expected = 0 if drop else 1
    assert won(suite, entries, drop) == dict.fromkeys(map(group, SMALL), expected)


# -- the package itself -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole() -> Iterator[Listed]:
    if importlib.util.find_spec("bfcl_eval") is None:
        pytest.skip("bfcl-eval is not installed (launch/install_eval.sh)")
    with bfcl.open_multi_turn() as opened:
        yield opened


@pytest.fixture(scope="module")
def whole_entries(whole: Listed) -> list[Entry]:
    return [e for category in bfcl.CATEGORIES for e in bfcl.entries(bfcl.installed(), category)]


@pytest.mark.slow
@pytest.mark.parametrize("drop", (False, True))
def test_all_true_calls_of_the_package(
    whole: Listed, whole_entries: list[Entry], drop: bool
) -> None:
    assert won(whole, whole_entries, drop) == dict.fromkeys(
        map(group, bfcl.CATEGORIES), 0 if drop else 200
    )


def test_entries_of_the_package(whole_entries: list[Entry]) -> None:
    turns = collections.Counter()
    for entry in whole_entries:
        turns[entry.category] += len(entry.turns)
        for tools in entry.tools:
            assert '"dict"' not in json.dumps(tools)
    assert turns == {"base": 734, "miss_func": 934, "miss_param": 934, "long_context": 734}
    assert bfcl.installed().steps == 20


def altered(entry: Entry, rng: random.Random) -> list[list[list[Call]]]:
    """The true calls by turn and step, mostly with something changed."""
    turns = []
    for truth in entry.truth:
        calls = list(truth)
        for _ in range(rng.choice((0, 0, 1)) if calls else 0):
            at = rng.randrange(len(calls))
            call = calls[at]
            match rng.randrange(5):
                case 0:
                    del calls[at]
                    break
                case 1:
                    calls.insert(at, call)
                case 2:
                    rng.shuffle(calls)
                case 3:
                    calls.insert(at, Call(name="no_such_thing", named={"a": 1}))
                case _ if call.named:
                    name = rng.choice(list(call.named))
                    named = {**call.named, name: rng.choice(["x", 1, 2.5, True, None, ["x"]])}
                    calls[at] = dataclasses.replace(call, named=named)
        cut = rng.randrange(len(calls) + 1)
        turns.append([step for step in (calls[:cut], calls[cut:]) if step])
    return turns


def in_python(call: Call) -> str:
    named = [f"{name}={value!r}" for name, value in call.named.items()]
    return f"{call.name}({', '.join([*map(repr, call.values), *named])})"


@pytest.mark.slow
@pytest.mark.parametrize("category", bfcl.CATEGORIES)
def test_as_the_package_judges(whole: Listed, whole_entries: list[Entry], category: str) -> None:
    folder = "bfcl_eval.eval_checker.multi_turn_eval"
    theirs = importlib.import_module(f"{folder}.multi_turn_checker")
    worlds = vars(importlib.import_module(f"{folder}.multi_turn_utils"))
    kept, rng, verdicts = set(worlds), random.Random(category), collections.Counter()
    lines = (bfcl.installed().data / f"BFCL_v4_multi_turn_{category}.json").read_text().splitlines()
    for number, item in enumerate(whole.items()):
        entry = whole_entries[number]
        if entry.category != category:
            continue
        turns = altered(entry, rng)
        replies = [
            reply
            for turn, tools in zip(turns, entry.tools, strict=True)
            for reply in [*(written(*step, tools=tools) for step in turn), "Done."]
        ]
        ours = drive(item.course(0), replies)[0].won
        verdict = theirs.multi_turn_checker(
            [[[in_python(call) for call in step] for step in turn] for turn in turns],
            [[in_python(call) for call in turn] for turn in entry.truth],
            json.loads(lines[number % 200]),
            category,
            "model",
        )
        for name in set(worlds) - kept:
            del worlds[name]
        assert ours == verdict["valid"], (entry.id, verdict)
        verdicts[ours] += 1
    assert min(verdicts[True], verdicts[False]) > 20
