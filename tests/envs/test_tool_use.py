"""ToolUseBaseEnv: calls, answers, errors that read well, schemas."""

import json

import pytest

from spade_jax.envs.tool_use import ToolUseBaseEnv, normal_answer, same_answer


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


def test_declared_tools_are_completed_from_their_methods(shop: ShopEnv) -> None:
    integer = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    shop._tools = {"boss": {"description": "Who leads."}, "add": {"parameters": integer}, "x": "X"}
    boss, add, other = [tool["function"] for tool in shop.get_tools()]
    assert boss["description"] == "Who leads." and boss["parameters"]["required"] == ["name"]
    assert (add["description"], add["parameters"]) == ("", integer)
    assert (other["name"], other["description"]) == ("x", "X")


class DeclaredEnv(ToolUseBaseEnv):
    def __init__(self, max_turns=7):
        super().__init__(max_turns=max_turns)

    def reset(self, seed=None):
        kinds = {"path": {"type": "string"}, "how": {"type": "string", "enum": ["a", "b"]}}
        self._tools = {
            "cut": {
                "description": "Cut a file.",
                "parameters": {"type": "object", "properties": kinds, "required": ["path"]},
            }
        }
        self.said = seed
        return ("Go." if seed is None else "Use cut."), {"seed": seed}

    def tool_cut(self, path, how="a"):
        return path[:1]


class ReusingEnv(DeclaredEnv):
    def reset(self, seed=None):
        return super().reset(seed)


def test_declared_tools_are_told_once_in_the_first_observation() -> None:
    listed = "Go.\n\nTools:\n- cut(path: string, how?: string of ['a', 'b']): Cut a file."
    assert DeclaredEnv().reset() == (listed, {"seed": None})
    assert ReusingEnv().reset() == (listed, {"seed": None})
    assert DeclaredEnv().reset(3) == ("Use cut.", {"seed": 3})
    assert DeclaredEnv().max_turns == 7 and DeclaredEnv(3).max_turns == 3
    assert ToolUseBaseEnv().solution() is None


@pytest.mark.parametrize(
    "tools",
    [
        {"cut": "Cut."},
        {"cut": {"description": 3, "parameters": {"path": "string"}}},
        {"cut": {"parameters": {"properties": {"path": "string"}, "required": None}}},
        [{"type": "function"}, "cut"],
        [{"function": None}],
        [{"name": "cut", "parameters": {"properties": ["path"]}}],
    ],
)
def test_badly_declared_tools_still_work(tools: object) -> None:
    class SlippedEnv(DeclaredEnv):
        def reset(self, seed=None):
            self._tools = tools
            return "Go.", {}

    env = SlippedEnv()
    assert env.reset()[0].startswith("Go.")
    assert env.step(call("cut", path="abc"))[0] == "a"


def test_long_results_keep_their_end(shop: ShopEnv) -> None:
    shop.tool_long = lambda: "a" * 5000 + "next"
    result = shop.execute_tool("long", {})
    assert result.startswith("aaa") and result.endswith("anext") and len(result) <= 2000
    observation = shop.step(call("long") * 9)[0]
    assert observation.endswith("anext") and len(observation) <= 6000


# -- a user who asks for one thing after another ----------------------------------------------


class ErrandsEnv(ToolUseBaseEnv):
    def reset(self, seed=None):
        self._state = {"at": "home", "bag": []}
        self._user_messages = ["Go to the shop.", "Buy an egg.", "Say hello."]
        self._message_criteria = [lambda s: s["at"] == "shop", lambda s: "egg" in s["bag"], None]
        self._current_msg = 0
        return self._user_messages[0], {}

    def tool_go(self, to):
        self._state["at"] = to
        return f"At {to}."

    def tool_buy(self, what):
        self._state["bag"].append(what)
        return "Bought."


@pytest.fixture
def errands() -> ErrandsEnv:
    env = ErrandsEnv()
    env.reset()
    return env


def test_the_next_message_follows_when_one_is_done(errands: ErrandsEnv) -> None:
    assert errands.step(call("buy", what="tea"))[0] == "Bought."
    assert errands.step(call("go", to="shop"))[0] == "At shop.\n\nUser: Buy an egg."
    assert errands.step(call("buy", what="egg"))[:3] == ("Bought.\n\nUser: Say hello.", 0.0, False)
    last = errands.step(call("go", to="home"))
    assert last == ("At home.\n\nAll requests are done.", 1.0, True, False, {})


def test_an_answer_counts_after_all_messages(errands: ErrandsEnv) -> None:
    errands._expected_answer = "done"
    assert errands.step("<answer>done</answer>")[1:3] == (0.0, True)
    reply = call("go", to="shop") + call("buy", what="egg") + call("go", to="home")
    observation, reward, terminated, *_ = errands.step(reply)
    assert observation.endswith("All requests are done. Give your <answer> now.")
    assert (reward, terminated) == (0.0, False)
    assert not errands._check_answer("no") and errands._check_answer("Done.")
    assert errands._advance_if_done() == ""
    assert errands.step("<answer>done</answer>") == ("Done.", 1.0, True, False, {})
    free = ErrandsEnv()
    free.reset()
    assert free.step(reply + "<answer>anything</answer>")[1:3] == (1.0, True)


def test_a_criterion_that_raises_is_never_met_and_is_shown(errands: ErrandsEnv) -> None:
    errands._message_criteria[0] = lambda s: s["where"] == "shop"
    observation, _, terminated, *_ = errands.step(call("go", to="shop"))
    assert observation == "At shop.\nError: the criterion of message 1 raised KeyError: 'where'"
    assert not terminated and errands._current_msg == 0


class OwnErrandsEnv(ErrandsEnv):
    """Tools say themselves how things go on, as the published environments do."""

    def _advance_if_done(self):
        if self._current_msg < len(self._user_messages) and self._message_criteria[
            self._current_msg
        ](self._state):
            self._current_msg += 1
            return f" [{self._current_msg}]"
        return ""

    def _check_answer(self, answer):
        return answer == "done" and self._current_msg == 2

    def reset(self, seed=None):
        observation, info = super().reset(seed)
        del self._user_messages[2:], self._message_criteria[2:]
        self._expected_answer = "done"
        return observation, info

    def tool_go(self, to):
        return super().tool_go(to) + self._advance_if_done()


def test_tools_that_advance_themselves_advance_once() -> None:
    env = OwnErrandsEnv()
    env.reset()
    env._state["bag"].append("egg")  # the second message is done before it is asked
    assert env.step(call("go", to="shop"))[0] == "At shop. [1]"
    assert env.step(call("buy", what="tea"))[:3] == ("Bought. [2]", 0.0, False)
    assert env.step("<answer>done</answer>")[1:3] == (1.0, True)


@pytest.mark.parametrize(
    ("one", "other"),
    [("1,200", "1200.0"), (" New  York. ", "new york"), ('"3"', "3"), ("-0.50", "-.5")],
)
def test_equal_answers(one: str, other: str) -> None:
    assert normal_answer(one) == normal_answer(other)


def test_numbers_agree_to_a_hundredth() -> None:
    assert same_answer("3.14159", "3.14") and same_answer("1,200", "1200.004")
    assert not same_answer("3.16", "3.14") and not same_answer("12", "13")


def test_different_answers() -> None:
    assert normal_answer("12") != normal_answer("1.2")
    assert normal_answer("oslo") != normal_answer("os lo")
