"""ToolUseBaseEnv: calls, answers, errors that read well, schemas."""

import json

import pytest

from spade_jax.envs.tool_use import ToolUseBaseEnv, normal_answer


class ShopEnv(ToolUseBaseEnv):
    max_turns = 3

    def reset(self, seed=None):
        self._expected_answer = "Oslo"
        return "Where is ann's boss?", {}

    def tool_boss(self, name: str):
        """Boss of a person.

        Fails for unknown people.
        """
        return {"ann": "bob"}[name]

    def tool_add(self, a: int, b: float = 2.0, tags: list[str] | None = None) -> float:
        return {"sum": a + b}


@pytest.fixture
def shop() -> ShopEnv:
    env = ShopEnv()
    env.reset()
    return env


def call(name: str, /, **arguments: object) -> str:
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{written}</tool_call>"


def test_a_call_then_an_answer(shop: ShopEnv) -> None:
    assert shop.step(call("boss", name="ann")) == ("bob", 0.0, False, False, {})
    assert shop.step("<answer> oslo. </answer>") == ("Done.", 1.0, True, False, {})
    assert shop._call_history == [{"name": "boss", "arguments": {"name": "ann"}, "result": "bob"}]
    assert shop.turn_count == 2


def test_a_wrong_answer_ends_without_reward(shop: ShopEnv) -> None:
    assert shop.step("<answer>Bergen</answer>")[1:4] == (0.0, True, False)


def test_several_calls_and_an_answer_in_one_reply(shop: ShopEnv) -> None:
    reply = call("boss", name="ann") + call("add", a=1) + "<answer>Oslo</answer>"
    assert shop.step(reply) == ('bob\n{"sum": 3.0}\nDone.', 1.0, True, False, {})


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (call("boss", name="zed"), "Error: boss failed with KeyError: 'zed'"),
        (call("boss", who="ann"), "Error: boss takes (name): missing"),
        (call("city"), "Error: there is no tool city. Tools: boss, add."),
        ("hello", "Error: the reply holds no <tool_call> and no <answer>."),
        ("<tool_call>{", "Error: The tool call is cut off (character 12)."),
    ],
)
def test_errors_are_text_and_cost_a_turn(shop: ShopEnv, reply: str, text: str) -> None:
    observation, reward, terminated, truncated, _ = shop.step(reply)
    assert observation.startswith(text)
    assert (reward, terminated, truncated, shop.turn_count) == (0.0, False, False, 1)


def test_the_last_turn_truncates_unless_it_answers(shop: ShopEnv) -> None:
    assert [shop.step("x")[3] for _ in range(3)] == [False, False, True]
    again = ShopEnv()
    again.reset()
    for _ in range(2):
        again.step("x")
    assert again.step("<answer>Oslo</answer>")[1:4] == (1.0, True, False)


def test_no_expected_answer_is_never_right() -> None:
    assert ToolUseBaseEnv().step("<answer>None</answer>")[1] == 0.0


def test_two_environments_share_nothing() -> None:
    one, other = ShopEnv(), ShopEnv()
    one.step(call("boss", name="ann"))
    one._state["x"] = 1
    assert other._call_history == [] and other._state == {} and other.turn_count == 0


def test_base_reset_clears(shop: ShopEnv) -> None:
    shop.step(call("boss", name="ann"))
    assert ToolUseBaseEnv.reset(shop) == ("Tools: boss, add.", {})
    assert shop._call_history == [] and shop.turn_count == 0


def test_schemas_come_from_signatures(shop: ShopEnv) -> None:
    boss, add = [tool["function"] for tool in shop.get_tools()]
    assert boss["description"] == "Boss of a person."
    assert boss["parameters"] == {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
    }
    kinds = {name: value["type"] for name, value in add["parameters"]["properties"].items()}
    assert kinds == {"a": "integer", "b": "number", "tags": "array"}
    assert add["parameters"]["required"] == ["a"]
    shop._tools = [{"type": "function"}]
    assert shop.get_tools() == [{"type": "function"}]


@pytest.mark.parametrize(
    ("one", "other"),
    [("1,200", "1200.0"), (" New  York. ", "new york"), ('"3"', "3"), ("-0.50", "-.5")],
)
def test_equal_answers(one: str, other: str) -> None:
    assert normal_answer(one) == normal_answer(other)


def test_different_answers() -> None:
    assert normal_answer("12") != normal_answer("1.2")
    assert normal_answer("oslo") != normal_answer("os lo")
