"""Courses of suites: driven to their ends, whatever they want and whatever breaks."""

import dataclasses
import time

import pytest

from spade_jax.envs.sandbox import Reset, Sandbox, Step
from spade_jax.evals import runner
from spade_jax.evals.suites import (
    USER,
    Act,
    Course,
    Item,
    Outcome,
    Say,
    Settings,
    Work,
)
from spade_jax.policy.conversation import Budget, stream
from spade_jax.policy.sampling import Sampling
from spade_jax.types import Kind, Message, UsageError
from tests.evals.scripted import BROKEN, Scripted, play

SETTINGS = Settings(sampling=Sampling(temperature=0.5), reply=16, context=64)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@dataclasses.dataclass(frozen=True)
class Small:
    """A suite of courses, one an item."""

    courses: tuple[Course, ...]
    sandbox: Sandbox | None = None
    name: str = "small"
    settings: Settings = SETTINGS

    def items(self) -> list[Item]:
        return [Item(id=f"i{n}", group="G", course=course) for n, course in enumerate(self.courses)]


def user(text: str, **more: object) -> Say:
    return Say(messages=(Message(role="user", content=text),), **more)


def echo(said: list[Message]) -> str:
    return f"{said[-1].content}!"


def asks(*texts: str) -> Course:
    def course(number: int) -> Course:
        for text in texts:
            reply = yield user(text)
        return Outcome(score=0.5, won=True, answer=reply.text, details={"play": number})

    return course


def test_a_result_by_hand() -> None:
    speaker = Scripted(echo)
    first, second = play(Small((asks("one", "two"),)), speaker, plays=2)
    assert first == runner.Result(
        suite="small",
        item="i0",
        group="G",
        play=0,
        prompt=runner.prompt_hash(user("one")),
        replies=("one!", "two!"),
        answer="two!",
        score=0.5,
        won=True,
        tokens=6,
        stop="stop",
        details={"play": 0},
    )
    assert second == dataclasses.replace(first, play=1, details={"play": 1})
    assert speaker.budgets == {Budget(16, 64, Sampling(temperature=0.5))}
    streams = [told[2] for told in speaker.told]
    assert set(streams) == {
        stream(7, "small/i0", number, turn) for number in (0, 1) for turn in (0, 1)
    }
    assert sorted(speaker.retired) == [0, 1]


def test_prompts_of_equal_hash_are_equal() -> None:
    assert runner.prompt_hash(user("a")) == runner.prompt_hash(user("a", tools=()))
    assert runner.prompt_hash(user("a")) != runner.prompt_hash(user("b"))
    assert runner.prompt_hash(user("a")) != runner.prompt_hash(user("a", tools=(TOOL,)))


def test_tools_that_change_begin_a_dialogue_with_all_that_was_said() -> None:
    def course(number: int) -> Course:
        yield user("one", tools=())
        yield user("two")
        reply = yield user("three", tools=(TOOL,))
        return Outcome(score=1.0, won=True, answer=reply.text)

    speaker = Scripted(echo)
    [result] = play(Small((course,)), speaker)
    assert result.answer == "three!" and result.replies == ("one!", "two!", "three!")
    dialogue, said, _ = speaker.told[-1]
    assert [m.content for m in said] == ["one", "one!", "two", "two!", "three"]
    assert [m.role for m in said] == ["user", "assistant"] * 2 + ["user"]
    assert speaker.tools[dialogue] == (TOOL,) and speaker.tools[dialogue - 1] == ()
    assert sorted(speaker.retired) == list(range(len(speaker.tools)))


def test_whoever_acts_the_user_has_a_dialogue_of_its_own() -> None:
    def course(number: int) -> Course:
        asked = yield user("You want tea.", to=USER)
        reply = yield user(asked.text)
        yield user(reply.text, to=USER)
        return Outcome(score=1.0, won=True)

    for other in (Scripted(lambda said: f"user {len(said)}"), None):
        speaker = Scripted(lambda said: f"model {len(said)}")
        [result] = play(Small((course,)), speaker, user=other)
        assert result.replies == ("model 1",) and result.tokens == 3
        acted = (other or speaker).told
        assert [m.content for m in acted[-1][1]][::2] == ["You want tea.", "model 1"]
        expected = "user 1" if other else "model 1"
        assert result.prompt == runner.prompt_hash(user(expected))


@pytest.mark.parametrize("patient", [True, False])
def test_work_is_done_aside(patient: bool) -> None:
    def course(number: int) -> Course:
        begun = yield Work(do=lambda: time.sleep(0.02) or "worked")
        reply = yield user(begun)
        try:
            yield Work(do=lambda: 1 / 0)
        except ZeroDivisionError:
            return Outcome(score=1.0, won=True, answer=reply.text)

    results = play(Small((course,) * 5), echo, patient=patient)
    assert [result.answer for result in results] == ["worked!"] * 5


def test_environments_act_beside_work() -> None:
    code = (
        "class AddEnv:\n"
        "    def reset(self, seed=None):\n        return str(seed), {}\n"
        "    def step(self, action):\n        return action, 0.5, True, False, {}\n"
    )
    with Sandbox() as sandbox:

        def course(number: int) -> Course:
            instance = sandbox.open(code, Kind.GAME)
            try:
                begun = yield Act(instance=instance, call=Reset(number))
                yield Work(do=lambda: None)
                ended = yield Act(instance=instance, call=Step("go"))
                reply = yield user(begun.observation)
                return Outcome(score=ended.reward, won=False, answer=reply.text)
            finally:
                sandbox.close_instances([instance])

        works = asks("beside")
        results = play(Small((course, works, course), sandbox), echo, plays=2)
    assert [(r.answer, r.score) for r in results[:2]] == [("0!", 0.5), ("1!", 0.5)]
    assert not any(r.failed for r in results)


def test_what_breaks_is_a_failed_play_and_not_the_end() -> None:
    closed: list[str] = []

    def breaks(number: int) -> Course:
        yield user("one")
        raise KeyError("gone")

    def talks(text: str) -> Course:
        def course(number: int) -> Course:
            try:
                reply = yield user(text)
                reply = yield user("full")
                return Outcome(score=0.25, won=False, answer=str(reply))
            finally:
                closed.append(text)

        return course

    def answer(said: list[Message]) -> str | None:
        text = said[-1].content
        return None if text == "full" else BROKEN if text == "lost" else "ok"

    results = play(Small((breaks, talks("full"), talks("lost"), talks("fine"))), answer)
    failed = [(result.failed, result.speaker_failed) for result in results]
    assert failed == [
        ("KeyError: 'gone'", False),
        (runner.NO_ROOM, False),
        (f"no reply came: {BROKEN}", True),
        ("", False),
    ]
    assert [(r.score, r.won) for r in results] == [(0, False)] * 3 + [(0.25, False)]
    assert results[3].answer == "None", "a context that fills up later is the suite's to judge"
    assert results[0].replies == ("ok",) and sorted(closed) == ["fine", "full", "lost"]


def test_a_speaker_that_is_lost_ends_the_run() -> None:
    suite = Small((asks("one"),) * 50)
    speaker = Scripted(lambda said: BROKEN)
    with pytest.raises(ConnectionError, match="8 plays in a row failed .*broken.*go on"):
        play(suite, speaker)
    assert len(speaker.told) < 20


def test_mistakes_of_the_user_are_no_failures_of_items() -> None:
    def course(number: int) -> Course:
        yield user("one")
        raise UsageError("mend it")

    with pytest.raises(UsageError, match="mend it"):
        play(Small((course,)), echo)
