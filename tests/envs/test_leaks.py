"""Answers given away by hints and observations."""

import pytest

from spade_jax.envs.leaks import copied_share, hint_leaks, labelled_answer, tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ten  APPLES, please!", ("ten", "apples", "please")),
        (r"\boxed{1,200.50}", ("1200.5",)),
        ("from 3-5 to -7, (-2)", ("from", "3", "5", "to", "-7", "-2")),
        ("<answer>a_b2</answer>", ("a", "b", "2")),
        ("!?", ()),
    ],
)
def test_tokens(text: str, expected: tuple[str, ...]) -> None:
    assert tokens(text) == expected


@pytest.mark.parametrize(
    ("hint", "solution", "observation", "leaks"),
    [
        ("The sum is 75.", ["75"], "add", True),
        ("The sum is 75.0 now", ["75"], "add", True),
        ("The tens make 60.", ["75"], "add", False),
        ("It is 175 or 7 5.", ["75"], "add", False),
        ("It is NEW york!", ["New York"], "where", True),
        ("It is new, york", ["New York"], "where", True),
        ("It is new, in york", ["New York"], "where", False),
        ("spelled p l u m", ["plum"], "reverse", False),
        ("Not -5", ["5"], "", False),
        ("Press red first.", ["red", "blue"], "", False),
        ("Press blue at last.", ["red", "blue"], "", True),
        ("Press blue at last.", ["red", "blue"], "Buttons: red, blue.", False),
        ("red, then blue", ["red", "blue"], "Buttons: red, blue.", True),
        ("blue, then red", ["red", "blue"], "Buttons: red, blue.", False),
        ("The boss is bob.", ["<tool_call>x</tool_call>", "<answer>Oslo</answer>"], "", False),
        ("Bob lives in oslo", ["<tool_call>x</tool_call>", "<answer>Oslo</answer>"], "", True),
        ("anything", ["?"], "", False),
        ("anything", [], "", False),
    ],
)
def test_hint_leaks(hint: str, solution: list[str], observation: str, leaks: bool) -> None:
    assert hint_leaks(hint, solution, observation) is leaks


@pytest.mark.parametrize(
    ("observation", "leaks"),
    [
        ("Add 4 and 5. Answer: 9", True),
        ("The secret number is 9.", True),
        ("secret=9", True),
        ("Add 4 and 5. Answer: a number", False),
        ("Add 9 and 0", False),
    ],
)
def test_labelled_answer(observation: str, leaks: bool) -> None:
    assert labelled_answer(observation, ["9"]) is leaks


def test_a_fixed_place_that_holds_the_answer_is_a_copy() -> None:
    words = [f"w{chr(97 + i)}" for i in range(10)]
    assert copied_share([f"Say {w} now" for w in words], [[w] for w in words]) == 0.9
    from_the_back = [f"{'x ' * i}{w} now" for i, w in enumerate(words)]
    assert copied_share(from_the_back, [[w] for w in words]) == 0.9


def test_options_are_no_copy() -> None:
    rotations = [
        ["red", "blue", "green", "pink"][i:] + ["red", "blue", "green"][:i] for i in range(4)
    ]
    observations = ["Which of " + ", ".join(r) for r in rotations]
    assert copied_share(observations, [["pink"]] * 4) == 0.0
    assert copied_share(["up or down"] * 8, [["up"]] * 8) == 0.0
