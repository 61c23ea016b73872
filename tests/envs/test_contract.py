"""The contract: what reset, step, hint and solution may answer."""

import math

import numpy as np
import pytest

from spade_jax.envs import contract
from spade_jax.envs.contract import ContractError
from spade_jax.envs.tool_use import ToolUseBaseEnv
from spade_jax.types import Kind, StepResult

CAP = 20


class Text(str):
    """A subclass that answers differently from the text it is."""

    def __str__(self) -> str:
        return "forged"


def test_reset_takes_a_pair_or_bare_text() -> None:
    assert contract.reset_result(("go", {}), CAP) == StepResult(observation="go")
    assert contract.reset_result("go", CAP) == StepResult(observation="go")


def test_observations_become_plain_text() -> None:
    observation = contract.reset_result((Text("real"), {}), CAP).observation
    assert observation == "real"
    assert type(observation) is str
    assert contract.reset_result("a\ud800b", CAP).observation == "a?b"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "None"),
        (("go", {}, 1), "a tuple of 3"),
        ((None, {}), "must be text"),
        ((b"go", {}), "type bytes"),
        (("  ", {}), "empty"),
        (("x" * 21, {}), "21 characters, the limit is 20"),
    ],
)
def test_bad_resets(value: object, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        contract.reset_result(value, CAP)


@pytest.mark.parametrize(
    ("reward", "value"),
    [
        (1, 1.0),
        (True, 1.0),
        (-10.0, -10.0),
        (np.float32(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.bool_(True), 1.0),
        (np.array([0.25]), 0.25),
    ],
)
def test_rewards_are_normalised(reward: object, value: float) -> None:
    result = contract.step_result(("ok", reward, np.bool_(False), True, {}), CAP)
    assert result == StepResult(observation="ok", reward=value, truncated=True)
    assert type(result.reward) is float
    assert type(result.terminated) is bool


@pytest.mark.parametrize(
    "reward",
    [math.nan, math.inf, -math.inf, 10.1, 1e300, 10**400, "1", None, 1j, np.nan, np.array([1, 2])],
)
def test_bad_rewards(reward: object) -> None:
    with pytest.raises(ContractError, match="reward"):
        contract.step_result(("ok", reward, True, False, {}), CAP)


@pytest.mark.parametrize("value", [None, ("ok", 0.0, True, {}), ["ok", 0.0, True, False, {}]])
def test_steps_of_another_form(value: object) -> None:
    with pytest.raises(ContractError, match="tuple of 5"):
        contract.step_result(value, CAP)


@pytest.mark.parametrize("flag", [None, 1, "yes", np.array([True, False])])
def test_flags_are_booleans(flag: object) -> None:
    with pytest.raises(ContractError, match="terminated must be True or False"):
        contract.step_result(("ok", 0.0, flag, False, {}), CAP)


def test_won_needs_the_end_and_more_than_half() -> None:
    assert contract.won(StepResult(observation="x", reward=0.6, terminated=True))
    assert not contract.won(StepResult(observation="x", reward=0.5, terminated=True))
    assert not contract.won(StepResult(observation="x", reward=1.0, truncated=True))


def test_hints_and_solutions() -> None:
    assert contract.hint_text(" go ", CAP) == "go"
    assert contract.hint_text("  ", CAP) is None
    assert contract.hint_text(None, CAP) is None
    with pytest.raises(ContractError, match="hint"):
        contract.hint_text(3, CAP)


def solution(value: object, kind: Kind = Kind.GAME) -> tuple[str, ...] | None:
    return contract.solution_actions(value, 200, kind)


@pytest.mark.parametrize(
    ("value", "actions"),
    [
        (None, None),
        (["a", "b"], ("a", "b")),
        (("a",), ("a",)),
        ("ab", ("ab",)),
        (7, ("7",)),
        (-0.5, ("-0.5",)),
        ([1, np.int64(2), "x"], ("1", "2", "x")),
        (np.float64(2.5), ("2.5",)),
        (r"It is \boxed{42}.", ("42",)),
        ([r"\boxed{up}", "down"], ("up", "down")),
    ],
)
def test_solutions_of_games(value: object, actions: tuple[str, ...] | None) -> None:
    assert solution(value) == actions


LS = '<tool_call>{"name": "ls", "arguments": {"path": "/a"}}</tool_call>'
PWD = '<tool_call>{"name": "pwd", "arguments": {}}</tool_call>'
DONE = "<answer>done</answer>"


@pytest.mark.parametrize(
    "value",
    [
        [LS, PWD, DONE],
        [{"name": "ls", "arguments": {"path": "/a"}}, {"name": "pwd"}, "done"],
        [("ls", {"path": "/a"}), ("pwd", {}), "done"],
        [["ls", {"path": "/a"}], {"name": "pwd", "parameters": {}}, DONE],
        ['ls(path="/a")', "pwd()", "done"],
        f"First {LS}, then {PWD} and last {DONE}.",
        '1. ls(path="/a") -> (b) 2. pwd() -> /a\nANSWER: done',
        "1. ls(path='/a') 2. pwd() 3. <answer> done </answer>",
    ],
)
def test_solutions_with_tools_in_every_form(value: object) -> None:
    assert solution(value, Kind.TOOL_USE) == (LS, PWD, DONE)


def test_one_call_or_one_answer_alone() -> None:
    assert solution(("ls", {"path": "/a"}), Kind.TOOL_USE) == (LS,)
    assert solution({"name": "pwd"}, Kind.TOOL_USE) == (PWD,)
    assert solution("done", Kind.TOOL_USE) == (DONE,)
    assert solution(3, Kind.TOOL_USE) == ("<answer>3</answer>",)
    nested = '<tool_call>{"name": "put", "arguments": {"text": "f(x) </tool_call>"}}</tool_call>'
    assert solution("put(text='f(x) </tool_call>')", Kind.TOOL_USE) == (nested,)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "1 to 1000 actions, not none"),
        (["x"] * 1001, "1 to 1000 actions, not 1001"),
        (["x" * 201], "exceeds 200 characters"),
        (True, "must be text, not bool"),
        ([b"x"], "must be text, not bytes"),
        ([None], "must be text, not NoneType"),
        ({1, 2}, "must return a list of text, not a value of type set"),
        ({"tool": "ls"}, '{"name": text, "arguments": a dict}'),
        ({"name": "ls", "arguments": "/a"}, '{"name": text, "arguments": a dict}'),
        ({"name": "ls", "arguments": {"x": {1}}}, "arguments of ls in solution are not JSON"),
        ("<tool_call>{", "cannot be read: The tool call is cut off"),
    ],
)
def test_bad_solutions(value: object, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        solution(value, Kind.TOOL_USE)


# -- which class ------------------------------------------------------------------------------

GAME = """
class {name}({base}):
    def __init__(self{arguments}):
        {body}
    def reset(self, seed=None):
        return "go", {{}}
    def step(self, action):
        return "ok", 0.0, True, False, {{}}
"""


def game(name: str, base: str = "", arguments: str = "", body: str = "pass") -> str:
    return GAME.format(name=name, base=base, arguments=arguments, body=body)


def chosen(code: str, kind: Kind = Kind.GAME) -> str:
    namespace = {"__name__": contract.MODULE, "ToolUseBaseEnv": ToolUseBaseEnv}
    exec(code, namespace)
    return contract.environment_class(namespace, kind, ToolUseBaseEnv).__name__


@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "backwards"])
def test_the_class_that_uses_the_other_is_chosen(backwards: bool) -> None:
    parts = [game("InnerEnv"), game("OuterEnv", body="self.inner = InnerEnv()")]
    assert chosen("".join(parts[::-1] if backwards else parts)) == "OuterEnv"


def test_the_subclass_and_the_complete_class_are_chosen() -> None:
    assert chosen(game("BaseEnv") + game("MineEnv", "BaseEnv")) == "MineEnv"
    assert chosen(game("MineEnv") + "class ConfigEnv:\n    size = 3\n") == "MineEnv"
    assert chosen(game("MineEnv") + "SameEnv = MineEnv\n") == "MineEnv"


def test_two_environments_are_named() -> None:
    with pytest.raises(ContractError, match="several environments, AEnv and BEnv; let"):
        chosen(game("AEnv") + game("BEnv"))
    mutual = game("AEnv", body="BEnv") + game("BEnv", body="AEnv")
    with pytest.raises(ContractError, match="AEnv and BEnv"):
        chosen(mutual)


def test_a_constructor_that_needs_arguments_is_named() -> None:
    assert chosen(game("AEnv", arguments=", size=3, *rest, **more")) == "AEnv"
    with pytest.raises(ContractError, match=r"AEnv needs arguments \(size, kind\)"):
        chosen(game("AEnv", arguments=", size, *rest, kind"))


TOOLS = (
    "class {name}(ToolUseBaseEnv):\n    def reset(self, seed=None):\n        return 'go', {{}}\n"
)


def test_tool_use_needs_its_base() -> None:
    assert chosen(TOOLS.format(name="AEnv"), Kind.TOOL_USE) == "AEnv"
    with pytest.raises(ContractError, match="AEnv must subclass ToolUseBaseEnv"):
        chosen(game("AEnv"), Kind.TOOL_USE)


def test_a_fallback_base_of_the_programs_own_is_a_base() -> None:
    guarded = "try:\n    TRY\nexcept ERROR:\n" + game("ToolUseBaseEnv").replace("\n", "\n    ")
    mine = "\n" + TOOLS.format(name="AEnv")
    injected = guarded.replace("TRY", "ToolUseBaseEnv").replace("ERROR", "NameError")
    assert chosen(injected + mine, Kind.TOOL_USE) == "AEnv"
    missing = "from no_such_module import ToolUseBaseEnv"
    own = guarded.replace("TRY", missing).replace("ERROR", "ImportError")
    assert chosen(own + mine, Kind.TOOL_USE) == "AEnv"


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ('found = re.search(r"\\boxed\\{(.*)\\}", action)', True),
        ('PATTERN = re.compile(r"\\boxed{(.+?)}")', True),
        ('if "\\\\boxed{" in action: pass', True),
        ("answer = extract_last_boxed_answer(action)", True),
        ('parts = action.split("\\\\boxed{")', True),
        ('return "Answer in \\\\boxed{}.", {}', False),
        ('self.rules = "Put it in \\\\boxed{}."', False),
        ("return action.strip() == str(self.number)", False),
    ],
)
def test_who_looks_for_the_box_itself(code: str, reads: bool) -> None:
    body = code if code.startswith("return") else f"{code}\n    return None"
    program = f"def step(self, action):\n    {body}\n"
    assert contract.reads_boxes(program) is reads
