"""Parsers on text made of their grammars' pieces: they neither break nor invent, in linear time."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spade_jax.envs import parsers
from spade_jax.envs.parsers import ToolCall, ToolCallError
from spade_jax.types import Kind

fuzz = settings(deadline=None, derandomize=True, max_examples=200)

PIECES = [
    *["<tool_call>", "</tool_call>", "<think>", "</think>", "<answer>", "</answer>"],
    *["<function=f>", "<function=", "</function>", "<parameter=x>", "<parameter=", "</parameter>"],
    *[
        '{"name": "f", "arguments": ',
        '{"name":',
        '"f"',
        ', "parameters": ',
        '"{\\"x\\": 1}"',
        "NaN",
    ],
    *["{}", '{"x": 1}', '{"x": "</think>"}', "{'name': 'f', 'arguments': {'x': None}}", "1e999"],
    *["\\boxed{", "\\fbox{", "\\boxed {", "{", "}", "[", "]", "\\{", "\\}", "\\", "\\\\", ","],
    *["```", "````", "~~~", "```python", "```json", "\n", "\r\n", " ", "class AEnv:", "    pass"],
    *['"""', "'''", "#", '"', "'", "\\u", "\\ud800", "\ud800", "\0", "é", "1", "-", ":", "true"],
    *['<tool_call>{"name": "f", "arguments": {}}</tool_call>', "\n```python\nclass BEnv:\n"],
]
soup = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=40).map("".join)
TOOLS = [
    {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}, "y": {"type": "array"}}}}
]

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-]{0,8}", fullmatch=True)
strings = st.one_of(st.text(), soup.filter(lambda text: "\ud800" not in text))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
calls = st.lists(st.tuples(names, st.dictionaries(strings, values, max_size=3)), max_size=4)


def read(text: str, *tools: Any, literals: bool = False) -> list[ToolCall] | None:
    """The calls, or None where a call is faulty; nothing else may happen."""
    try:
        return parsers.tool_calls(text, *tools, literals=literals)
    except ToolCallError as error:
        assert 0 <= error.position <= len(text) and error.problem
        return None


def said(text: str, **options: Any) -> list[tuple[str, dict]] | None:
    found = read(text, **options)
    return found and [(call.name, call.arguments) for call in found]


def check_written(text: str, call: ToolCall) -> None:
    """The call stands in the text as it was read."""
    source = text[call.position : call.end]
    if source.startswith("{"):
        given = json.loads(source)
        assert given["name"] == call.name and call.name
        [arguments] = [given[key] for key in ("arguments", "parameters") if key in given]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        assert arguments == call.arguments
    else:
        assert source.startswith(f"<function={call.name}>") and source.endswith("</function>")
        rest = source
        for key, value in call.arguments.items():
            _, opened, rest = rest.partition(f"<parameter={key}>")
            assert opened and (value if isinstance(value, str) else json.dumps(value)) in rest
    before = text[: call.position]
    assert "<tool_call>" in before and before.rfind("</think>") <= before.rfind("<tool_call>")


@fuzz
@given(soup)
def test_no_text_breaks_a_parser_and_no_call_is_invented(text: str) -> None:
    for call in read(text) or []:
        check_written(text, call)
        again = read(f"<tool_call>{text[call.position : call.end]}</tool_call>")
        assert [(c.name, c.arguments) for c in again] == [(call.name, call.arguments)]
    read(text, TOOLS)
    read(text, TOOLS, literals=True)
    for part in (parsers.answer(text), parsers.boxed(text)):
        assert part is None or (part and part in text)
    code = parsers.extract_code(text)
    assert not code or "Env" in code


@fuzz
@given(soup)
def test_the_action_holds_the_calls_of_the_reply(text: str) -> None:
    """What is passed on to the environment means there what it meant in the reply."""
    action = parsers.parse_action(Kind.TOOL_USE, text)
    assert parsers.parse_action(Kind.GAME, text) == parsers.boxed(text)
    if action is None:
        assert read(text) == [] and parsers.answer(text) is None
    else:
        assert said(action) == said(text) and parsers.answer(action) == parsers.answer(text)


@fuzz
@given(calls, st.integers(0, 3))
def test_json_calls_come_back(wanted: list[tuple[str, dict]], style: int) -> None:
    key = "parameters" if style == 1 else "arguments"
    written = [
        json.dumps(
            {"name": name, key: json.dumps(arguments) if style == 2 else arguments},
            ensure_ascii=style == 3,
            indent=style or None,
        )
        for name, arguments in wanted
    ]
    separate = "".join(f"So: <tool_call>\n{each}\n</tool_call>\n" for each in written)
    assert said(separate) == said(separate, literals=True) == wanted
    assert said(f"<think>{separate}</think> {separate}") == wanted
    if written:
        assert said("<tool_call>" + " ".join(written) + "</tool_call>") == wanted


@fuzz
@given(calls)
def test_python_literals_come_back(wanted: list[tuple[str, dict]]) -> None:
    written = [repr({"name": name, "arguments": arguments}) for name, arguments in wanted]
    text = "".join(f"<tool_call>{each}</tool_call>" for each in written)
    assert said(text, literals=True) == wanted


ends = ("<parameter=", "</parameter>", "</function>")
xml_calls = st.lists(
    st.tuples(
        names,
        st.dictionaries(
            names, strings.filter(lambda text: not any(end in text for end in ends)), max_size=3
        ),
    ),
    max_size=4,
)


@fuzz
@given(xml_calls, st.sampled_from(["\n", ""]))
def test_xml_calls_come_back(wanted: list[tuple[str, dict]], line_break: str) -> None:
    text = ""
    for name, arguments in wanted:
        inside = "".join(
            f"<parameter={k}>\n{v}\n</parameter>{line_break}" for k, v in arguments.items()
        )
        text += (
            f"<tool_call>{line_break}<function={name}>{line_break}{inside}</function></tool_call>"
        )
    assert said(text) == wanted


@fuzz
@given(soup.filter(lambda text: "</think>" not in text), soup)
def test_nothing_is_read_from_thinking(thought: str, reply: str) -> None:
    text = f"<think>{thought}</think>{reply}"
    assert said(text) == said(reply)
    assert parsers.answer(text) == parsers.answer(reply)
    assert parsers.boxed(text) == parsers.boxed(reply)


@fuzz
@given(soup, soup)
def test_a_box_comes_back(before: str, content: str) -> None:
    escaped = content.replace("\\", "").replace("{", "").replace("}", "").replace("think>", "")
    text = before.replace("think>", "") + "\\ \\boxed{" + escaped + "}"
    assert parsers.boxed(text) == (escaped.strip() or None)


@fuzz
@given(st.lists(st.sampled_from(["x = 1", "    pass", "'it'", '"a"', "# don't", ""]), max_size=8))
def test_a_program_comes_back(lines: list[str]) -> None:
    code = "\n".join(["class AEnv:", *lines, '    """Says:', "```", "x", "```", '    """', ""])
    assert parsers.extract_code(f"Here.\n```python\n{code}```\nDone.") == code


# -- time -------------------------------------------------------------------------------------


def seconds(parse: Callable[[str], Any], text: str) -> float:
    start = time.process_time()
    parse(text)
    return time.process_time() - start


PARSERS = {
    "calls": read,
    "literals": lambda text: read(text, TOOLS, literals=True),
    "answer": parsers.answer,
    "boxed": parsers.boxed,
    "code": parsers.extract_code,
}
UNITS = [
    *["<tool_call>", '<tool_call>{"', "<tool_call>{'\"'", '<tool_call>{"a": "', "<tool_call>{"],
    *["<tool_call>{</think>", "<tool_call><function=a><parameter=b>x</think>", "{", "["],
    *["<tool_call><function=a><parameter=b>", "</parameter> ", "<answer>", "</answer>", "<think>"],
    *["\\boxed{", "\\boxed ", "```\n", "``` x\n", "```python\nclass AEnv: \\'''\n```\n", "~~~\n"],
    *["```python\n'''\n", "` ", " ", "\\", '"', "'", "</think>", "class E\n"],
    *['{"name": "a", "arguments": {}}', '<tool_call>{"name": "a", "arguments": {}}</tool_call>'],
]


@pytest.mark.parametrize(
    "before", ["", "<tool_call>", "<tool_call><function=a><parameter=b>", "``` "]
)
@pytest.mark.parametrize("parser", PARSERS)
def test_time_grows_like_the_text(parser: str, before: str) -> None:
    """Eight times the text: 8 times the work where it is linear, 64 times where it is quadratic."""
    for unit in UNITS:
        short, long = (before + unit * (size // len(unit)) for size in (5_000, 40_000))
        for _ in range(8):
            ratio = seconds(PARSERS[parser], long) / (seconds(PARSERS[parser], short) + 2e-4)
            if ratio < 24:
                break
        assert ratio < 24, f"{parser} on many {unit!r}"
