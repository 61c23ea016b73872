"""The warm start's lessons: what they are about, how careful their players are."""

import collections
import dataclasses
from collections.abc import Iterator

import pytest

from spade_jax.design.corpus import Corpus
from spade_jax.design.families import FAMILIES, LEVELS, Program
from spade_jax.envs import parsers
from spade_jax.envs.sandbox import Sandbox
from spade_jax.play import lessons
from spade_jax.play.episodes import Rules
from spade_jax.play.lessons import CARE, Lesson
from spade_jax.policy.conversation import Budget
from spade_jax.types import Arm, Kind

RULES = Rules(
    prompts="tiny",
    max_turns=8,
    budget=Budget(reply=48, context=384),
    return_mode="final",
    discount=1.0,
)


@pytest.fixture(scope="module")
def corpus() -> Iterator[Corpus]:
    with Corpus("", seed=1, max_words=24) as corpus:
        yield corpus


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


def design(number: int, corpus: Corpus) -> Lesson:
    return lessons.design_lesson(3, number, corpus, prompt_set="tiny", code_characters=240)


def test_programs_are_of_all_families_and_levels(corpus: Corpus) -> None:
    programs = [lessons.draw_program(3, n, corpus)[0] for n in range(400)]
    assert collections.Counter(p.family for p in programs) == dict.fromkeys(
        FAMILIES, 400 // len(FAMILIES)
    )
    levels = collections.Counter(p.level for p in programs)
    assert set(levels) == set(LEVELS) and min(levels.values()) > 400 / 5 * 0.7
    assert lessons.draw_program(3, 17, corpus) == lessons.draw_program(3, 17, corpus)
    assert programs[17].code != lessons.draw_program(4, 17, corpus)[0].code


def test_a_design_lesson_ends_with_the_program_it_asks_for(corpus: Corpus) -> None:
    for n in range(60):
        lesson = design(n, corpus)
        program, document = lessons.draw_program(3, n, corpus)
        *asked, reply = lesson.messages
        assert (reply.role, {m.role for m in asked}) == ("assistant", {"user"})
        assert parsers.extract_code(reply.content).strip() == program.code.strip()
        assert program.skill in asked[-1].content and document in asked[-1].content
        assert (lesson.role, lesson.family, lesson.level) == (
            "designer",
            program.family,
            program.level,
        )


def test_examples_point_the_right_way(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Good ones lie beside the program's level; too easy ones below it, too hard ones above."""
    drawn: list[tuple[int, float]] = []
    example = lessons._example

    def noted(rng: object, family: str, level: int, corpus: Corpus, win_rate: float) -> object:
        drawn.append((level, win_rate))
        return example(rng, family, level, corpus, win_rate)

    monkeypatch.setattr(lessons, "_example", noted)
    seen = collections.Counter()
    for n in range(300):
        drawn.clear()
        text = design(n, corpus).messages[-2].content
        own = lessons.draw_program(3, n, corpus)[0].level
        for level, win_rate in drawn:
            word = {0.5: "Good:", 1.0: "Too easy:", 0.0: "Too hard:"}[win_rate]
            assert word in text
            seen[word] += 1
            assert {
                "Good:": abs(level - own) <= 1,
                "Too easy:": level < own,
                "Too hard:": level > own,
            }[word]
    # 70% show a good one; half a bad one, less those at the end of the scale.
    assert 0.6 < seen["Good:"] / 300 < 0.8
    assert min(seen["Too easy:"], seen["Too hard:"]) > 300 * 0.25 * 0.6


def test_play_lessons_alternate_arms(corpus: Corpus, sandbox: Sandbox) -> None:
    programs = [lessons.draw_program(3, n, corpus)[0] for n in range(2 * len(FAMILIES))]
    played = list(
        lessons.play_lessons(sandbox, programs, RULES, seed=3, episodes=2, single_turn_episodes=2)
    )
    assert len(played) == 2 * len(programs)
    for n, lesson in enumerate(played):
        program = programs[n // 2]
        assert (lesson.role, lesson.family, lesson.level) == (
            "agent",
            program.family,
            program.level,
        )
        roles = [m.role for m in lesson.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert ("Hint: " in lesson.messages[0].content) == (n % 2 == 1)
        for said in lesson.messages[1::2]:
            assert parsers.parse_action(program.kind, said.content) is not None
    again = list(
        lessons.play_lessons(sandbox, programs, RULES, seed=3, episodes=2, single_turn_episodes=2)
    )
    assert again == played


def test_care_rises_with_the_hint_and_falls_with_the_level(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shares of careful players over many episodes are those the table asks for."""
    asked: dict[tuple[Arm, int], list[bool]] = collections.defaultdict(list)

    def script(parts: list[tuple[Program, tuple[str, ...], bool, int]], *_: object) -> None:
        for k, (program, _, careful, _) in enumerate(parts):
            asked[Arm.HINTED if k % 2 else Arm.PLAIN, program.level].append(careful)

    monkeypatch.setattr(lessons, "Script", script)
    monkeypatch.setattr(lessons, "play", lambda *_, **__: [])
    monkeypatch.setattr(
        lessons, "solve", lambda _, programs, seeds: [[("1",)] * len(seeds) for _ in programs]
    )
    program = Program(family="sum", skill="s", kind=Kind.GAME, level=1, code="")
    programs = [dataclasses.replace(program, level=level) for level in LEVELS] * 400
    with pytest.raises(ValueError, match=r"zip\(\)"):  # nothing was played
        list(
            lessons.play_lessons(
                sandbox, programs, RULES, seed=3, episodes=2, single_turn_episodes=2
            )
        )
    for (arm, level), careful in asked.items():
        # Four standard errors of 400 draws are 4 sqrt(0.25 / 400) = 0.1 at most.
        assert sum(careful) / len(careful) == pytest.approx(CARE[arm][level], abs=0.1)
    for arm in Arm:
        shares = [CARE[arm][level] for level in LEVELS]
        assert shares == sorted(shares, reverse=True)
    assert all(CARE[Arm.HINTED][v] > CARE[Arm.PLAIN][v] for v in LEVELS)


def test_programs_play_instances_of_their_own(sandbox: Sandbox) -> None:
    with Corpus("", seed=1, max_words=24) as corpus:
        program, _ = lessons.draw_program(5, 0, corpus)
    one, _, two, _ = lessons.play_lessons(
        sandbox, [program, program], RULES, seed=3, episodes=2, single_turn_episodes=2
    )
    assert one.messages[0] != two.messages[0]


def test_careful_players_win_and_careless_ones_mostly_lose(sandbox: Sandbox) -> None:
    """What makes care worth learning: it pays in every family."""
    with Corpus("", seed=1, max_words=24) as corpus:
        programs = [lessons.draw_program(5, n, corpus)[0] for n in range(6 * len(FAMILIES))]
    wins = {careful: collections.Counter() for careful in (True, False)}
    environments = [
        lessons.Environment(id=f"{n}", kind=p.kind, skill=p.skill, code=p.code, iteration=0)
        for n, p in enumerate(programs)
    ]
    solutions = lessons.solve(sandbox, environments, [[11]] * len(environments))
    for careful in wins:
        parts = [
            (program, solution, careful, n)
            for n, (program, [solution]) in enumerate(zip(programs, solutions, strict=True))
        ]
        jobs = [lessons.Job(e, Arm.PLAIN, 0, 11) for e in environments]
        episodes = lessons.play(
            lessons.Script(parts), sandbox, jobs, RULES, seed=5, iteration=0, seats=64
        )
        for program, episode in zip(programs, episodes, strict=True):
            wins[careful][program.family] += episode.episode_return == 1.0
    # A lock's presses need not suffice without its hint.
    assert wins[True] | {"lock": 6} == dict.fromkeys(FAMILIES, 6)
    assert sum(wins[False].values()) < len(programs) / 2
