"""Programs, boxed answers, tool calls and answers, read from replies; values worked out by hand."""

import pytest

from spade_jax.envs import parsers
from spade_jax.envs.parsers import ToolCallError, answer, boxed, extract_code, parse_action
from spade_jax.types import Kind

ENV = "class AEnv:\n    pass\n"


def block(code: str, tag: str = "python") -> str:
    return f"```{tag}\n{code}```\n"


@pytest.mark.parametrize("tag", ["python", "py", "", "Python"])
def test_code_of_every_tag(tag: str) -> None:
    assert extract_code("Here:\n" + block(ENV, tag) + "Done.") == ENV


def test_code_with_windows_line_ends() -> None:
    assert extract_code(block(ENV).replace("\n", "\r\n")) == ENV


def test_last_environment_wins_over_later_other_blocks() -> None:
    later = block("class BEnv:\n    x = 1\n")
    reply = block(ENV) + later + block("print(1)\n") + block('{"a": 1}\n', "json")
    assert extract_code(reply) == "class BEnv:\n    x = 1\n"


def test_text_between_two_blocks_is_no_block() -> None:
    assert extract_code(block("x = 1\n") + "class TextEnv is prose\n" + block("y = 2\n")) is None


def test_backticks_inside_a_docstring() -> None:
    code = 'class AEnv:\n    """Shows\n```\nclass BEnv\n```\n    so.\n    """\n\n    x = 1\n'
    assert extract_code(block(code)) == code


def test_a_block_that_is_not_python_is_kept_for_the_parse_verdict() -> None:
    code = "class AEnv:\n    def reset(self:\n"
    assert extract_code(block(code)) == code


@pytest.mark.parametrize(
    "reply",
    ["", ENV, "```python\n" + ENV, block("class A:\n    pass\n"), block(ENV, "json"), "```"],
)
def test_no_code(reply: str) -> None:
    assert extract_code(reply) is None


def test_longer_fence_holds_shorter_ones() -> None:
    inner = 'class AEnv:\n    x = """\n```\n"""\n'
    assert extract_code("````python\n" + inner + "````\n") == inner


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} then \fbox{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a \} b}", r"a \} b"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{4} and \boxed{5", "4"),
        (r"} { \boxed {6}", "6"),
        (r"\\boxed{7}", "7"),
        (r"\boxed{8}<think>\boxed{9}</think> no", None),
        (r"<think>\boxed{9}</think>\boxed{10}", "10"),
        (r"\boxed{11} <think> \boxed{12}", "11"),
        (r"\boxed{13", None),
        (r"\boxed{ }", None),
        ("plain", None),
        ("\\boxed{two\nlines}", "two\nlines"),
    ],
)
def test_boxed(text: str, value: str | None) -> None:
    assert boxed(text) == value


def test_boxed_survives_a_hundred_thousand_braces() -> None:
    many = 100_000
    assert boxed("{" * many + r"\boxed{1}" + "}" * many) == "1"
    assert boxed(r"\boxed{" * many) is None
    assert boxed(r"\boxed{" + "{" * many + "}" * many + "}") == "{" * many + "}" * many


def call(text: str) -> str:
    return f"<tool_call>{text}</tool_call>"


def read(text: str) -> list[tuple[str, dict]]:
    return [(c.name, c.arguments) for c in parsers.tool_calls(text)]


def test_calls_of_several_forms() -> None:
    text = (
        "Let me look. "
        + call('\n{"name": "a", "arguments": {"x": 1}}\n{"name": "b.c-d", "parameters": {}}\n')
        + call(r'{"name": "e", "arguments": "{\"y\": [1, null]}"}')
    )
    assert read(text) == [("a", {"x": 1}), ("b.c-d", {}), ("e", {"y": [1, None]})]


def test_strings_may_hold_tags_braces_quotes_and_unicode() -> None:
    value = '</tool_call> } { "q" é <tool_call>'
    escaped = value.replace('"', '\\"')
    assert read(call('{"name": "a", "arguments": {"x": "' + escaped + '"}}')) == [
        ("a", {"x": value})
    ]


def test_calls_while_thinking_are_ignored() -> None:
    good = call('{"name": "b", "arguments": {}}')
    assert read("<think>" + call("nonsense") + "</think>" + good) == [("b", {})]
    assert read(good + "<think>" + call("nonsense")) == [("b", {})]


@pytest.mark.parametrize(
    ("text", "problem", "position"),
    [
        ('<tool_call>{"name": "a", "argum', "cut off", 25),
        ('<tool_call>{"name": "a", "arguments": {}}', "</tool_call> is missing", 41),
        (call('{"name": "a", "arguments": {"x": 1, "x": 2}}'), "'x' appears twice", 11),
        (call('{"name": "a", "arguments": {"x": NaN}}'), "NaN", 11),
        (call('{"arguments": {}}'), '"name"', 11),
        (call('{"name": "", "arguments": {}}'), '"name"', 11),
        (call('{"name": "a"}'), '"arguments"', 11),
        (call('{"name": "a", "arguments": {}, "parameters": {}}'), '"arguments"', 11),
        (call('{"name": "a", "arguments": [1]}'), "JSON object", 11),
        (call('{"name": "a", "arguments": "not json"}'), "not JSON", 11),
        (call('["a"]'), "JSON object", 11),
        (call(""), "empty", 11),
        (call("{'name': 'a', 'arguments': {}}"), "not JSON", 12),
        (call('{"name": "a", "arguments": ' + '{"x":' * 5000), "deeply", 11),
    ],
)
def test_faulty_calls_are_typed_errors(text: str, problem: str, position: int) -> None:
    with pytest.raises(ToolCallError, match=problem) as raised:
        parsers.tool_calls(text)
    assert raised.value.position == position
    assert f"(character {position})" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<answer> oslo </answer>", "oslo"),
        ("<answer>a</answer> <answer>b</answer>", "b"),
        ("<answer><answer>c</answer>", "c"),
        ("<answer></answer>", None),
        ("<answer>open", None),
        ("<think><answer>a</answer></think>", None),
    ],
)
def test_answer(text: str, value: str | None) -> None:
    assert answer(text) == value


def test_action_of_a_game_is_the_boxed_text() -> None:
    assert parse_action(Kind.GAME, r"I think \boxed{up}") == "up"
    assert parse_action(Kind.GAME, "up") is None


def test_action_of_tool_use_is_the_reply_itself() -> None:
    broken = "Look: <tool_call>{"
    assert parse_action(Kind.TOOL_USE, "<think>hm</think> " + broken) == broken
    assert parse_action(Kind.TOOL_USE, "<answer>5</answer>") == "<answer>5</answer>"
    assert parse_action(Kind.TOOL_USE, "no idea") is None
    assert parse_action(Kind.TOOL_USE, "<think><answer>5</answer>") is None


@pytest.mark.parametrize("code", ["x = (", "x = '\0'", "(" * 5000, "x = " + "9" * 5000])
def test_unreadable_programs_are_syntax_errors(code: str) -> None:
    with pytest.raises(SyntaxError):
        parsers.parse_program(code)
