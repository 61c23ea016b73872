"""Tool calls read from replies, as JSON and in Qwen3-Coder's form; values worked out by hand."""

from typing import Any

import pytest

from spade_jax.envs import parsers
from spade_jax.envs.parsers import ToolCallError
from spade_jax.envs.tool_use import ToolUseBaseEnv


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
        ('<tool_call>{"name": "a", "arguments": {}}', "cut off", 41),
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
        (call('{"name": "a", "arguments": {"x": 1e999}}'), "too large", 11),
        (call('{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}"), "300 digits", 11),
        (call(r'{"name": "a", "arguments": {"x": "\ud800"}}'), "surrogate", 11),
        (call(r'{"name": "a", "arguments": "{\"x\": 1, \"x\": 2}"}'), "not JSON", 11),
        (call(r'{"name": "a", "arguments": "\"{}\""}'), "JSON object", 11),
        (call('{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}'), "JSON", 41),
        (call('{"name": "a", "arguments": {"x": "y}}'), "Unterminated", 44),
        ("<tool_call> " + call('{"name": "a", "arguments": {}}'), "JSON object", 12),
    ],
)
def test_faulty_calls_are_typed_errors(text: str, problem: str, position: int) -> None:
    with pytest.raises(ToolCallError, match=problem) as raised:
        parsers.tool_calls(text)
    assert raised.value.position == position
    assert f"(character {position})" in str(raised.value)


def test_position_and_end_of_a_call() -> None:
    text = "So: " + call(' {"name": "a", "arguments": {}} ') + call("<function=b></function>")
    spans = [text[c.position : c.end] for c in parsers.tool_calls(text)]
    assert spans == ['{"name": "a", "arguments": {}}', "<function=b></function>"]


def test_a_think_end_inside_a_string_ends_no_thinking() -> None:
    inside = call('{"name": "a", "arguments": {"x": "</think>"}}')
    assert read(inside) == [("a", {"x": "</think>"})]
    assert read("Hm. " + inside + "</think>" + call('{"name": "b", "arguments": {}}')) == [
        ("b", {})
    ]
    assert read("<think>" + call("nonsense</think>")) == []


def literal(text: str) -> list[tuple[str, dict]]:
    return [(c.name, c.arguments) for c in parsers.tool_calls(call(text), literals=True)]


def test_python_literals_where_they_are_allowed() -> None:
    text = (
        """{'name': "a", 'arguments': {'x': [True, None, -1.5, 'it\\'s }'], "y": "</tool_call>"}}"""
    )
    value = {"x": [True, None, -1.5, "it's }"], "y": "</tool_call>"}
    assert literal(text + ' {"name": "b", "arguments": {"x": true}}') == [
        ("a", value),
        ("b", {"x": True}),
    ]
    assert literal("""{"name": "a", "arguments": "{'x': 1}"}""") == [("a", {"x": 1})]


@pytest.mark.parametrize(
    "value",
    [
        *[
            "(1, 2)",
            "{1}",
            "b'x'",
            "1j",
            "...",
            "f'{x}'",
            "open('x')",
            "x",
            "1 + 1",
            "-True",
            "--1",
        ],
        *["{1: 2}", "{**{}}", "{'a': 1, 'a': 2}", "1e999", "9" * 400, "0x" + "f" * 400, "NaN"],
        *["'\\ud800'", "[" * 70 + "]" * 70, "-" * 5000 + "1", "+".join("1" * 5000), "(" * 500],
    ],
)
def test_literals_of_other_types_are_errors(value: str) -> None:
    with pytest.raises(ToolCallError, match="not JSON"):
        literal("{'name': 'a', 'arguments': {'x': " + value + "}}")


def test_how_long_a_literal_may_be() -> None:
    text = "{'name': 'a', 'arguments': {'x': '%s'}}"
    assert literal(text % ("y" * 10_000)) == [("a", {"x": "y" * 10_000})]
    with pytest.raises(ToolCallError, match="double quotes"):
        literal(text % ("y" * 20_000))


# -- Qwen3-Coder's form -----------------------------------------------------------------------


def function(name: str, **values: str) -> str:
    """A call as Qwen3-Coder's template writes it."""
    lines = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items()]
    return call(f"\n<function={name}>\n{''.join(lines)}</function>\n")


PROPERTIES = {
    **{"zip": {"type": "string"}, "n": {"type": "integer"}, "r": {"type": "number"}},
    **{"b": {"type": "boolean"}, "l": {"type": "array"}, "o": {"type": "object"}},
    **{"s": {"type": ["string", "null"]}, "i": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
    **{"e": {"enum": [1, 2]}, "t": {"type": "text"}, "z": {"type": "null"}, "bad": 5},
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": PROPERTIES}},
    }
]


def test_xml_without_a_schema_is_text() -> None:
    text = call("<function=geo.look-up_2><parameter=max-n>5</parameter></function>")
    assert read("I look. " + text) == [("geo.look-up_2", {"max-n": "5"})]
    assert read(function("f", n="1", code="a\n\n  b\n") + function("g")) == [
        ("f", {"n": "1", "code": "a\n\n  b\n"}),
        ("g", {}),
    ]
    two = function("f", n="1").removesuffix("</tool_call>") + function("g").removeprefix(
        "<tool_call>"
    )
    assert read(two) == [("f", {"n": "1"}), ("g", {})]
    windows = function("f", n="a\nb").replace("\n", "\r\n")
    assert read(windows) == [("f", {"n": "a\r\nb"})]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("zip", "00123", "00123"),
        ("zip", "null", "null"),
        ("zip", ' {"a": 1} ', ' {"a": 1} '),
        ("n", "-12", -12),
        ("n", " 7 ", 7),
        ("r", "2.5e1", 25.0),
        ("r", "3", 3),
        ("b", "true", True),
        ("b", "False", False),
        ("l", '["</parameter>", 1]', ["</parameter>", 1]),
        ("o", '{"a": {"b": null}}', {"a": {"b": None}}),
        ("s", "None", None),
        ("s", "12", "12"),
        ("i", "null", None),
        ("i", "4", 4),
        ("z", "null", None),
        *[(key, "5", "5") for key in ("e", "t", "bad", "unknown")],
    ],
)
def test_xml_values_follow_the_schema(key: str, text: str, value: Any) -> None:
    [said] = parsers.tool_calls(function("f", **{key: text}), TOOLS)
    assert said.arguments == {key: value}
    assert type(said.arguments[key]) is type(value)
    [flat] = parsers.tool_calls(function("f", **{key: text}), [TOOLS[0]["function"]])
    assert flat.arguments == said.arguments
    [other] = parsers.tool_calls(function("g", **{key: text}), TOOLS)
    assert other.arguments == {key: text}


@pytest.mark.parametrize(
    ("key", "text", "wanted"),
    [
        ("n", "00123", "integer"),
        ("n", "1.5", "integer"),
        ("n", "true", "integer"),
        ("r", "NaN", "number"),
        ("r", "1e999", "number"),
        ("b", "1", "boolean"),
        ("b", "yes", "boolean"),
        ("l", "{}", "array"),
        ("l", "['a']", "array"),
        ("o", '{"a": 1, "a": 2}', "object"),
        ("i", "x", "integer or null"),
        ("n", "", "integer"),
    ],
)
def test_xml_values_that_do_not_fit(key: str, text: str, wanted: str) -> None:
    reply = function("f", **{key: text})
    problem = f"The parameter '{key}' of f must be of type {wanted} "
    with pytest.raises(ToolCallError, match=problem) as raised:
        parsers.tool_calls(reply, TOOLS)
    assert raised.value.position == reply.index(">\n" + text + "\n</parameter>") + 2


def test_xml_values_may_be_python_literals_where_they_are_allowed() -> None:
    [said] = parsers.tool_calls(function("f", l="['a', None]"), TOOLS, literals=True)
    assert said.arguments == {"l": ["a", None]}


@pytest.mark.parametrize("tools", [None, 5, [None], [{}], [{"function": 3}], [{"name": []}], {"a"}])
def test_schemas_that_are_none_are_passed_over(tools: Any) -> None:
    [said] = parsers.tool_calls(function("f", n="1"), tools)
    assert said.arguments == {"n": "1"}


@pytest.mark.parametrize(
    "value",
    [
        "</tool_call>",
        "</function>",
        "<function=g>",
        "</parameter> and more",
        "<tool_call>\n{}",
        "</think><answer>1</answer>",
        'a "quoted" <b>&amp;</b> é',
        " indented\n",
    ],
)
def test_tags_in_xml_values_are_text(value: str) -> None:
    assert read(function("f", x=value, y="2")) == [("f", {"x": value, "y": "2"})]


@pytest.mark.parametrize(
    ("text", "problem", "position"),
    [
        (call("<function=></function>"), "needs a name", 11),
        (call("<function=a b></function>"), "needs a name", 11),
        (call("<function=a>{}</function>"), "goes on neither", 23),
        (call("<function=a><parameter=x>1</function>"), "'x' of a is not closed", 23),
        (call("<function=a><parameter=x>1<parameter=y>2</parameter></function>"), "'x'", 23),
        (call("<function=a><parameter=x>1</parameter>2</function>"), "'x' of a is not closed", 23),
        (call("<function=a><parameter=>1</parameter></function>"), "goes on neither", 23),
        (call(2 * "<function=a>"), "goes on neither", 23),
        (call("<function=a></function> and"), "JSON object", 35),
        (function("a", x="1").replace("<p", "<parameter=x>0</parameter><p"), "'x'.* twice", 51),
        ("<tool_call><function=a><parameter=x>1", "cut off", 23),
        ("<tool_call><function=a><parameter=x>1</parameter></function>", "cut off", 60),
        ("<tool_call><funct", "cut off", 11),
        ("<tool_call>", "cut off", 11),
    ],
)
def test_faulty_xml_calls_are_typed_errors(text: str, problem: str, position: int) -> None:
    with pytest.raises(ToolCallError, match=problem) as raised:
        parsers.tool_calls(text)
    assert raised.value.position == position


class PostEnv(ToolUseBaseEnv):
    def tool_send(self, code: str, copies: int = 1) -> str:
        return repr((code, copies))


def test_environments_type_values_by_their_tools() -> None:
    env = PostEnv()
    assert env.step(function("send", code="00123", copies="2"))[0] == "('00123', 2)"
    said = env.step(function("send", code="00123", copies="two"))[0]
    assert said.startswith("Error: The parameter 'copies' of send must be of type integer (char")
