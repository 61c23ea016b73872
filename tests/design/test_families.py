"""The bundled families: their programs keep the contract, their players play as they should."""

from __future__ import annotations

import ast
import collections
import functools
import random
import re
from typing import Any

import pytest

from spade_jax.design.families import FAMILIES, LEVELS, Program, sample_program
from spade_jax.envs.fingerprint import fingerprint
from spade_jax.envs.leaks import copied_share, hint_leaks, labelled_answer
from spade_jax.envs.tool_use import ToolUseBaseEnv
from spade_jax.types import Kind

CASES = [(family, level) for family in FAMILIES for level in LEVELS]
every_case = pytest.mark.parametrize(("family", "level"), CASES)
THEME = "Honey Bees"
SEEDS = range(100, 124)


@functools.cache
def _program(family: str, level: int, draw: int) -> Program:
    return sample_program(random.Random(f"{family} {level} {draw}"), family, level, THEME)


def _programs(family: str, level: int, n: int) -> list[Program]:
    return [_program(family, level, draw) for draw in range(n)]


@functools.cache
def _class_of(code: str) -> type:
    namespace: dict[str, Any] = {"__name__": "env", "ToolUseBaseEnv": ToolUseBaseEnv}
    exec(code, namespace)
    [found] = [v for k, v in namespace.items() if k.endswith("Env") and k != "ToolUseBaseEnv"]
    return found


def _start(code: str, seed: int) -> tuple[Any, str]:
    env = _class_of(code)()
    return env, env.reset(seed)[0]


def _solution(code: str, seed: int) -> tuple[str, ...]:
    return tuple(_start(code, seed)[0].solution())


def _won(code: str, seed: int, actions: Any) -> bool:
    """Whether the actions (an iterator, or a function of the observation) reach reward 1."""
    env, observation = _start(code, seed)
    for _ in range(30):
        action = actions(observation) if callable(actions) else next(actions, "")
        observation, reward, terminated, truncated, _ = env.step(action)
        assert observation and reward in (0.0, 1.0)
        if terminated or truncated:
            return reward == 1.0
    raise AssertionError("the episode has no end")


def _win_rate(family: str, level: int, *, careful: bool, hinted: bool) -> float:
    wins = []
    for program in _programs(family, level, 6):
        for seed in SEEDS:
            env, observation = _start(program.code, seed)
            text = f"{observation}\nHint: {env.hint()}" if hinted else observation
            rng = random.Random(f"{program.code} {seed}")
            solution = _solution(program.code, seed)
            player = FAMILIES[family].player(rng, text, solution, careful)
            first = [text]
            wins.append(
                _won(program.code, seed, lambda o, p=player, f=first: p.act(f.pop() if f else o))
            )
    return sum(wins) / len(wins)


# -- programs ---------------------------------------------------------------------------------


@every_case
def test_program_is_short_plain_python_in_the_one_layout(family: str, level: int) -> None:
    for program in _programs(family, level, 40):
        assert 300 <= len(program.code) <= 1200
        first, last = ast.parse(program.code).body
        assert ast.unparse(first) == "import random"
        assert isinstance(last, ast.ClassDef) and last.name.endswith("Env")
        methods = [node.name for node in last.body if isinstance(node, ast.FunctionDef)]
        assert methods[0] == "reset" and methods[-2:] == ["hint", "solution"]
        if program.kind is Kind.TOOL_USE:
            assert ast.unparse(last.bases[0]) == "ToolUseBaseEnv" and "step" not in methods
        else:
            assert methods == ["reset", "step", "hint", "solution"] and not last.bases


@every_case
def test_first_observation_is_short_and_starts_with_the_theme(family: str, level: int) -> None:
    for program in _programs(family, level, 6):
        for seed in SEEDS:
            _, observation = _start(program.code, seed)
            assert observation.startswith(f"{THEME}: ") and "\n" not in observation
            assert len(observation.split()) <= 40


@every_case
def test_solution_wins_within_seven_turns(family: str, level: int) -> None:
    for program in _programs(family, level, 6):
        for seed in SEEDS:
            solution = _solution(program.code, seed)
            assert len(solution) <= 7 and all(isinstance(move, str) for move in solution)
            assert _won(program.code, seed, iter(solution))


@every_case
def test_instances_follow_the_seed(family: str, level: int) -> None:
    code = _program(family, level, 0).code
    for seed in SEEDS:
        (one, first), (two, second) = _start(code, seed), _start(code, seed)
        assert first == second and one.hint() == two.hint()
        assert _solution(code, seed) == _solution(code, seed)
    assert len({(_start(code, seed)[1], _solution(code, seed)) for seed in SEEDS}) > 3


@every_case
def test_hint_never_gives_the_answer(family: str, level: int) -> None:
    for program in _programs(family, level, 12):
        for seed in SEEDS:
            env, observation = _start(program.code, seed)
            hint, solution = env.hint(), _solution(program.code, seed)
            assert not hint_leaks(hint, solution, observation), (hint, solution)
            answer = re.sub(r"<[^>]*>", "", solution[-1])
            options = re.findall(r"\w+", observation) if len(solution) > 1 else []
            if answer not in options:
                assert not re.search(rf"(?<![\w-]){re.escape(answer)}(?!\w)", hint), program.code


@every_case
def test_observation_never_gives_the_answer(family: str, level: int) -> None:
    for program in _programs(family, level, 4):
        pairs = [(_start(program.code, s)[1], _solution(program.code, s)) for s in range(60)]
        observations, solutions = zip(*pairs, strict=True)
        if family not in ("lock", "grid"):  # of their options only the order is the answer
            assert copied_share(observations, solutions) <= 0.4
        assert not any(labelled_answer(*pair) for pair in pairs)


@every_case
def test_hint_depends_on_the_instance(family: str, level: int) -> None:
    code = _program(family, level, 1).code
    assert len({_start(code, seed)[0].hint() for seed in SEEDS}) > 1


@every_case
def test_no_constant_action_wins(family: str, level: int) -> None:
    for program in _programs(family, level, 2):
        seeds, others = range(200), range(200, 300)
        answers = collections.Counter(_solution(program.code, seed)[-1] for seed in others)
        constants = [answer for answer, _ in answers.most_common(2)] + ["", "0", "yes"]
        for constant in constants:
            wins = sum(_won(program.code, seed, lambda _, c=constant: c) for seed in seeds)
            assert wins / len(seeds) <= 0.1, (constant, program.code)


@every_case
def test_random_valid_actions_rarely_win(family: str, level: int) -> None:
    wins = []
    for program in _programs(family, level, 8):
        for seed in range(30):
            rng = random.Random(f"play {seed}")
            env, observation = _start(program.code, seed)
            actions = _valid_actions(family, program.code, seed, env, observation)
            wins.append(_won(program.code, seed, lambda _, a=actions, r=rng: r.choice(a)))
    assert sum(wins) / len(wins) <= 0.25


def _valid_actions(family: str, code: str, seed: int, env: Any, observation: str) -> list[str]:
    if family == "search":
        low, high = map(int, re.findall(r"from (\d+) to (\d+)", observation)[0])
        return [str(number) for number in range(low, high + 1)]
    if family == "grid":
        return ["left", "right", "up", "down"]
    if family == "lock":
        return env.plan
    if family in ("letters", "order"):
        items = env.plan[0].split()
        return [" ".join(random.Random(f"{seed} {i}").sample(items, len(items))) for i in range(50)]
    return [_solution(code, other)[-1] for other in range(1000, 1020)]


@pytest.mark.parametrize("family", FAMILIES)
def test_programs_differ_by_more_than_their_words(family: str) -> None:
    total = set()
    for level in LEVELS:
        marks = {fingerprint(program.code) for program in _programs(family, level, 200)}
        assert len(marks) >= 100  # half of them
        total |= marks
    assert len(total) >= 650


def test_programs_follow_the_rng_and_the_theme() -> None:
    for family, level in CASES:
        one, two = (sample_program(random.Random(7), family, level, "Bees") for _ in range(2))
        assert one == two and one.family == family and one.level == level
        other = sample_program(random.Random(7), family, level, "Old Maps")
        assert other.code == one.code.replace("Bees", "Old Maps") != one.code


def test_median_length_is_moderate() -> None:
    lengths = sorted(len(_program(family, level, 0).code) for family, level in CASES)
    assert lengths[len(lengths) // 2] <= 850


@pytest.mark.parametrize(
    ("family", "level", "theme", "message"),
    [
        ("chess", 1, "Bees", "choose one of sum, sequence"),
        ("sum", 6, "Bees", "choose one from 1 to 5"),
        ("sum", 1, 'Bees"', "use words of letters"),
    ],
)
def test_wrong_arguments_say_what_to_choose(
    family: str, level: int, theme: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sample_program(random.Random(0), family, level, theme)


# -- players ----------------------------------------------------------------------------------

# At these levels the presses do not always suffice to find the lock's order without its hint.
HARD = {("lock", 3), ("lock", 4), ("lock", 5)}


@every_case
def test_careful_player_wins_where_it_can(family: str, level: int) -> None:
    hinted = _win_rate(family, level, careful=True, hinted=True)
    plain = _win_rate(family, level, careful=True, hinted=False)
    if (family, level) in HARD:
        assert hinted >= plain + 0.1
    else:
        assert plain == hinted == 1.0


@every_case
def test_careless_player_loses_clearly_more_often(family: str, level: int) -> None:
    for hinted in (False, True):
        careful = _win_rate(family, level, careful=True, hinted=hinted)
        careless = _win_rate(family, level, careful=False, hinted=hinted)
        assert careless <= careful - 0.1


def test_careful_search_starts_inside_the_hint() -> None:
    text = "Bees: find the number from 1 to 60 in 7 guesses.\nHint: It is above 19 and below 25."
    player = FAMILIES["search"].player(random.Random(0), text, ("22",), True)
    assert player.act(text) == "22"
    assert player.act("Higher.") == "23"
    assert player.act("Higher.") == "24"


def test_careful_walk_goes_across_then_along() -> None:
    text = "Bees: walk from 2,3 to 0,4 in 3 moves: left, right, up, down."
    player = FAMILIES["grid"].player(random.Random(0), text, (), True)
    assert [player.act(text), player.act("At 1,3."), player.act("At 0,3.")] == [
        "left",
        "left",
        "up",
    ]


def test_careful_lock_keeps_what_clicked() -> None:
    text = "Bees: press buttons 8, 3, 5 in the hidden order, 7 presses."
    player = FAMILIES["lock"].player(random.Random(0), text, (), True)
    answers = [text, "Reset.", "Click.", "Reset.", "Click.", "Click."]
    # 3 comes first; 8 does not follow, so 5 does; 8 is last
    assert [player.act(a) for a in answers] == ["8", "3", "8", "3", "5", "8"]


def _asked(question: str, *answers: str, family: str = "chain") -> list[str]:
    """What a careful asker says to a question and to each result: a tool and a name, or a value."""
    player = FAMILIES[family].player(random.Random(0), question, (), True)
    said = [player.act(text) for text in (question, *answers)]
    return [" ".join(re.findall(r'"name": "(\w+)"', one)) or one for one in said]


def test_careful_chain_follows_each_result_and_skips_what_the_hint_gives() -> None:
    question = "Bees: what is the seat of the aunt of the aunt of cid? Tools: aunt, seat."
    results = [f"<tool_response>\n{x}\n</tool_response>" for x in ("leo", "ned", "71")]
    assert _asked(question, *results) == [
        "aunt cid",
        "aunt leo",
        "seat ned",
        "<answer>71</answer>",
    ]
    hinted = question + "\nHint: The aunt of cid is leo."
    assert _asked(hinted, *results[1:]) == ["aunt leo", "seat ned", "<answer>71</answer>"]


@pytest.mark.parametrize(
    ("question", "hint", "results", "asked", "answer"),
    [
        ("what is the price of tea?", "Call price for tea.", "40", "tea", "40"),
        ("what is the lowest price of tea, ham?", "", "40 31", "tea ham", "31"),
        ("what is the highest price of tea, ham?", "", "40 31", "tea ham", "40"),
        ("what is the highest price of tea, ham?", "It is the price of ham.", "41", "ham", "41"),
        ("what price have tea, ham together?", "", "40 31", "tea ham", "71"),
        ("what price have tea, ham together?", "tea have 40.", "31", "ham", "71"),
    ],
)
def test_careful_stock_asks_for_what_it_needs(
    question: str, hint: str, results: str, asked: str, answer: str
) -> None:
    text = f"Bees: {question} Tools: price." + (f"\nHint: {hint}" if hint else "")
    *calls, last = _asked(text, *results.split(), family="stock")
    assert calls == [f"price {name}" for name in asked.split()]
    assert last == f"<answer>{answer}</answer>"
