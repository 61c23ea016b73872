"""Programs, boxed answers, answers and actions, read from replies; values worked out by hand."""

import pytest

from spade_jax.envs import checks, parsers
from spade_jax.envs.parsers import (
    answer,
    boxed,
    extract_code,
    extract_hint,
    parse_action,
    spoken,
)
from spade_jax.types import CUT_OFF, Kind, Reason

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
    ["", ENV, block("class A:\n    pass\n"), block(ENV, "json"), "```", "```json\n" + ENV],
)
def test_no_code(reply: str) -> None:
    assert extract_code(reply) is None


@pytest.mark.parametrize(
    "reply",
    [
        "```python\n" + ENV,
        "```\r\n" + ENV.replace("\n", "\r\n"),
        "~~~py\n" + ENV + "```\n",
        "```python\nimport random\n",
        block("x = 1\n") + "```python\nimport",
        "<think>Perhaps " + block(ENV),
    ],
)
def test_code_that_is_cut_off(reply: str) -> None:
    assert extract_code(reply) == CUT_OFF


def test_the_verdicts_tell_cut_off_from_missing() -> None:
    cut = checks.check_source(extract_code("```python\n" + ENV))
    missing = checks.check_source(extract_code("No idea."))
    assert cut.reason is missing.reason is Reason.EXTRACT
    assert "was cut off" in cut.message and "holds no complete" in missing.message


def test_a_complete_program_before_one_that_is_cut_off() -> None:
    assert extract_code(block(ENV) + "Better:\n```python\nclass BEnv:\n") == ENV


def test_programs_while_thinking_are_drafts() -> None:
    draft = "```python\nclass DraftEnv:\n    x = ```\n"
    assert extract_code(draft + "Hm.\n</think>\n\n" + block(ENV)) == ENV
    assert extract_code("<think>" + block(ENV) + "No.</think>\nI give up.") is None
    says = 'class AEnv:\n    text = "Think in <think></think> first."\n'
    assert extract_code(block(says)) == says


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("  ```python\n  class AEnv:\n      pass\n  ```", ENV),
        ("```python\n\n    class AEnv:\n        pass\n```", "\n" + ENV),
        ("~~~ python\n" + ENV + "~~~", ENV),
        ("```python title=a.py\n" + ENV + "```", ENV),
    ],
)
def test_code_however_it_is_set(reply: str, code: str) -> None:
    assert extract_code(reply) == code


@pytest.mark.parametrize(
    "code",
    [
        "@final\nclass\tAEnv(Base, metaclass=M):\n  x = 1\n",
        "if True:\n  class AEnv: x = 1\n",
        "class A_2Env (B) :\n    pass\n",
    ],
)
def test_classes_however_they_are_written(code: str) -> None:
    assert extract_code(block(code) + block("class Envelope:\n    pass\n")) == code


def test_quotes_that_open_no_docstring() -> None:
    """Comments, escaped quotes and quotes inside a string leave the block's end where it is."""
    code = "class AEnv:\n    # don't: \"\"\"\n    x = \"it's '''\"\n    y = '\\'\"\"\"'\n"
    assert extract_code(block(code) + "So.\n" + block("print(1)\n")) == code


def test_a_docstring_that_never_ends_is_left_to_the_parse_verdict() -> None:
    code = 'class AEnv:\n    """Open\n'
    assert extract_code(block(code) + "Text.\n") == code


@pytest.mark.parametrize(
    ("reply", "hint"),
    [
        ("Hint: Add the tens.\n" + block(ENV), "Add the tens."),
        (block(ENV) + "\n**Hint:** Add\nthe tens.\n\nDone.", "Add\nthe tens."),
        ("## hint :\n\nAdd.\n\nNow:\n" + block(ENV), "Add."),
        ("Hint: One.\n\nHint: Two.\n" + block(ENV) + "Hint:\n", "Two."),
        ("<think>\nHint: Draft.\n</think>\nHint: Add.\n" + block(ENV), "Add."),
        ("Hint: Add.\r\n\r\n" + block(ENV).replace("\n", "\r\n"), "Add."),
        (block("# x\nHint: code\n" + ENV), None),
        ("The hint: it stands in a sentence.\n" + block(ENV), None),
        ("Hint:\n" + block(ENV), None),
        ("<think>\nHint: Never said.\n", None),
        ("Hint: Add.\n```python\nHint: cut off\n", "Add."),
    ],
)
def test_hint_beside_a_program(reply: str, hint: str | None) -> None:
    assert extract_hint(reply) == hint


def test_what_is_said_outside_thinking() -> None:
    assert spoken("<think>Hm.</think>\n\nAdd it. ") == "Add it."
    assert spoken("Add.") == "Add." and spoken("<think>Never") == ""


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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<answer> oslo </answer>", "oslo"),
        ("<answer>a</answer> <answer>b</answer>", "b"),
        ("<answer><answer>c</answer>", "c"),
        ("<answer></answer>", None),
        ("<answer>open", None),
        ("<think><answer>a</answer></think>", None),
        ("<answer>a</answer></think><answer>b</answer>", "b"),
        ("<answer>a</answer> or </answer>", "a"),
        ("</answer><answer>a", None),
    ],
)
def test_answer(text: str, value: str | None) -> None:
    assert answer(text) == value


def test_what_a_call_holds_is_no_answer_and_no_thought() -> None:
    call = '<tool_call>{"name": "a", "arguments": {"x": "<answer>1</answer></think><think>"}}'
    call += "</tool_call>"
    assert answer(call) is None
    assert answer(f"<answer>2</answer>{call}") == "2"
    assert parse_action(Kind.TOOL_USE, f"hm</think> {call} ") == call


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
