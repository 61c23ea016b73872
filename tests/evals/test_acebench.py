"""ACEBench on a small checkout of our own, of the same form."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spade_jax.evals import acebench, acebench_agent
from spade_jax.evals.acebench_agent import coverage, wrong
from spade_jax.evals.calls import Call, read_calls
from spade_jax.evals.suites import MODEL, USER, Listed, Outcome
from spade_jax.types import UsageError
from tests.evals.courses import Log, drive
from tests.evals.tool_play import call_text, is_golden

BASE = """
class BaseApi:
    def __init__(self): self.wifi, self.logged_in = False, True
    def _load_scenario(self, scenario, long_context=False):
        self.wifi = scenario.get("wifi", self.wifi)
    def turn_on_wifi(self): self.wifi = True; return {"status": True}
"""
MESSAGES = """
from model_inference.{kind}.scenariosen.phone_platform.base_api import BaseApi
class MessageApi(BaseApi):
    def __init__(self):
        super().__init__()
        self.inbox = {{1: {{"message": "Hi"}}}}
    def send_message(self, message):
        if not self.wifi: return {{"status": False}}
        self.inbox[len(self.inbox) + 1] = {{"message": message}}
        return {{"status": True}}
"""
FUNCTIONS = [
    {"name": "turn_on_wifi", "description": "Switch it on.", "parameters": {}},
    {
        "name": "send_message",
        "description": "Send it.",
        "parameters": {
            "type": "object",
            "properties": {"message": {"type": "string"}},
            "required": ["message"],
        },
    },
]
ROOM = {
    "name": "book_room",
    "description": "Book a room.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "nights": {"type": "integer"},
            "breakfast": {"type": "boolean"},
            "guests": {"type": "list(string)"},
            "card": {"type": "object", "properties": {"number": {"type": "string"}}},
        },
        "required": ["city", "nights"],
    },
}
PINGS = {"name": "ping", "description": "Say hello.", "parameters": {}}
TRUE_ROOM = {"city": "Paris", "nights": 2, "breakfast": True, "card": {"number": "12"}}
STATE = {"1": {"message": "Hi"}, "2": {"message": "Late!"}}


def lines(file: Path, *objects: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(each) + "\n" for each in objects))


def task(category: str, entry: dict, answer: dict, root: Path) -> None:
    """One entry of a category, in both of its files."""
    folder, name = root / "data_all" / "data_en", f"data_{category}.json"
    lines(folder / name, {"id": f"{category}_0", **entry})
    lines(folder / "possible_answer" / name, {"id": f"{category}_0", **answer})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ACEBench")
    for kind in ("multi_step", "multi_turn"):
        phone = root / "model_inference" / kind / "scenariosen" / "phone_platform"
        phone.mkdir(parents=True)
        (phone / "base_api.py").write_text(BASE)
        (phone / "message.py").write_text(MESSAGES.format(kind=kind))
        task(
            f"agent_{kind}",
            {
                "question": "Tell Ann that I am late.",
                "function": FUNCTIONS,
                "initial_config": {"BaseApi": {"wifi": False}},
                "involved_classes": ["BaseApi", "MessageApi"],
            },
            {
                "ground_truth": [
                    {"BaseApi": {"wifi": True, "logged_in": True}},
                    {"MessageApi": {"inbox": STATE}},
                ],
                "mile_stone": ["[turn_on_wifi()]", "[send_message(message='Late!')]"],
            },
            root,
        )
    (root / "model_inference" / "prompt_en.py").write_text(
        "raise SystemExit\nBASE_PROMPT_EN = '''Be brief.\n'''\nTRAVEL_PROMPT_EN = ''"
    )
    (root / "model_inference" / "multi_turn" / "APIModel_user.py").write_text(
        "import gone\nSYSTEM_PROMPT_BASE_EN = 'You are a user. {instruction}'\n"
    )
    room = {"question": "user: A room in Paris\n", "function": [ROOM, PINGS], "time": "Monday"}
    room["profile"] = {"likes": "breakfast"}
    for category in acebench.NORMAL:
        task(category, room, {"ground_truth": {"book_room": TRUE_ROOM}}, root)
    for category, truth in (
        ("special_incomplete", {"book_room": ["nights"]}),
        ("special_error_param", {"nights": ["many"]}),
        ("special_irrelevant", "none"),
    ):
        task(category, room, {"ground_truth": truth}, root)
    return root


# -- one reply --------------------------------------------------------------------------------


def test_normal(root: Path) -> None:
    with acebench.open_normal(root) as suite:
        items = suite.items()
        assert items[-1].group == "ACEBench normal: atom_object_short"
        assert len({item.group for item in items}) == len(items) == len(acebench.NORMAL)
        right, _ = drive(items[0].course(0), [call_text("book_room", TRUE_ROOM)])
        assert (right.score, right.won) == (1.0, True)
        for reply in ("A room it is.", call_text("book_room", {**TRUE_ROOM, "nights": 3})):
            assert drive(items[0].course(0), [reply])[0].score == 0.0
        _, log = drive(items[0].course(0), [None])
        assert is_golden("acebench_normal", log.says[0])
        [likes] = [item for item in items if item.id == "normal_preference_0"]
        _, log = drive(likes.course(0), [None])
        assert is_golden("acebench_preference", log.says[0])


@pytest.mark.parametrize(
    ("changed", "right"),
    [
        ({"city": "paris, FRANCE"}, True),  # the true text is in it
        ({"city": "Rome"}, False),
        ({"breakfast": "true"}, True),
        ({"breakfast": 1}, False),
        ({"nights": "2"}, False),
        ({"card": {"number": "1-2"}}, True),
        ({"card": {"number": "12", "name": "x"}}, False),
        ({"guests": []}, False),  # not asked for
    ],
)
def test_values(changed: dict, right: bool) -> None:
    made = [Call(name="book_room", named={**TRUE_ROOM, **changed})]
    assert (acebench.mismatch([ROOM], made, {"book_room": TRUE_ROOM}) == "") is right


def test_which_calls() -> None:
    paris, rome = ({"city": city, "nights": 2} for city in ("Paris", "Rome"))
    truth = {"book_room_1": paris, "book_room_2": rome, "ping": {}}
    calls = [Call(name="book_room", named=each) for each in (rome, paris)]
    ping = Call(name="ping", named={})
    assert acebench.mismatch([ROOM, PINGS], [ping, *calls], truth) == ""
    assert acebench.mismatch([ROOM, PINGS], calls, truth) == "2 calls, not 3"
    assert "is missing" in acebench.mismatch(
        [ROOM], [Call(name="book_room", named={"city": "Paris"})], {"book_room": paris}
    )
    assert acebench.mismatch([ROOM, PINGS], [ping], {"book_room": paris}).startswith("ping was")


@pytest.mark.parametrize(
    ("category", "reply"),
    [
        ("special_incomplete", "Missing necessary parameters (nights) for the api (book_room)"),
        ("special_error_param", "There is incorrect value (many) for the parameters (nights)."),
        ("special_irrelevant", "Due to the limitations of the function, I cannot solve this."),
    ],
)
def test_special(root: Path, category: str, reply: str) -> None:
    with acebench.open_special(root) as suite:
        [item] = [item for item in suite.items() if item.id == f"{category}_0"]
        assert drive(item.course(0), [f"<think>?</think>{reply}"])[0].won
        for wrong_reply in (f"<think>{reply}</think>Yes.", reply[:25], ""):
            assert drive(item.course(0), [wrong_reply])[0].score == 0.0
        _, log = drive(item.course(0), [None])
        assert is_golden("acebench_special", log.says[0])


# -- the agent --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def agent(root: Path) -> Iterator[Listed]:
    with acebench_agent.open_agent(root) as suite:
        yield suite


WIFI, SEND = call_text("turn_on_wifi", {}), call_text("send_message", {"message": "Late!"})
END = "finish conversation"


def play(agent: Listed, number: int, *replies: str, user: list[str]) -> tuple[Outcome, Log]:
    return drive(agent.items()[number].course(0), replies, user)


def test_step_by_step(agent: Listed) -> None:
    outcome, log = play(agent, 0, "Who?", WIFI, SEND, END, user=[])
    assert (outcome.score, outcome.details["milestones"]) == (1.0, 1.0)
    no_questions = "No questions can be answered. Go on with what is known, by calling functions."
    assert log.texts()[1:] == [
        "Tell Ann that I am late.",
        no_questions,
        '{"status": true}',
        '{"status": true}',
    ]
    assert is_golden("acebench_multi_step", log.says[0])


def test_in_talk_with_a_user(agent: Listed) -> None:
    outcome, log = play(agent, 1, "What to say?", WIFI, SEND, "Sent.", user=["Hi", "Late!", END])
    assert outcome.won
    system, begins, *heard = log.texts(USER)
    assert system == "You are a user. Tell Ann that I am late."
    assert [begins, *heard] == ["Is there anything you need today?", "What to say?", "Sent."]
    assert is_golden("acebench_multi_turn", next(say for say in log.says if say.to == MODEL))
    assert log.texts()[1:3] == ["Hi", "Late!"]


@pytest.mark.parametrize(
    ("replies", "lost", "milestones"),
    [
        ([SEND, WIFI, END], "MessageApi.inbox", 0.5),
        ([WIFI, END], "MessageApi.inbox", 0.5),
        ([WIFI, SEND + SEND, END], "", 1.0),  # upstream counts extra members of an object as right
        (["I see.", END], "no call", 0.0),
        ([WIFI, None], "no room in the context", 0.5),
        (["?"] * 20, "no call", 0.0),
    ],
)
def test_how_a_task_is_lost(
    agent: Listed, replies: list[str | None], lost: str, milestones: float
) -> None:
    outcome, _ = play(agent, 0, *replies, user=[])
    assert (outcome.details["lost"], outcome.details["milestones"]) == (lost, milestones)
    assert outcome.score == float(not lost)


def test_state_and_milestones_by_hand() -> None:
    truth = [{"A": {"x": {"1": 2}, "y": 3}}]
    assert wrong({"A": {"x": {"1": 2, "5": 6}, "y": 3}}, truth) == ""
    assert wrong({"A": {"x": {"1": 3}, "y": 3}}, truth) == "A.x"
    assert wrong({"A": {"x": {"1": 2}, "z": 3}}, truth) == "A.z"
    assert wrong({}, truth) == "0 classes, not 1"
    a, b, c = (read_calls(f"[{name}()]") for name in "abc")
    assert coverage([a, b, c], [[a, c]]) == 1.0
    assert coverage([a, c], [[b, a, c], [a, b]]) == 0.5
    assert coverage([], [[]]) == 1.0


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("model_inference/prompt_en.py", "x = 1", "no text BASE_PROMPT_EN"),
        ("model_inference/multi_turn/APIModel_user.py", None, "cannot be read"),
        ("data_all/data_en/data_agent_multi_turn.json", '{"id": 1', "line 1 of .* cut off"),
        (
            "model_inference/multi_turn/scenariosen/phone_platform/message.py",
            "import not_there",
            "No module named 'not_there'",
        ),
    ],
)
def test_a_broken_checkout(
    root: Path, tmp_path: Path, file: str, text: str | None, message: str
) -> None:
    inside = tmp_path / "ACEBench"  # in a folder with other suites' data
    shutil.copytree(root, inside)
    if text is None:
        (inside / file).unlink()
    else:
        (inside / file).write_text(text)
    with pytest.raises(UsageError, match=f"{message}.*github.com/chenchen0103/ACEBench"):
        with acebench_agent.open_agent(tmp_path):
            pass


def test_no_data_says_where_they_are() -> None:
    for opened in (acebench.open_normal(None), acebench_agent.open_agent(None)):
        with pytest.raises(UsageError, match="github.com/chenchen0103/ACEBench"), opened:
            pass
