"""Validation: a good program of each kind is accepted, one is rejected for each reason."""

from collections.abc import Iterator

import pytest

from spade_jax.envs.sandbox import Sandbox
from spade_jax.envs.validation import Settings, validate
from spade_jax.types import Kind, Measures, Reason, Verdict
from tests.envs.programs import CHAIN, SEARCH, SUM, game


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(step_seconds=2.0) as box:
        yield box


def judge(sandbox: Sandbox, code: str | None, kind: Kind = Kind.GAME) -> Verdict:
    [verdict] = validate(sandbox, [(code, kind)], seen=())
    return verdict


def change(code: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in code, old
        code = code.replace(old, new)
    return code


@pytest.mark.parametrize(
    ("code", "kind"),
    [(SUM, Kind.GAME), (SEARCH, Kind.GAME), (CHAIN, Kind.TOOL_USE)],
    ids=["sum", "search", "chain"],
)
def test_good_programs_are_accepted(sandbox: Sandbox, code: str, kind: Kind) -> None:
    verdict = judge(sandbox, code, kind)
    assert verdict.accepted, verdict
    assert len(verdict.fingerprint) == len(verdict.behaviour) == 16
    assert judge(sandbox, code, kind) == verdict


REPLY = 'return "Done.", float(action.strip() == self.answer), True, False, {}'

REJECTED = {
    "no code": (Reason.EXTRACT, None),
    "syntax": (Reason.PARSE, SUM + "\nx = ("),
    "too deep": (Reason.PARSE, SUM + "\nx = " + "+".join("1" * 5000)),
    "import": (Reason.IMPORTS, change(SUM, ("import random", "import random, os.path"))),
    "relative import": (Reason.IMPORTS, change(SUM, ("import random", "from . import random"))),
    "hidden import": (Reason.IMPORTS, SUM + "\nx = __import__('os')"),
    "no class": (Reason.CONSTRUCT, change(SUM, ("SumEnv", "Sum"))),
    "two classes": (Reason.CONSTRUCT, SUM + change(SUM, ("SumEnv", "TotalEnv"))),
    "constructor arguments": (
        Reason.CONSTRUCT,
        change(SUM, ("class SumEnv:", "class SumEnv:\n    def __init__(self, n):\n        pass\n")),
    ),
    "import raises": (Reason.CONSTRUCT, SUM + "\nx = 1 / 0"),
    "init raises": (Reason.CONSTRUCT, game(init="1 / 0")),
    "reset raises on some seeds": (Reason.RESET, game(reset="1 / (seed % 7)")),
    "observation empty": (Reason.RESET, game(reset="return '', {}")),
    "step raises on odd actions": (
        Reason.STEP,
        change(SUM, ("action.strip() == self.answer", "int(action) == int(self.answer)")),
    ),
    "reward out of range": (Reason.STEP, change(SUM, ("float(action", "11 * (action"))),
    "hint raises": (Reason.STEP, change(SUM, ("self.a // 10", "self.a // 0"))),
    "exits": (Reason.STEP, change(SUM, (REPLY, "random._os._exit(0)"))),
    "reset hangs": (Reason.LIMITS, game(reset="exec('while 1: pass')")),
    "memory": (Reason.LIMITS, game(reset="self.x = bytes(1 << 31)")),
    "observation too long": (Reason.LIMITS, game(reset="return 'x' * 9000, {}")),
    "unseeded": (Reason.SEEDS, change(SUM, ("random.Random(seed)", "random.Random(id(self))"))),
    "salted": (
        Reason.SEEDS,
        change(SUM, ("rng.randint(11, 99)", "seed * hash('x') % 97")),
    ),
    "hint changes the play": (
        Reason.SEEDS,
        change(SEARCH, ("low = self.answer // 20 * 20", "self.left = low = 2")),
    ),
    "state between objects": (
        Reason.SEEDS,
        change(SUM, ("import random", "import random\nkept = []"), ('"Done."', "str(kept)"))
        .replace("def hint", "def _x(self): pass\n\n    def hint")
        .replace("def step(self, action):", "def step(self, action):\n        kept.append(1)"),
    ),
    "one instance": (Reason.SEEDS, change(SUM, ("random.Random(seed)", "random.Random(1)"))),
    "deaf": (
        Reason.INTERACTIVE,
        change(SEARCH, ('"Higher." if guess < self.answer else "Lower."', '"Go on."')),
    ),
    "no solution": (Reason.SOLVABLE, change(SUM, ("def solution", "def solve"))),
    "wrong solution": (Reason.SOLVABLE, change(SUM, ("return [self.answer]", "return ['-1']"))),
    "solution raises": (Reason.SOLVABLE, change(SUM, ("return [self.answer]", "1 / 0"))),
    "anything wins": (Reason.TRIVIAL, change(SUM, (REPLY, 'return "Done.", 1.0, True, False, {}'))),
    "coin": (
        Reason.TRIVIAL,
        change(SUM, ("str(self.a + self.b)", "'yes' if self.a > self.b else 'no'")),
    ),
    "guessable": (
        Reason.TRIVIAL,
        change(SEARCH, ("1, 100", "1, 9"), ("1 to 100", "1 to 9")),
    ),
    "labelled answer": (
        Reason.LEAK,
        change(SUM, ('{self.b}."', '{self.b}. Answer: {self.answer}"')),
    ),
    "hidden state shown": (Reason.LEAK, change(SEARCH, ('"Find', 'f"({self.answer}) Find'))),
    "hint tells": (Reason.LEAK, change(SUM, ('f"The tens', 'f"It is {self.answer}. The tens'))),
}


PHASES = {
    **{"syntax": "source", "import": "source", "import raises": "construct"},
    **{"reset hangs": "rollout", "exits": "rollout", "hint raises": "hint"},
    **{"solution raises": "solution", "wrong solution": "plays", "coin": "plays"},
}


def test_each_reason(sandbox: Sandbox) -> None:
    designs = [(code, Kind.GAME) for _, code in REJECTED.values()]
    verdicts = validate(sandbox, designs, seen=())
    found = {
        name: (verdict.reason, verdict.message)
        for name, verdict in zip(REJECTED, verdicts, strict=True)
    }
    wrong = {name: found[name] for name in REJECTED if found[name][0] is not REJECTED[name][0]}
    assert not wrong
    for name, (_, message) in found.items():
        assert message.endswith("."), name
    phases = {
        name: verdict.phase
        for name, verdict in zip(REJECTED, verdicts, strict=True)
        if name in PHASES
    }
    assert phases == PHASES


def test_measures_are_shares_of_the_instances(sandbox: Sandbox) -> None:
    odd = ("str(self.a + self.b)", "str(seed % 2 + 1); self.seed = seed")
    parity = change(SUM, odd)
    changing = change(parity, ('return "Done."', 'return action[:self.seed // 2 % 2] + "."'))
    [silent, shown] = validate(sandbox, [(parity, Kind.GAME), (changing, Kind.GAME)], seen=())
    assert silent.reason is shown.reason is Reason.TRIVIAL
    assert silent.measures == Measures(
        null=0.0,
        constant=0.5,
        random=silent.measures.random,
        solution=1.0,
        changes=0.0,
    )
    assert 0.25 < silent.measures.random < 0.75
    assert shown.measures.changes == 0.5
    unsolved = judge(sandbox, REJECTED["wrong solution"][1])
    assert unsolved.measures.solution == 0.0
    assert "lost 4 of 4 instances" in unsolved.message and "told 'Done.'" in unsolved.message
    assert judge(sandbox, REJECTED["init raises"][1]).measures is None


def test_a_tool_environment_needs_its_base(sandbox: Sandbox) -> None:
    verdict = judge(sandbox, SUM, Kind.TOOL_USE)
    assert verdict.reason is Reason.CONSTRUCT
    assert "ToolUseBaseEnv" in verdict.message


ERRANDS = """
import random


class ErrandsEnv(ToolUseBaseEnv):
    def reset(self, seed=None):
        places = [f"room{n}" for n in random.Random(seed).sample(range(100, 999), 3)]
        self.places = places
        self._state = {"seen": []}
        self._tools = {"go": {"description": "Go to a room."}}
        self._user_messages = [f"Go to {place}." for place in places]
        self._message_criteria = [lambda s, p=place: s["seen"][-1] == p for place in places]
        self._expected_answer = "done"
        return self._user_messages[0], {}

    def tool_go(self, to: str):
        self._state["seen"].append(to)
        return f"You are in {to}."

    def solution(self):
        steps = " ".join(f"{n}. go(to='{p}')" for n, p in enumerate(self.places, 1))
        return steps + " ANSWER: done"
"""


def test_a_user_with_several_messages(sandbox: Sandbox) -> None:
    verdict = judge(sandbox, ERRANDS, Kind.TOOL_USE)
    assert verdict.accepted, verdict
    assert verdict.measures.solution == verdict.measures.changes == 1.0
    broken = judge(sandbox, change(ERRANDS, ('s["seen"]', 's["been"]')), Kind.TOOL_USE)
    assert broken.reason is Reason.SOLVABLE
    assert "the criterion of message 1 raised KeyError: 'been'" in broken.message


def test_a_program_may_bring_its_own_base(sandbox: Sandbox) -> None:
    guard = "try:\n    from tools import ToolUseBaseEnv\nexcept ImportError:\n    {}\n"
    assert judge(sandbox, guard.format("pass") + CHAIN, Kind.TOOL_USE).accepted
    bare = judge(sandbox, "from tools import ToolUseBaseEnv\n" + CHAIN, Kind.TOOL_USE)
    assert bare.reason is Reason.IMPORTS
    stub = guard.format("class ToolUseBaseEnv: pass") + CHAIN
    verdict = judge(sandbox, stub, Kind.TOOL_USE)
    assert verdict.reason is Reason.CONSTRUCT
    assert "ChainEnv has no method step" in verdict.message


def test_known_and_repeated_designs_are_not_new(sandbox: Sandbox) -> None:
    renamed = change(SUM, ("SumEnv", "TotalEnv"), ("Bees", "Ants"), ("self.a", "self.first"))
    shifted = change(SUM, ("randint(11, 99)", "randint(11, 60)"))
    designs = [(SUM, Kind.GAME), (renamed, Kind.GAME), (shifted, Kind.GAME)]
    first, second, third = validate(sandbox, designs, seen=())
    assert [v.reason for v in (first, second, third)] == [
        Reason.ACCEPTED,
        Reason.NEW,
        Reason.ACCEPTED,
    ]
    assert second.fingerprint == first.fingerprint
    for mark in (first.fingerprint, first.behaviour):
        [again] = validate(sandbox, designs[:1], seen={mark})
        assert again.reason is Reason.NEW


def test_options_that_the_task_states_are_no_leak(sandbox: Sandbox) -> None:
    code = change(
        SUM,
        ("str(self.a + self.b)", "str(max(self.items))"),
        ("self.a = rng.randint(11, 99)", "self.a = 1; self.items = rng.sample(range(100, 999), 9)"),
        ("add {self.a} and {self.b}", "the largest of {self.items}"),
    )
    assert judge(sandbox, code).accepted


def test_packages_may_be_allowed(sandbox: Sandbox) -> None:
    code = change(
        SUM,
        ("import random", "import random\nfrom packaging.version import Version"),
        ("str(self.a + self.b)", "str(Version(f'{self.a + self.b}.1').major)"),
    )
    refused = judge(sandbox, code)
    assert (refused.reason, refused.phase) == (Reason.IMPORTS, "source")
    settings = Settings(modules=("packaging.version",))
    [allowed] = validate(sandbox, [(code, Kind.GAME)], seen=(), settings=settings)
    assert allowed.accepted, allowed


def test_more_designs_than_processes() -> None:
    with Sandbox(max_instances=4) as box:
        designs = [
            (change(SUM, ("(11, 99)", f"(11, {150 + 60 * i})")), Kind.GAME) for i in range(5)
        ]
        verdicts = validate(box, designs, seen=(), settings=Settings(solve_seeds=2))
    assert [verdict.reason for verdict in verdicts] == [Reason.ACCEPTED] * 5
    assert len({verdict.fingerprint for verdict in verdicts}) == 5


def test_nothing_to_validate(sandbox: Sandbox) -> None:
    assert validate(sandbox, [], seen=()) == []
