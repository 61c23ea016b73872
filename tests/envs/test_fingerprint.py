"""Fingerprints: blind to wording, awake to numbers and operations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spade_jax.envs.fingerprint import fingerprint

BASE = '''
import random

class SumEnv:
    """Adds."""

    limit: int = 3

    def reset(self, seed: int = None):
        rng = random.Random(seed)
        self.a = rng.randint(1, 9)
        self.b = [i * 2 for i in range(self.limit)]
        return f"Bees: add {self.a:02d} and {self.b}.", {}

    def step(self, action):
        # compare
        won = action.strip() == str(self.a + len(self.b))
        return "Done.", float(won), True, False, {}
'''

REWORDED = """
import random

class AdditionEnv:
    count = 3

    def reset(self, number=None):
        "Start."
        generator = random.Random(number)
        self.first = generator.randint(1, 9)
        self.index = [each * 2 for each in range(self.count)]
        return f"Ants: sum of {self.first:2d}, {self.index}!", {}

    def step(self, a):
        b = a.strip() == str(self.first + len(self.index))
        return "The end", float(b), True, False, {}
"""


def test_wording_does_not_count() -> None:
    assert fingerprint(BASE) == fingerprint(REWORDED)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("randint(1, 9)", "randint(1, 8)"),
        ("randint", "randrange"),
        ("i * 2", "i + 2"),
        ("limit: int = 3", "limit: int = 4"),
        ("self.a + len", "self.a - len"),
        ("==", "!="),
        ("strip", "lower"),
        ("True, False", "False, True"),
        (" and {self.b}", ""),
        ("import random\n", "import random\nimport math\n"),
        ("len(self.b)", "max(self.b)"),
        ("str(self.a +", "str(self.limit +"),
        ("(1, 9)", "(1, 9.0)"),
    ],
)
def test_substance_counts(old: str, new: str) -> None:
    assert old in BASE
    assert fingerprint(BASE) != fingerprint(BASE.replace(old, new))


def test_which_variable_is_used_counts() -> None:
    one = "def f(a, b):\n    return a - b\n"
    assert fingerprint(one) == fingerprint("def g(x, y):\n    return x - y\n")
    assert fingerprint(one) != fingerprint("def g(x, y):\n    return y - x\n")


def test_scopes_do_not_mix() -> None:
    one = "def f(a):\n    return a\ndef g(a):\n    return a\n"
    other = "def f(a):\n    return a\ndef g(b):\n    return b\n"
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint("x = 1\ndef f():\n    return x\n") != fingerprint(
        "x = 1\ndef f():\n    x = 1\n    return x\n"
    )


@given(st.integers(), st.integers())
def test_numbers_are_kept(a: int, b: int) -> None:
    assert (fingerprint(f"x = {a}") == fingerprint(f"x = {b}")) is (a == b)


def test_form_and_errors() -> None:
    assert len(fingerprint("x = 1")) == 16
    assert int(fingerprint("x = 1"), 16) >= 0
    with pytest.raises(SyntaxError):
        fingerprint("x = (")
    with pytest.raises(SyntaxError):
        fingerprint("x = " + "+".join("1" * 5000))
