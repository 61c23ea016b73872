"""The whole loop on a small model: iterations by hand, what a run leaves, going on with it."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import config_dict

from spade_jax import metrics, program, train, weights
from spade_jax import run as run_setup
from spade_jax.checkpoint import Checkpoints, abstract
from spade_jax.folder import read_evaluations
from spade_jax.learn.learner import Learner
from spade_jax.learn.step import LearnerState
from spade_jax.policy import hub
from spade_jax.run import Run
from spade_jax.types import Arm, HostState, Message, Reason, Role
from tests import small_run

ROOT = Path(__file__).parents[1]


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def timeless(workdir: Path) -> list[dict]:
    """The metrics of a run without times and compilations."""
    return [
        {k: v for k, v in line.items() if not k.startswith(("time/", "host/")) and "per_s" not in k}
        | {"compiles": None}
        for line in metrics.read_metrics(workdir)
    ]


# -- two iterations by hand -------------------------------------------------------------------

DESIGN, EASY = (zlib.crc32(name) for name in (b"design", b"000000-001"))
BY_HAND = {
    "skills": ("Mathematical Reasoning",),
    "skills_per_epoch": 1,
    "design__num_envs": 4,
    "reward__designer": "blend",
    "reward__w_regret": 0.4,
    "reward__w_plateau": 0.6,
    "reward__regret_scale": 0.15,
    "reward__plateau_low": 0.4,
    "reward__plateau_high": 0.6,
    "reward__plateau_ramp": 0.25,
    "reward__penalty": -0.5,
    "reward__penalties": "outside",
    "reward__max_role_scale": 50.0,
    "advantage__agent": "grpo",
}


def speak(said: Sequence[Message], stream: tuple[int, ...]) -> str:
    """Write sums; solve them with the hint, in the second slot's environment, and in play 0."""
    if stream[1] == DESIGN:
        return small_run.write_program(said, stream)
    _, environment, _, arm, play, _ = stream
    a, b = map(int, re.findall(r"\d+", said[-1].content)[:2])
    total = a - b if " - " in said[-1].content else a + b
    right = arm == list(Arm).index(Arm.HINTED) or environment == EASY or play == 0
    return f"\\boxed{{{total if right else total + 1}}}"


def test_two_iterations_by_hand(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scripted(run: Run, state: LearnerState) -> small_run.Scripted:
        return small_run.Scripted(run.tokenizers[Role.AGENT], speak, version=int(state.step))

    monkeypatch.setattr(Run, "policy", scripted)
    c = small_run.run_config(model_folder, **BY_HAND)
    with run_setup.set_up(c) as (run, state):
        state, host, made = train.iterate(run, state, HostState())
        state, end, last = train.iterate(run, state, host)

    assert [v.reason for v in made.verdicts] == [Reason.EXTRACT, *[Reason.ACCEPTED] * 3]
    assert host.corpus_position == 4
    assert [entry.plain for entry in host.pool] == [((1, 1),), ((1, 0),), ((1, 0),)]
    # Pairs of the hard ones: 1 - 1 and 1 - 0; mean 1/2, error sqrt((1/4 + 1/4) / 1 / 2) = 1/2.
    assert [(e.regret.mean, e.regret.stderr) for e in host.pool] == [(0, 0), (0.5, 0.5), (0.5, 0.5)]
    # By group (r - mean) / std: equal returns give 0; 1 and 0 have mean and std 1/2.
    assert [(s.role, s.advantage) for s in made.samples] == [
        (Role.AGENT, advantage) for advantage in (0, 0, 1, -1, 1, -1)
    ]
    assert [p.reason for p in host.pending] == [v.reason for v in made.verdicts]
    [tracker] = host.trackers.values()
    assert (tracker.fast, tracker.slow) == (pytest.approx(4 / 6), pytest.approx(4 / 6))

    # The last iteration flushes the designs, their delay of two not being over. Raw rewards:
    # 0.4 * 0 + 0.6 * 0 for the one always won; 0.4 * 1 + 0.6 * 1 for those won half the time;
    # mean 2/3. The role's scale is 6 agent samples / 4 designs * 2 iterations = 3.
    assert not last.designs and {e.arm for e in last.episodes} == {Arm.PLAIN}
    designer = [s for s in last.samples if s.role is Role.DESIGNER]
    assert [s.advantage for s in designer] == pytest.approx([3 * -0.5, 3 * -2 / 3, 1, 1])
    assert [s.records for s in designer] == [(d.record,) for d in made.designs]
    assert not end.pending and int(state.step) == 2
    assert [(m.win_rate, m.regret) for m in end.memory] == [(1, 0), (0.5, 0.5), (0.5, 0.5)]
    assert last.rewards == pytest.approx({"000000-001": 0, "000000-002": 1, "000000-003": 1})


def test_where_nothing_can_be_played_the_designer_still_learns(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_run, "write_program", lambda said, stream: "I would rather not.")
    small_run.script_the_designer(monkeypatch)
    c = small_run.run_config(model_folder, reward__penalties="outside", iterations=2)
    assert train.train(c, tmp_path) == 0
    lines = metrics.read_metrics(tmp_path)
    assert [line["play/environments"] for line in lines] == [0, 0]
    assert lines[0]["designer/valid_share"] == 0
    assert [line["learn/samples/designer"] for line in lines] == [0, 6]
    assert [line["learn/updates"] for line in lines] == [0, 1]


FIXED = {"environments__source": "fixed", "environments__size": 6}


def test_the_pool_by_hand(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The easy one retires after an iteration; the first of the hard ones goes on."""

    def scripted(run: Run, state: LearnerState) -> small_run.Scripted:
        return small_run.Scripted(run.tokenizers[Role.AGENT], speak, version=int(state.step))

    def learn(
        self: Learner, state: LearnerState, samples: list, rng: random.Random, skipped: int
    ) -> tuple:
        return state, {"learn/skipped_in_row": skipped}

    monkeypatch.setattr(Run, "policy", scripted)
    monkeypatch.setattr(Learner, "update", learn)
    fields = {"pool__retire_easy": 0.9, "pool__min_plays": 2, "pool__keep": 1}
    c = small_run.run_config(model_folder, **BY_HAND, **fields, iterations=4)
    host, steps = HostState(), []
    with run_setup.set_up(c) as (run, state):
        for _ in range(3):
            state, host, made = train.iterate(run, state, host)
            steps.append((host, made))

    (first, _), (second, made), (third, last) = steps
    easy, *hard = (entry.environment.id for entry in first.pool)
    assert [entry.retired for entry in first.pool] == [False] * 3
    assert [(e.environment.id, e.retired) for e in second.pool] == [
        (easy, True),
        *((name, False) for name in hard),
    ]
    assert [e.environment_id for e in made.episodes] == [name for name in hard for _ in range(2)]
    assert [entry.plain for entry in second.pool] == [((1, 1),), *[((1, 0), (1, 0))] * 2]
    # All three have their window, the retired one the one iteration it was played.
    assert last.rewards == pytest.approx({easy: 0, **dict.fromkeys(hard, 1)})
    assert len([s for s in last.samples if s.role is Role.DESIGNER]) == 4
    *new, kept = third.pool
    assert kept.environment.id == hard[0] and kept.plain == ((1, 0), (1, 0))
    assert {e.environment.id[:6] for e in new} == {"000002"}
    assert kept.regret == second.pool[1].regret
    arms = {(e.environment_id, e.arm) for e in last.episodes}
    assert (kept.environment.id, Arm.PLAIN) in arms
    assert (kept.environment.id, Arm.HINTED) not in arms
    assert (new[0].environment.id, Arm.HINTED) in arms
    seeds = [{e.seed for e in m.episodes if e.environment_id == hard[0]} for _, m in steps]
    assert len(set.union(*seeds)) == 3 * 2, "new instances every iteration"
    remembered = {record.environment_id: record for record in third.memory}
    assert len(remembered) == len(third.memory) == 3 + len(new)
    [seed] = remembered[new[0].environment.id].seeds
    assert seed in hard and remembered[new[0].environment.id].document is not None


# -- hints, repairs, judge, two designs per prompt --------------------------------------------

REPAIR, JUDGE, ONLY_HINT = (zlib.crc32(n) for n in (b"repair", b"judge", b"hint/000000-003"))
READERS = {
    "design__per_prompt": 2,
    "design__repair_turns": 1,
    "hint__source": "self",
    "hint__max_tokens": 64,
    "judge__source": "self",
    "judge__max_tokens": 64,
    "judge__play_characters": 50,
    "memory__code_characters": 40,
    "design__max_tokens": 32,  # for the check of sizes; the script does not mind
    "play__context": 640,
}


def speak_and_read(said: Sequence[Message], stream: tuple[int, ...]) -> str:
    """As `speak`; also repair the first slot, refuse the second, hint in but one environment."""
    _, what, *rest = stream
    if what == REPAIR:
        return small_run.write_program(said[:1], (*stream[:2], 7)) if rest[1] == 0 else "No."
    if what == JUDGE:
        return f"Look at it.\nVerdict: {'no' if rest[1] == 1 else 'yes'}"
    if said[-1].content.endswith("\nHint:"):
        return "" if what == ONLY_HINT else "Hint: add or subtract."
    return speak(said, stream)


def test_designs_are_repaired_judged_and_hinted(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scripted(run: Run, state: LearnerState) -> small_run.Scripted:
        return small_run.Scripted(
            run.tokenizers[Role.AGENT], speak_and_read, version=int(state.step)
        )

    monkeypatch.setattr(Run, "policy", scripted)
    c = small_run.run_config(model_folder, **BY_HAND, **READERS)
    with run_setup.set_up(c) as (run, state):
        state, host, made = train.iterate(run, state, HostState())
        state, end, last = train.iterate(run, state, host)

    # Slot 0 wrote no program and mended that; the judge refuses slot 1, also after its repair
    # turn, which brought no program; slots 2 and 3 pass at once.
    assert [v.reason for v in made.verdicts] == [
        Reason.ACCEPTED,
        Reason.EXTRACT,
        Reason.ACCEPTED,
        Reason.ACCEPTED,
    ]
    assert [d.first for d in made.designs] == [Reason.EXTRACT, Reason.JUDGE, None, None]
    assert [(v.judge, d.repairs) for v, d in zip(made.verdicts, made.designs, strict=True)] == [
        ("yes", 1),
        ("", 1),
        ("yes", 0),
        ("yes", 0),
    ]
    assert made.designs[0].reply == "I would rather not."
    assert [p.prompt for p in host.pending] == ["000000-000"] * 2 + ["000000-002"] * 2
    assert [p.reason for p in host.pending] == [
        Reason.EXTRACT,
        Reason.JUDGE,
        Reason.ACCEPTED,
        Reason.ACCEPTED,
    ]
    assert host.corpus_position == 2, "two prompts, two documents"

    hints = {e.environment.id: e.environment.hint for e in host.pool}
    told = "add or subtract."
    assert hints == {"000000-000": told, "000000-002": told, "000000-003": None}
    hinted = {e.environment_id: e.hint for e in made.episodes if e.arm is Arm.HINTED}
    assert hinted == {"000000-000": told, "000000-002": told}
    assert [e.regret.mean for e in host.pool] == [0.5, 0.5, None], "unknown, not 0"
    assert made.hints_missing == 1 and last.hints_missing is None

    # The mended one and the refused one keep their penalty; the one of unknown regret is left
    # out; the last is alone in its mean. 6 agent samples / 4 designs * 2 iterations = 3.
    designer = [s for s in last.samples if s.role is Role.DESIGNER]
    assert [s.advantage for s in designer] == pytest.approx([3 * -0.5, 3 * -0.5, 0])
    assert [s.records for s in designer] == [(d.record,) for d in made.designs[:3]]
    assert not end.pending


# -- what a run leaves ------------------------------------------------------------------------


def test_files_of_a_run(finished_run: Path) -> None:
    names = {path.name for path in finished_run.iterdir()}
    assert names == {
        *("config.json", "metrics.jsonl", "memory.jsonl", "alarms.jsonl"),
        *("plays.jsonl", "rewards.jsonl"),
        *("summary.txt", "plot.png"),
        *("checkpoints", "environments", "episodes", "evaluation", "tensorboard"),
    }
    index = read_lines(finished_run / "environments" / "index.jsonl")
    assert [line["reason"] for line in index] == ["extract", *["accepted"] * 5]
    for line in index:
        source = (finished_run / "environments" / line["file"]).read_text()
        assert ("class " in source) == (line["reason"] == "accepted")
    assert sorted(read_evaluations(finished_run)) == [0, 2]
    assert len(read_lines(finished_run / "memory.jsonl")) == 2 * 5


def test_every_metric_is_described(finished_run: Path) -> None:
    first, second = metrics.read_metrics(finished_run)
    for name in first | second:
        assert metrics.describe(name).meaning
    assert (first["step"], second["step"]) == (0, 1)
    assert first["designer/valid_share"] == pytest.approx(5 / 6)
    assert first["designer/reject/extract"] == pytest.approx(1 / 6)
    assert first["designer/regret_pairs"] + 10 * first["play/hint_leak_share"] == 10
    assert "designer/regret_mean" not in second


def test_hinted_plays_share_the_seeds_of_plain_ones(finished_run: Path) -> None:
    seeds, observations = defaultdict(list), defaultdict(set)
    for iteration in (0, 1):
        for episode in read_lines(finished_run / "episodes" / f"{iteration:06d}.jsonl"):
            seeds[iteration, episode["environment_id"], episode["arm"]].append(episode["seed"])
            first = episode["turns"][0]["observation"]
            observations[episode["environment_id"], episode["seed"]].add(first)
    for (iteration, environment_id, arm), used in seeds.items():
        assert len(set(used)) == 2
        assert used == seeds[iteration, environment_id, "plain"]
        assert (iteration, arm) != (1, "hinted")
        if iteration == 1:
            assert not set(used) & set(seeds[0, environment_id, "plain"])
    assert all(len(each) == 1 for each in observations.values())


def test_a_fixed_pool_needs_no_designer(model_folder: Path, tmp_path: Path) -> None:
    c = small_run.run_config(
        model_folder,
        environments__source="fixed",
        environments__size=8,
        design__num_envs=6,
        iterations=3,
    )
    assert train.train(c, tmp_path) == 0
    for line in metrics.read_metrics(tmp_path):
        assert line["learn/samples/agent"] == 6 * 2
        assert line["learn/samples/designer"] == 0 and "designer/valid_share" not in line
    index = read_lines(tmp_path / "environments" / "index.jsonl")
    assert {line["reason"] for line in index} == {"given"}
    assert {line["environment_id"] for line in index} == {
        line["environment_id"] for line in read_lines(tmp_path / "plays.jsonl")
    }


# -- going on ---------------------------------------------------------------------------------


def final_state(c: config_dict.ConfigDict, workdir: Path) -> tuple[list[np.ndarray], HostState]:
    with run_setup.set_up(c) as (_, state), Checkpoints(workdir / "checkpoints", 2) as checkpoints:
        step, learner, host = checkpoints.restore(abstract(state))
    assert step == host.iteration
    return [np.asarray(leaf) for leaf in jax.tree.leaves(learner)], host


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    small_run.script_the_designer(monkeypatch)
    fields = {"pool__keep": 2, "novelty__threshold": 0.9, "novelty__quota": 1}
    c = small_run.run_config(model_folder, **fields, iterations=4)
    through, parts = tmp_path / "through", tmp_path / "parts"
    assert train.train(c, through) == 0
    # Designs are trained when their delay of two iterations is over, or with the last iteration.
    counts = [line["learn/samples/designer"] for line in metrics.read_metrics(through)]
    assert counts == [0, 0, 6, 6]

    iterate = train.iterate

    def interrupted(run: Run, state: LearnerState, host: HostState) -> tuple:
        if host.iteration == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return iterate(run, state, host)

    with monkeypatch.context() as patch:
        patch.setattr(train, "iterate", interrupted)
        assert train.train(c, parts) == program.RESTART
    assert f"saved iteration 2 of 4; give the same command with --workdir={parts}" in (
        capsys.readouterr().out
    )
    assert train.train(c, parts) == 0
    assert f"going on in {parts} at iteration 2" in capsys.readouterr().out

    assert timeless(parts) == timeless(through)
    for name in (
        *("memory.jsonl", "alarms.jsonl", "plays.jsonl", "rewards.jsonl"),
        *("summary.txt", "environments/index.jsonl", "episodes/000003.jsonl"),
    ):
        assert (parts / name).read_bytes() == (through / name).read_bytes(), name
    (ours, our_host), (theirs, their_host) = final_state(c, parts), final_state(c, through)
    assert our_host == their_host and our_host.iteration == 4
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)

    before = {path: path.read_bytes() for path in parts.rglob("*") if path.is_file()}
    assert train.train(c, parts) == 0
    assert capsys.readouterr().out == f"{parts} is finished: 4 iterations are done\n"
    assert {path: path.read_bytes() for path in parts.rglob("*") if path.is_file()} == before

    # Killed after its last checkpoint, it lacks the summary alone.
    for name in ("summary.txt", "plot.png"):
        (parts / name).unlink()
    assert train.train(c, parts) == 0
    assert (parts / "plot.png").is_file()
    assert (parts / "summary.txt").read_bytes() == before[parts / "summary.txt"]


def start(c: config_dict.ConfigDict, workdir: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "spade_jax.train", *small_run.arguments(c, workdir)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """What the process prints up to the first line with `text`."""
    read = ""
    for line in process.stdout:
        read += line
        if text in line:
            return read
    raise AssertionError(f"ended without {text!r}:\n{read}")


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=120)
    return process.returncode, out


def test_sigterm_saves_and_the_same_command_goes_on(model_folder: Path, tmp_path: Path) -> None:
    c = small_run.run_config(
        model_folder, environments__source="fixed", environments__size=6, iterations=12
    )
    with start(c, tmp_path) as process:
        read_until(process, "iteration 1/12")
        process.terminate()
        code, out = finish(process)
    assert code == program.RESTART
    saved = int(re.search(r"saved iteration (\d+) of 12; give the same command", out)[1])
    with start(c, tmp_path) as process:
        code, out = finish(process)
    assert code == 0 and f"at iteration {saved}" in out
    assert [line["step"] for line in metrics.read_metrics(tmp_path)] == list(range(12))


@pytest.mark.slow
def test_killed_it_loses_no_more_than_since_the_last_commit(
    model_folder: Path, tmp_path: Path
) -> None:
    fields = {**FIXED, "iterations": 12, "checkpoint__every": 1}
    c = small_run.run_config(model_folder, **fields)
    with start(c, tmp_path) as process:
        read_until(process, "iteration 5/12")
        process.kill()
        assert finish(process)[0] == -signal.SIGKILL
    # While iteration 4 was being saved, that of 3 was committed.
    with start(c, tmp_path) as process:
        code, out = finish(process)
    assert code == 0 and int(re.search(r"at iteration (\d+)", out)[1]) >= 3
    assert [line["step"] for line in metrics.read_metrics(tmp_path)] == list(range(12))


# -- adapters ---------------------------------------------------------------------------------


def test_adapters_are_trained_alone_and_go_on(model_folder: Path, tmp_path: Path) -> None:
    fields = {**FIXED, "model__lora__rank": 2, "play__max_turns": 1}
    fields |= {"learn__entropy": 0.1, "learn__kl": 0.1}  # which move it whatever it wins
    fields |= {"learn__ema_decay": 0.5, "learn__role_norms": True}
    c = small_run.run_config(model_folder, **fields, iterations=2)
    through, parts = tmp_path / "through", tmp_path / "parts"
    assert train.train(c, through) == 0
    for iterations in (1, 2):
        c.iterations = iterations
        assert train.train(c, parts) == 0
    (ours, _), (theirs, _) = final_state(c, parts), final_state(c, through)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(a.size < 2 * 2 * 64 * 8 for a in ours), "there is no state of whole matrices"
    with run_setup.set_up(c) as (run, before):
        source = weights.find(through)
        assert source.step == 2 and source.lora.rank == 2
        adapters = hub.place(source.adapters)
        assert np.any(adapters["layers"]["q"]["b"]), "they have moved from 0"
        trained = run.policy(before.replace(params=adapters)).sampler.params
        started = run.policy(before).sampler.params
    jax.tree.map(np.testing.assert_array_equal, source.load(), trained)
    np.testing.assert_array_equal(trained["embed"], started["embed"])
    np.testing.assert_array_equal(started["layers"]["q"], hub.load(model_folder)[1]["layers"]["q"])
    assert np.any(trained["layers"]["q"] != started["layers"]["q"])
