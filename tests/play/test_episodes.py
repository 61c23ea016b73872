"""Episodes: the real sandbox, a scripted speaker, both arms of a pair."""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import pytest

from spade_jax.design import prompts
from spade_jax.envs.sandbox import Sandbox
from spade_jax.play import episodes
from spade_jax.play.episodes import Job, Rules
from spade_jax.policy.conversation import Budget
from spade_jax.types import (
    Arm,
    Environment,
    Episode,
    EpisodeEnd,
    FailureKind,
    Generation,
    Kind,
    Message,
    StopReason,
    TokenRecord,
)
from tests.envs.programs import CHAIN, SEARCH, SUM, game

TELLS = SUM.replace(
    "The tens make {self.a // 10 * 10 + self.b // 10 * 10}.", "It is {self.answer}."
)
RULES = Rules(
    prompts="tiny",
    max_turns=4,
    budget=Budget(reply=8, context=100),
    return_mode="final",
    discount=1.0,
)
# What a script answers to the last message, given the number of the turn.
Answer = Callable[[str, int], str | None]


class Script:
    """Speaks by a function of the last message; notes everything it is asked."""

    def __init__(
        self, answer: Answer, stop: StopReason = StopReason.STOP, at_once: int | None = None
    ) -> None:
        """`at_once` is how many questions are answered at a time, the latest first; None: all."""
        self.answer, self.stop, self.at_once = answer, stop, at_once
        self.message = ""  # of what it fails with where it says nothing
        self.talks: list[Talk] = []

    def converse(self) -> "Talk":
        self.talks.append(Talk(self))
        return self.talks[-1]


class Talk:
    """Dialogues with a script: each turn reads two ids and writes one, its number."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.said: list[list[str]] = []
        self.tokens: list[TokenRecord] = []
        self.replies: dict[int, Generation | None] = {}
        self.streams: list[tuple[int, ...]] = []
        self.retired: list[int] = []
        self.most = 0  # dialogues at a time

    def open(self) -> int:
        self.said.append([])
        self.tokens.append(TokenRecord())
        self.most = max(self.most, len(self.said) - len(self.retired))
        return len(self.said) - 1

    def ask(
        self, dialogue: int, messages: Sequence[Message], stream: tuple[int, ...], budget: Budget
    ) -> None:
        assert budget == RULES.budget
        assert dialogue not in self.replies and dialogue not in self.retired
        self.streams.append(stream)
        turn = len(self.said[dialogue])
        self.said[dialogue].append(messages[-1].content)
        text = self.script.answer(messages[-1].content, turn)
        self.replies[dialogue] = None
        if text is not None:
            self.tokens[dialogue] = self.tokens[dialogue].read((8, 9)).wrote((turn,), (-0.5,))
            self.replies[dialogue] = Generation(
                ids=(turn,), logp=(-0.5,), text=text, stop=self.script.stop
            )

    def answers(self) -> dict[int, Generation | None]:
        chosen = sorted(self.replies, reverse=True)[: self.script.at_once]
        return {i: self.replies.pop(i) for i in chosen}

    def failure(self, dialogue: int) -> "Script | None":
        return self.script if self.script.message else None

    def records(self, dialogue: int) -> tuple[TokenRecord, ...]:
        return (self.tokens[dialogue],)

    def retire(self, dialogues: Sequence[int]) -> None:
        self.retired += dialogues


def add(said: str, turn: int) -> str:
    """Plays SUM well."""
    numbers = [int(word.strip(".")) for word in said.split("\n")[0].split() if word[0].isdecimal()]
    return f"I add. \\boxed{{{sum(numbers)}}}"


def say(*texts: str | None) -> Answer:
    """The given replies in turn, the last one over and over."""
    return lambda said, turn: texts[min(turn, len(texts) - 1)]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(step_seconds=5.0) as box:
        yield box


def environment(code: str, kind: Kind = Kind.GAME, name: str = "e") -> Environment:
    return Environment(id=name, kind=kind, skill="s", code=code, iteration=0)


def jobs(code: str, *, arm: Arm = Arm.PLAIN, plays: int = 1, kind: Kind = Kind.GAME) -> list[Job]:
    made = environment(code, kind)
    return [Job(made, arm, k, episodes.play_seed(1, made.id, 0, k)) for k in range(plays)]


def play(
    sandbox: Sandbox, script: Script, chosen: Sequence[Job], rules: Rules = RULES, **options: object
) -> list[Episode]:
    options = {"seed": 1, "iteration": 0, "seats": 8} | options
    return episodes.play(script, sandbox, chosen, rules, **options)


def test_play_seeds_are_fixed_numbers() -> None:
    # printf 1/000002-003/4/5 | b2sum -l 32, halved
    assert episodes.play_seed(1, "000002-003", 4, 5) == 0xFE74FEFF >> 1
    seeds = {episodes.play_seed(1, "a", i, k) for i in range(20) for k in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_game_is_won_and_lost(sandbox: Sandbox) -> None:
    [won] = play(sandbox, Script(add), jobs(SUM))
    assert (won.end, won.episode_return) == (EpisodeEnd.TERMINATED, 1.0)
    [turn] = won.turns
    assert turn.observation.startswith("Bees: add ")
    assert turn.action == turn.reply.removeprefix("I add. \\boxed{").removesuffix("}")
    assert turn.reward == 1.0
    assert won.records == (TokenRecord().read((8, 9)).wrote((0,), (-0.5,)),)
    assert (won.hint, won.hint_leaks, won.failure) == (None, False, None)
    [lost] = play(sandbox, Script(say("\\boxed{5}")), jobs(SUM))
    assert (lost.end, lost.episode_return) == (EpisodeEnd.TERMINATED, 0.0)
    assert lost.turns[0].observation == turn.observation


def test_several_turns_with_tools(sandbox: Sandbox) -> None:
    call = '<tool_call>{{"name": "{}", "arguments": {{"name": "{}"}}}}</tool_call>'

    def answer(said: str, turn: int) -> str:
        if turn == 0:
            return "First.\n" + call.format("boss", said.split()[-2])
        text = said.splitlines()[-1].split(": ")[-1]
        return call.format("city", text) if turn == 1 else f"<answer>{text}</answer>"

    [episode] = play(sandbox, Script(answer), jobs(CHAIN, kind=Kind.TOOL_USE))
    assert (episode.end, episode.episode_return) == (EpisodeEnd.TERMINATED, 1.0)
    assert [turn.reward for turn in episode.turns] == [0.0, 0.0, 1.0]
    assert episode.turns[0].action == episode.turns[0].reply
    assert episode.records[0].ids == (8, 9, 0, 8, 9, 1, 8, 9, 2)


def test_pairs_differ_by_the_hint_alone(sandbox: Sandbox) -> None:
    plain, hinted = jobs(SUM, plays=3), jobs(SUM, arm=Arm.HINTED, plays=3)
    script = Script(say("\\boxed{0}"))
    played = play(sandbox, script, [*plain, *hinted])
    [talk] = script.talks
    assert len({episode.turns[0].observation for episode in played}) == 3
    for k in range(3):
        a, b = played[k], played[3 + k]
        assert a.seed == b.seed
        assert (a.arm, b.arm) == (Arm.PLAIN, Arm.HINTED)
        assert a.turns[0].observation == b.turns[0].observation
        assert (a.hint, a.hint_leaks, b.hint_leaks) == (None, False, False)
        assert b.hint.startswith("The tens make ")
        assert talk.said[3 + k] == [f"{talk.said[k][0]}\nHint: {b.hint}"]


def test_a_hint_that_holds_the_answer(sandbox: Sandbox) -> None:
    both = [*jobs(TELLS, arm=Arm.HINTED), *jobs(TELLS)]
    hinted, plain = play(sandbox, Script(add), both)
    assert hinted.hint_leaks and not plain.hint_leaks
    assert hinted.episode_return == 1.0, "it is played all the same"


def test_a_written_hint_takes_the_place_of_the_programs_own(sandbox: Sandbox) -> None:
    """It is one text for all instances, and gives away those whose answer it names."""
    answers = [int(e.turns[0].action) for e in play(sandbox, Script(add), jobs(SUM, plays=4))]
    made = dataclasses.replace(environment(SUM), hint=f"It may be {answers[2]}.")
    both = [
        Job(made, arm, k, episodes.play_seed(1, made.id, 0, k)) for arm in Arm for k in range(4)
    ]
    script = Script(add)
    played = play(sandbox, script, both)
    assert [e.hint for e in played] == [None] * 4 + [made.hint] * 4
    assert [e.hint_leaks for e in played[4:]] == [answer == answers[2] for answer in answers]
    assert len(set(answers)) > 1
    [talk] = script.talks
    for plain, hinted in zip(talk.said[:4], talk.said[4:], strict=True):
        assert hinted == [f"{plain[0]}\nHint: {made.hint}"]


def test_a_speaker_that_fails_is_no_outcome(sandbox: Sandbox) -> None:
    """The episode has no return: whether it would have been won is not known."""
    script = Script(say("\\boxed{1}", None))
    script.message = "no connection"
    [episode] = play(sandbox, script, jobs(game()))
    assert (episode.end, episode.episode_return) == (EpisodeEnd.FAILED, None)
    assert (episode.failure.phase, episode.failure.kind) == ("reply", FailureKind.SPEAKER)
    assert episode.failure.message == "no connection" and not episode.truncated
    assert [turn.reply for turn in episode.turns] == ["\\boxed{1}"]


def test_a_reply_without_an_action_costs_a_turn(sandbox: Sandbox) -> None:
    script = Script(say("Let me think.", "\\boxed{1}", "", "\\boxed{1}"))
    code = game(step="observation = f'move {self.n}'")
    [episode] = play(sandbox, script, jobs(code))
    assert [turn.action for turn in episode.turns] == [None, "1", None, "1"]
    refusal = prompts.no_action(Kind.GAME, "tiny")
    seen = [turn.observation for turn in episode.turns]
    assert seen == ["go", refusal, "move 0", refusal], "only actions step the environment"
    assert script.talks[0].said[0] == seen
    assert (episode.end, episode.episode_return) == (EpisodeEnd.TURNS, 0.0)


def test_the_last_turn_may_end_the_episode(sandbox: Sandbox) -> None:
    script = Script(lambda said, turn: add(said, turn) if turn == 0 else "")
    one = Rules(**{**vars(RULES), "max_turns": 1})
    assert play(sandbox, script, jobs(SUM), one)[0].end is EpisodeEnd.TERMINATED
    [episode] = play(sandbox, Script(say("\\boxed{0}")), jobs(SEARCH), one)
    assert (episode.end, len(episode.turns)) == (EpisodeEnd.TURNS, 1)


def test_an_environment_may_cut_an_episode(sandbox: Sandbox) -> None:
    code = game(step="return 'late', 1.0, False, True, {}")
    [episode] = play(sandbox, Script(say("\\boxed{1}")), jobs(code))
    assert (episode.end, episode.episode_return) == (EpisodeEnd.TURNS, 0.0)
    assert episode.turns[0].reward == 1.0


def test_no_room_for_a_reply(sandbox: Sandbox) -> None:
    [episode] = play(sandbox, Script(say("\\boxed{1}", None)), jobs(game()))
    assert (episode.end, episode.episode_return) == (EpisodeEnd.TOKENS, 0.0)
    assert [turn.reply for turn in episode.turns] == ["\\boxed{1}"]
    assert episode.truncated
    [episode] = play(sandbox, Script(say(None)), jobs(game()))
    assert (episode.end, episode.turns, episode.records) == (
        EpisodeEnd.TOKENS,
        (),
        (TokenRecord(),),
    )


def test_a_reply_cut_off_before_its_action(sandbox: Sandbox) -> None:
    script = Script(say("Let me"), stop=StopReason.LENGTH)
    [episode] = play(sandbox, script, jobs(SUM))
    assert (episode.end, len(episode.turns)) == (EpisodeEnd.TOKENS, 1)
    script = Script(add, stop=StopReason.LENGTH)
    assert play(sandbox, script, jobs(SUM))[0].episode_return == 1.0


@pytest.mark.parametrize(
    ("code", "phase", "kind", "turns"),
    [
        (game(init="raise ValueError('no')"), "construct", FailureKind.ERROR, 0),
        (game(reset="raise ValueError('no')"), "reset", FailureKind.ERROR, 0),
        (game(step="self.n > 0 and 1 / 0"), "step", FailureKind.ERROR, 2),
        (game(top="import os", step="os._exit(0)"), "step", FailureKind.CRASH, 1),
        (game(step="reward = float('nan')"), "step", FailureKind.CONTRACT, 1),
    ],
)
def test_an_environment_that_breaks_fails_alone(
    sandbox: Sandbox, code: str, phase: str, kind: FailureKind, turns: int
) -> None:
    both = [*jobs(code), *jobs(SUM)]
    script = Script(lambda said, turn: add(said, turn) if "Bees" in said else "\\boxed{1}")
    broken, good = play(sandbox, script, both)
    assert (broken.end, broken.episode_return) == (EpisodeEnd.FAILED, None)
    assert (broken.failure.phase, broken.failure.kind) == (phase, kind)
    assert len(broken.turns) == turns
    assert not broken.truncated
    assert good.episode_return == 1.0


@pytest.mark.parametrize("method", ["hint", "solution"])
def test_a_hint_that_breaks_fails_the_hinted_arm(sandbox: Sandbox, method: str) -> None:
    code = SUM.replace(f"def {method}(self):", f"def {method}(self):\n        raise ValueError")
    hinted, plain = play(sandbox, Script(add), [*jobs(code, arm=Arm.HINTED), *jobs(code)])
    assert (hinted.end, hinted.failure.phase) == (EpisodeEnd.FAILED, method)
    assert plain.episode_return == 1.0


def test_results_come_in_the_jobs_order(sandbox: Sandbox) -> None:
    chosen = [
        Job(environment(code, name=name), arm, k, 7 * k)
        for k in (2, 0, 1)
        for name, code in (("sum", SUM), ("search", SEARCH))
        for arm in (Arm.HINTED, Arm.PLAIN)
    ]
    done: list[int] = []
    script = Script(lambda said, turn: add(said, turn) if "Bees" in said else "\\boxed{1}")
    played = play(sandbox, script, chosen, seats=5, progress=done.append)
    assert [(e.environment_id, e.arm, e.play, e.seed) for e in played] == [
        (j.environment.id, j.arm, j.play, j.seed) for j in chosen
    ]
    assert done == sorted(set(done)) and done[-1] == 12
    [talk] = script.talks
    assert talk.most == 5, "a seat that becomes free is taken"
    assert sorted(talk.retired) == list(range(12)), "each is retired once"
    assert play(sandbox, script, chosen, seats=12) == played, "seats change no episode"


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("at_once", [1, 3])
def test_each_goes_on_when_it_is_answered(sandbox: Sandbox, overlap: bool, at_once: int) -> None:
    """Whatever order replies come in, the episodes are the same."""
    chosen = [*jobs(SEARCH, plays=4), *jobs(SUM, arm=Arm.HINTED, plays=4)]
    rules = dataclasses.replace(RULES, overlap=overlap)

    def answer(said: str, turn: int) -> str:
        return add(said, turn) if "Bees" in said else f"\\boxed{{{turn}}}"

    usual = play(sandbox, Script(answer), chosen)
    script = Script(answer, at_once=at_once)
    assert play(sandbox, script, chosen, rules, seats=3) == usual
    assert [episode.episode_return for episode in usual[4:]] == [1.0] * 4


@pytest.mark.parametrize("overlap", [False, True])
def test_the_speaker_goes_on_while_an_environment_works(sandbox: Sandbox, overlap: bool) -> None:
    """Three quick episodes pass beside the first step of a slow one, or wait for it."""
    slow = game(step="sum(range(6 * 10**7))")
    said: list[str] = []

    def answer(observation: str, turn: int) -> str:
        said.append("quick" if "Bees" in observation else "slow")
        return add(observation, turn) if "Bees" in observation else "\\boxed{1}"

    rules = dataclasses.replace(RULES, overlap=overlap, max_turns=2)
    play(sandbox, Script(answer), [*jobs(slow), *jobs(SUM, plays=3)], rules, seats=2)
    assert collections.Counter(said) == {"slow": 2, "quick": 3}
    assert (said[-1] == "slow") is overlap
    assert overlap or said[2:4].count("slow") == 1


def test_every_reply_has_a_stream_of_its_own(sandbox: Sandbox) -> None:
    def streams(**options: int) -> list[tuple[int, ...]]:
        script = Script(say("\\boxed{0}"))
        chosen = [*jobs(SEARCH, plays=2), *jobs(SEARCH, arm=Arm.HINTED, plays=2)]
        play(sandbox, script, chosen, **options)
        return [stream for talk in script.talks for stream in talk.streams]

    first = streams()
    assert len(set(first)) == len(first) == 4 * RULES.max_turns
    assert streams(seats=1) != first, "the order differs"
    assert collections.Counter(streams(seats=1)) == collections.Counter(first)
    assert not set(streams(iteration=1)) & set(first)
    assert not set(streams(seed=2)) & set(first)


def test_nothing_to_play(sandbox: Sandbox) -> None:
    assert play(sandbox, Script(add), []) == []
