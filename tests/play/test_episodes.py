"""Episodes: the real sandbox, a scripted speaker, both arms of a pair."""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence

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
    budget=Budget(reply=8, context=100, temperature=1.0),
    return_mode="final",
    discount=1.0,
)
# What a script answers to the last message, given the number of the turn.
Answer = Callable[[str, int], str | None]


class Script:
    """Speaks by a function of the last message; notes everything it is asked."""

    def __init__(self, answer: Answer, stop: StopReason = StopReason.STOP) -> None:
        self.answer, self.stop = answer, stop
        self.waves: list[Dialogue] = []

    def converse(self, dialogues: int) -> "Dialogue":
        self.waves.append(Dialogue(self, dialogues))
        return self.waves[-1]


class Dialogue:
    """One wave with a script: each turn reads two ids and writes one, its number."""

    def __init__(self, script: Script, dialogues: int) -> None:
        self.script = script
        self.said: list[list[str]] = [[] for _ in range(dialogues)]
        self.records = [TokenRecord()] * dialogues
        self.streams: list[tuple[int, ...]] = []
        self.retired: list[int] = []

    def reply(
        self,
        messages: Mapping[int, Sequence[Message]],
        streams: Mapping[int, tuple[int, ...]],
        budget: Budget,
    ) -> dict[int, Generation | None]:
        assert budget == RULES.budget
        assert set(messages) == set(streams) and not set(messages) & set(self.retired)
        self.streams += streams.values()
        replies: dict[int, Generation | None] = {}
        for i, new in messages.items():
            turn = len(self.said[i])
            self.said[i].append(new[-1].content)
            text = self.script.answer(new[-1].content, turn)
            if text is None:
                replies[i] = None
                continue
            self.records[i] = self.records[i].read((8, 9)).wrote((turn,), (-0.5,))
            replies[i] = Generation(ids=(turn,), logp=(-0.5,), text=text, stop=self.script.stop)
        return replies

    def record(self, dialogue: int) -> TokenRecord:
        return self.records[dialogue]

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
    options = {"seed": 1, "iteration": 0, "wave": 8} | options
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
    assert won.record == TokenRecord().read((8, 9)).wrote((0,), (-0.5,))
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
    assert episode.record.ids == (8, 9, 0, 8, 9, 1, 8, 9, 2)


def test_pairs_differ_by_the_hint_alone(sandbox: Sandbox) -> None:
    plain, hinted = jobs(SUM, plays=3), jobs(SUM, arm=Arm.HINTED, plays=3)
    script = Script(say("\\boxed{0}"))
    played = play(sandbox, script, [*plain, *hinted])
    [wave] = script.waves
    assert len({episode.turns[0].observation for episode in played}) == 3
    for k in range(3):
        a, b = played[k], played[3 + k]
        assert a.seed == b.seed
        assert (a.arm, b.arm) == (Arm.PLAIN, Arm.HINTED)
        assert a.turns[0].observation == b.turns[0].observation
        assert (a.hint, a.hint_leaks, b.hint_leaks) == (None, False, False)
        assert b.hint.startswith("The tens make ")
        assert wave.said[3 + k] == [f"{wave.said[k][0]}\nHint: {b.hint}"]


def test_a_hint_that_holds_the_answer(sandbox: Sandbox) -> None:
    both = [*jobs(TELLS, arm=Arm.HINTED), *jobs(TELLS)]
    hinted, plain = play(sandbox, Script(add), both)
    assert hinted.hint_leaks and not plain.hint_leaks
    assert hinted.episode_return == 1.0, "it is played all the same"


def test_a_reply_without_an_action_costs_a_turn(sandbox: Sandbox) -> None:
    script = Script(say("Let me think.", "\\boxed{1}", "", "\\boxed{1}"))
    code = game(step="observation = f'move {self.n}'")
    [episode] = play(sandbox, script, jobs(code))
    assert [turn.action for turn in episode.turns] == [None, "1", None, "1"]
    refusal = prompts.no_action(Kind.GAME, "tiny")
    seen = [turn.observation for turn in episode.turns]
    assert seen == ["go", refusal, "move 0", refusal], "only actions step the environment"
    assert script.waves[0].said[0] == seen
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
    assert (episode.end, episode.turns, episode.record) == (EpisodeEnd.TOKENS, (), TokenRecord())


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
    played = play(sandbox, script, chosen, wave=5, progress=done.append)
    assert [(e.environment_id, e.arm, e.play, e.seed) for e in played] == [
        (j.environment.id, j.arm, j.play, j.seed) for j in chosen
    ]
    assert done == [5, 10, 12]
    assert [len(wave.said) for wave in script.waves] == [5, 5, 2]
    for wave in script.waves:
        assert sorted(wave.retired) == list(range(len(wave.said))), "each is retired once"
    assert play(sandbox, script, chosen, wave=12) == played, "waves change no episode"


def test_waves_keep_like_with_like() -> None:
    def job(kind: Kind, skill: str) -> Job:
        return Job(
            Environment(id="", kind=kind, skill=skill, code="", iteration=0), Arm.PLAIN, 0, 0
        )

    chosen = [
        job(Kind.TOOL_USE, "A"),
        *(job(Kind.GAME, skill) for skill in "CBCB"),
        job(Kind.TOOL_USE, "A"),
    ]
    # tools first, since their skill is; then the games, skill B before C, three at a time
    assert episodes.waves(chosen, 3) == [[0, 5], [2, 4, 1], [3]]
    assert episodes.waves([], 3) == []


def test_every_reply_has_a_stream_of_its_own(sandbox: Sandbox) -> None:
    def streams(**options: int) -> list[tuple[int, ...]]:
        script = Script(say("\\boxed{0}"))
        chosen = [*jobs(SEARCH, plays=2), *jobs(SEARCH, arm=Arm.HINTED, plays=2)]
        play(sandbox, script, chosen, **options)
        return [stream for wave in script.waves for stream in wave.streams]

    first = streams()
    assert len(set(first)) == len(first) == 4 * RULES.max_turns
    assert streams(wave=1) != first, "the order differs"
    assert collections.Counter(streams(wave=1)) == collections.Counter(first)
    assert not set(streams(iteration=1)) & set(first)
    assert not set(streams(seed=2)) & set(first)


def test_nothing_to_play(sandbox: Sandbox) -> None:
    assert play(sandbox, Script(add), []) == []
