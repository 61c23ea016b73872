"""The fixed pool: what is read from where, what is refused, in which order epochs draw from it."""

import collections
import hashlib
import json
from pathlib import Path

import pytest

from spade_jax.design import fixed_pool
from spade_jax.design.corpus import Corpus
from spade_jax.design.families import FAMILIES
from spade_jax.design.fixed_pool import bundled_pool, draw
from spade_jax.envs.sandbox import Reset, Sandbox, Step
from spade_jax.types import Environment, Kind, StepResult, UsageError

GAME = '''
"""A game as pools publish them: a plain class."""
import random


class DoublingEnv:
    def __init__(self, max_turns=3):
        self.max_turns = max_turns
        self.turn = 0

    def reset(self, seed=None):
        self.number = random.Random(seed).randint(2, 9)
        self.turn = 0
        return f"Double {self.number}. Answer in \\\\boxed{{}}.", {"number": self.number}

    def step(self, action):
        self.turn += 1
        right = action.strip() == str(2 * self.number)
        truncated = not right and self.turn >= self.max_turns
        return ("Correct." if right else "Wrong."), float(right), right, truncated, {}
'''

TOOLS = '''
"""A tool-use environment as pools publish them: the base class is there without an import."""


class StockEnv(ToolUseBaseEnv):
    def __init__(self, max_turns=10):
        super().__init__(max_turns=max_turns)
        self._tools = {
            "get_stock": {
                "description": "Stock of an item.",
                "parameters": {"item": {"type": "string"}},
            },
            "order": {"description": "Order more.", "parameters": {"item": {"type": "string"}}},
        }

    def reset(self, seed=None):
        self.turn_count = 0
        self._call_history = []
        self._current_msg = 0
        self._state = {"stock": {"bolt": 3, "nut": 8}, "ordered": []}
        self._user_messages = ["Which is scarcer, bolt or nut?", "Order the scarcer one."]
        self._message_criteria = [None, lambda state: state["ordered"] == ["bolt"]]
        self._expected_answer = "bolt"
        return f"User: {self._user_messages[0]}", {"tools": self.get_tools()}

    def tool_get_stock(self, item: str) -> str:
        return str(self._state["stock"].get(item, "unknown"))

    def tool_order(self, item: str) -> str:
        self._state["ordered"].append(item)
        return "Ordered."

    def _check_answer(self, answer):
        ordered = any(call["name"] == "order" for call in self._call_history)
        return super()._check_answer(answer) and ordered

    def solution(self):
        call = '<tool_call>{"name": "%s", "arguments": {"item": "bolt"}}</tool_call>'
        return [call % "get_stock", call % "order", "<answer>bolt</answer>"]
'''


def row(name: str, skill: str, code: str) -> dict[str, str]:
    return {
        "game_id": name,
        "file_name": f"{name}.py",
        "skill": skill,
        "sha256": hashlib.sha256(code.encode()).hexdigest(),
        "code": code,
    }


ROWS = [row("g1", "Mathematical Reasoning", GAME), row("t1", "Supply Chains", TOOLS)]


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    return path


def load(path: Path, size: int = 0) -> list[Environment]:
    with Corpus("", seed=1, max_words=24) as corpus:
        return fixed_pool.load_pool(str(path), 3, size, ("Optimization",), corpus)


def refusal(path: Path, size: int = 0) -> str:
    with pytest.raises(UsageError) as caught:
        load(path, size)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- published forms --------------------------------------------------------------------------


def test_a_table_of_json_lines(tmp_path: Path) -> None:
    assert load(write_jsonl(tmp_path / "pool.jsonl", ROWS)) == [
        Environment(
            id="fixed-00000-g1",
            kind=Kind.GAME,
            skill="Mathematical Reasoning",
            code=GAME,
            iteration=0,
        ),
        Environment(
            id="fixed-00001-t1", kind=Kind.TOOL_USE, skill="Supply Chains", code=TOOLS, iteration=0
        ),
    ]


def test_a_table_of_parquet_is_the_same(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist([each | {"more": 1} for each in ROWS])
    parquet.write_table(table, tmp_path / "part-0.parquet")
    expected = load(write_jsonl(tmp_path / "pool.jsonl", ROWS))
    assert load(tmp_path / "part-0.parquet") == expected
    (tmp_path / "pool.jsonl").unlink()
    assert load(tmp_path) == expected, "a folder of tables"


def test_a_folder_of_programs(tmp_path: Path) -> None:
    (tmp_path / "pool" / "Data Retrieval").mkdir(parents=True)
    (tmp_path / "pool" / "Data Retrieval" / "stock.py").write_text(TOOLS)
    (tmp_path / "pool" / "doubling.py").write_text(GAME)
    (tmp_path / "pool" / "README.md").write_text("Environments.")
    assert [(e.id, e.kind, e.skill, e.code) for e in load(tmp_path / "pool")] == [
        ("fixed-00000-stock", Kind.TOOL_USE, "Data Retrieval", TOOLS),
        ("fixed-00001-doubling", Kind.GAME, "pool", GAME),
    ]


def test_a_table_of_files(tmp_path: Path) -> None:
    """Without the code in it, a table names the file beside it and holds its checksum."""
    (tmp_path / "g1.py").write_text(GAME)
    rows = [{key: value for key, value in ROWS[0].items() if key != "code"}]
    table = write_jsonl(tmp_path / "pool.jsonl", rows)
    assert [e.code for e in load(table)] == [GAME]
    (tmp_path / "g1.py").write_text(GAME + "\n")
    assert "1 of 1 programs" in refusal(table)


BOXES = """import re


class EchoEnv:
    def reset(self, seed=None):
        return "Answer 7 in \\\\boxed{}.", {}

    def step(self, action):
        found = re.search(r"\\\\boxed\\{(.*?)\\}", action)
        right = found is not None and found.group(1) == "7"
        return "Right." if right else "Wrong.", float(right), True, False, {}
"""


def test_a_game_that_looks_for_the_box_itself_is_given_it(tmp_path: Path) -> None:
    [game] = load(write_jsonl(tmp_path / "pool.jsonl", [row("g2", "Optimization", BOXES)]))
    with Sandbox() as sandbox:
        for action in ("7", "\\boxed{7}"):
            instance = sandbox.open(game.code, game.kind)
            sandbox.exchange([(instance, Reset(0))])
            [result] = sandbox.exchange([(instance, Step(action))])
            assert result.reward == 1.0, action


def test_the_tables_of_a_folder_say_what_is_in_it(tmp_path: Path) -> None:
    """Its files are read for their rows, and so with their checksums and skills."""
    (tmp_path / "g1.py").write_text(GAME)
    (tmp_path / "__init__.py").write_text("")
    rows = [{key: value for key, value in ROWS[0].items() if key != "code"}]
    write_jsonl(tmp_path / "pool.jsonl", rows)
    assert [(e.skill, e.code) for e in load(tmp_path)] == [("Mathematical Reasoning", GAME)]
    (tmp_path / "g1.py").write_text(GAME + "\n")
    assert "1 of 1 programs" in refusal(tmp_path)


def test_what_is_hidden_in_a_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints" / "doubling-checkpoint.py").write_text(GAME)
    (tmp_path / "._doubling.py").write_bytes(b"\xff")
    (tmp_path / "doubling.py").write_text(GAME)
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [e.id for e in load(tmp_path)] == ["fixed-00000-doubling"]


def test_what_comes_from_outside_runs_as_it_is(tmp_path: Path) -> None:
    game, tools = load(write_jsonl(tmp_path / "pool.jsonl", ROWS))
    call = '<tool_call>{"name": "%s", "arguments": {"item": "bolt"}}</tool_call>'
    with Sandbox() as sandbox:

        def play(environment: Environment, *actions: str) -> list[StepResult]:
            instance = sandbox.open(environment.code, environment.kind, trusted=True)
            calls = (Reset(5), *map(Step, actions))
            return [sandbox.exchange([(instance, each)])[0] for each in calls]

        first, wrong, right = play(game, "1", str(2 * 6))
        assert first.observation == "Double 6. Answer in \\boxed{}."  # randint(2, 9) of seed 5
        assert (wrong.reward, wrong.terminated) == (0.0, False)
        assert (right.reward, right.terminated) == (1.0, True)
        shown = play(tools, call % "get_stock", call % "order", "<answer>bolt</answer>")
        assert "Which is scarcer" in shown[0].observation and "get_stock" in shown[0].observation
        assert "3" in shown[1].observation and "Order the scarcer one." in shown[1].observation
        assert "All requests are done." in shown[2].observation
        assert (shown[3].reward, shown[3].terminated) == (1.0, True)
        early = play(tools, "<answer>bolt</answer>")
        assert (early[1].reward, early[1].terminated) == (0.0, True)


# -- what is refused --------------------------------------------------------------------------


def test_every_checksum_is_looked_at(tmp_path: Path) -> None:
    rows = [dict(each) for each in ROWS * 3]
    for n in (1, 5):
        rows[n]["code"] += "#"
    sentence = refusal(write_jsonl(tmp_path / "pool.jsonl", rows))
    assert sentence == (
        f"2 of 6 programs in {tmp_path}/pool.jsonl differ from their sha256: row 2 (t1.py), "
        "row 6 (t1.py); take the table from its source again"
    )
    rows[1]["code"], rows[5]["code"] = TOOLS, TOOLS
    rows[0]["sha256"] = rows[0]["sha256"].upper()
    assert len(load(write_jsonl(tmp_path / "pool.jsonl", rows))) == 6


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("pool.jsonl", '{"skill": "a"}\n', ("row 1 of", "sha256", "a row has game_id")),
        ("pool.jsonl", '{"skill": "a", "sha256": ""}\n', ("row 1 of", "neither code nor file")),
        ("pool.jsonl", "\n{\n", ("line 2 of", "is no JSON", "from its source again")),
        ("pool.jsonl", '{"skill": "a", "sha256": "", "file_name": "x.py"}', ("x.py cannot be",)),
        ("pool.parquet", "PAR", ("cannot be read as Parquet", "from its source again")),
        ("pool.csv", "code", ("holds no environments", ".jsonl or .parquet table")),
    ],
)
def test_tables_that_are_none(tmp_path: Path, name: str, text: str, parts: tuple[str, ...]) -> None:
    (tmp_path / name).write_text(text)
    sentence = refusal(tmp_path / name)
    assert all(part in sentence for part in (str(tmp_path), *parts)), sentence


@pytest.mark.parametrize("name", ["../secret.py", "/etc/hostname", "a/../../secret.py", "a\0.py"])
def test_a_table_reaches_no_file_outside_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.py").write_text(GAME)
    (tmp_path / "pool" / "a").mkdir(parents=True)
    rows = [row("g1", "a", GAME) | {"file_name": name, "code": None}]
    sentence = refusal(write_jsonl(tmp_path / "pool" / "pool.jsonl", rows))
    assert "row 1 of" in sentence and "is no file in the folder of the table" in sentence


def test_a_table_that_is_nested_without_end(tmp_path: Path) -> None:
    (tmp_path / "pool.jsonl").write_text("[" * 100_000 + "]" * 100_000)
    assert "line 1 of" in refusal(tmp_path / "pool.jsonl")


def test_parquet_that_is_no_utf8(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    ends = pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0")
    code = pyarrow.Array.from_buffers(pyarrow.string(), 1, [None, ends, pyarrow.py_buffer(b"\xff")])
    table = pyarrow.table({"skill": ["a"], "sha256": ["0"], "code": code})
    parquet.write_table(table, tmp_path / "pool.parquet")
    assert "cannot be read as Parquet ('utf-8'" in refusal(tmp_path / "pool.parquet")


def test_places_that_hold_none(tmp_path: Path) -> None:
    assert "cannot be read (no such file" in refusal(tmp_path / "absent.jsonl")
    assert "holds no environments; set environments.path to a folder" in refusal(tmp_path)
    (tmp_path / "a.py").write_bytes(b"\xff\xfe")
    assert "a.py is no UTF-8 text" in refusal(tmp_path)


def test_a_size_takes_some_of_all(tmp_path: Path) -> None:
    rows = [row(f"g{n}", "a", f"{GAME}# {n}\n") for n in range(20)]
    table = write_jsonl(tmp_path / "pool.jsonl", rows)
    some, pool = load(table, 8), load(table)
    assert len({e.id for e in some}) == 8 and [e for e in pool if e in some] == some
    assert some != pool[:8]
    assert "holds 20 environments, but environments.size is 21" in refusal(table, 21)


# -- the bundled pool -------------------------------------------------------------------------


def bundled(size: int, *skills: str) -> list[Environment]:
    with Corpus("", seed=1, max_words=24) as corpus:
        return bundled_pool(3, size, skills, corpus)


def test_families_of_the_skills_take_turns() -> None:
    environments = bundled(8, "Pattern Recognition", "Optimization")
    wanted = [
        f.skill for f in FAMILIES.values() if f.skill in ("Pattern Recognition", "Optimization")
    ]
    assert [e.skill for e in environments] == (wanted * 8)[:8]
    assert len({e.id for e in environments}) == 8
    assert environments == bundled(8, "Pattern Recognition", "Optimization")


def test_skills_without_a_family_are_refused() -> None:
    with pytest.raises(UsageError, match="of the skills Memory Recall, .* choose skills among"):
        bundled(4, "Memory Recall")


# -- drawing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "count"), [(10, 4), (10, 7), (12, 4), (5, 5), (7, 1), (6, 5)])
def test_each_comes_once_a_pass_and_once_an_epoch(size: int, count: int) -> None:
    environments = bundled(size, "Optimization")
    epochs = [[e.id for e in draw(environments, count, n, seed=5)] for n in range(4 * size)]
    assert all(len(set(drawn)) == count for drawn in epochs)
    stream = [name for drawn in epochs for name in drawn]
    passes = [tuple(stream[n : n + size]) for n in range(0, len(stream), size)]
    assert all(len(set(each)) == size for each in passes)
    assert len(set(passes)) > 1, "each pass has an order of its own"
    places = collections.Counter(each.index(environments[0].id) for each in passes)
    assert max(places.values()) < len(passes)


def test_where_passes_meet_what_would_repeat_comes_later() -> None:
    order = [3, 1, 4, 0, 5, 2]
    fixed_pool._part(order, had={1, 3}, first=2)
    assert order == [4, 0, 3, 1, 5, 2]
    order = [3, 1, 4, 0, 5, 2]
    fixed_pool._part(order, had={0, 5}, first=3)
    assert order == [3, 1, 4, 0, 5, 2]
    order = [0, 1, 2, 3]
    fixed_pool._part(order, had={0, 2}, first=2)
    assert order == [3, 1, 2, 0]
