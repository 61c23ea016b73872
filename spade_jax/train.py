"""Self-play: one model designs environments, acts in them, and learns from both.

    python -m spade_jax.train --config=tiny --workdir=runs/tiny

`iterate` is the method: draw, design, validate, play, score, compare, learn, remember. The rest of
this file is its set-up, and the loop that saves, records and evaluates.

What JAX compiles is kept for the next start in the folder that the environment variable
JAX_COMPILATION_CACHE_DIR names, which may be a gs:// path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import jax
from absl import flags
from ml_collections import config_dict

from spade_jax import config as configs
from spade_jax import (
    convert,
    epoch,
    health,
    in_loop,
    limits,
    measures,
    record,
    scoring,
    storage,
    summary,
    tracing,
    weights,
)
from spade_jax import run as run_setup
from spade_jax.checkpoint import Checkpoints, abstract, size
from spade_jax.evals import heldout
from spade_jax.learn.step import LearnerState
from spade_jax.measures import Made
from spade_jax.metrics import MetricsWriter, Progress, Value
from spade_jax.play.episodes import Job, play, play_seed
from spade_jax.policy.conversation import Policy
from spade_jax.program import RESTART, run_program, warn
from spade_jax.run import Run
from spade_jax.trackers import TensorBoard, Tracker, WandB
from spade_jax.types import (
    Arm,
    Episode,
    EpisodeEnd,
    HostState,
    Role,
    UsageError,
)
from spade_jax.watchdog import Watchdog

FLAGS = flags.FLAGS
EXPORTED = "exported"  # in a workdir


# -- one iteration ----------------------------------------------------------------------------


def iterate(run: Run, state: LearnerState, host: HostState) -> tuple[LearnerState, HostState, Made]:
    """One iteration of the method on both states."""
    c, policy, stage = run.config, run.policy(state), run.timer.stage
    designer = run.designer(policy)
    earlier, designs, verdicts, hints_missing = host, [], [], None
    if host.iteration % c.design.regenerate_every:
        host = epoch.retire(c, host)
    elif c.environments.source != "designer":
        with stage("draw"):
            host = epoch.open_given(run, host)
    else:
        with stage("design"):
            tasks = epoch.draw_tasks(run, host)
            designs = epoch.write_designs(run, designer, tasks)
        with stage("validate"):
            designs, verdicts = epoch.validate(run, designer, designs, host)
        run.show(designs, verdicts)
        host = epoch.open_designed(c, host, designs, verdicts, policy.version)
    if epoch.wants_hints(c, host):
        with stage("hint"):
            host, hints_missing = epoch.write_hints(run, designer, host)
    with stage("play"):
        episodes = play_pool(run, policy, host)
    with stage("score"):
        host = scoring.score(c, host, episodes)
        host = scoring.rate_difficulty(run_setup.schedule(c), host)
        agent, host = scoring.compare_agent(c, host, episodes, policy.version)
        design, host, rewards, measured = scoring.compare_designer(c, host, earlier, len(agent))
    with stage("learn"):
        rng = random.Random(f"{c.seed}/minibatches/{host.iteration}")
        state, learned = run.learner.update(state, [*agent, *design], rng, host.skipped_in_row)
    with stage("score"):
        host = scoring.remember(c, host, learned["learn/skipped_in_row"])
    made = Made(
        designs=designs,
        verdicts=verdicts,
        episodes=episodes,
        samples=[*agent, *design],
        rewards=rewards,
        scored=measured | scoring.potentials(c, host),
        learned=learned,
        tokens_sampled=policy.tokens_sampled,
        hints_missing=hints_missing,
    )
    return state, dataclasses.replace(host, iteration=host.iteration + 1), made


def play_pool(run: Run, policy: Policy, host: HostState) -> list[Episode]:
    """Plain plays of the pool and, of what it plays first, hinted ones on the same seeds.

    With `play.paired_plays` each of the latter has its plain partner, trained on or not.
    """
    c = run.config
    hinted, method = c.play.hint_plays, c.hint.source == "method"
    paired = max(c.play.plays, hinted) if c.play.paired_plays else c.play.plays
    plain_and_hinted = {True: (paired, hinted), False: (c.play.plays, 0)}  # by hint or none
    playing = [
        (entry.environment, not entry.plain and bool(entry.environment.hint or method))
        for entry in host.pool
        if not entry.retired
    ]
    jobs = [
        Job(e, arm, k, play_seed(c.seed, e.id, host.iteration, k))
        for i, arm in enumerate(Arm)
        for e, with_hint in playing
        for k in range(plain_and_hinted[with_hint][i])
    ]
    return play(
        policy,
        run.sandbox,
        jobs,
        limits.play_rules(c),
        seed=c.seed,
        iteration=host.iteration,
        seats=c.sampling.slots,
    )


# -- the loop ---------------------------------------------------------------------------------


class Interruption:
    """Turns the first SIGINT or SIGTERM into a wish to stop after the iteration at hand.

    A second one ends the run at once: Ctrl-C by KeyboardInterrupt, SIGTERM by its own action.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> Interruption:
        self._before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        again = "press Ctrl-C again" if number == signal.SIGINT else "send SIGTERM again"
        print(f"stopping after this iteration; {again} to stop at once", flush=True)


def evaluate(run: Run, state: LearnerState, workdir: Path, iteration: int) -> Mapping[str, Value]:
    """Play the held-out set with these weights, or their mean, and write down each outcome.

    Benchmarks that the config names follow.
    """
    c, policy = run.config, run.policy(state.averaged())
    items = run_setup.held_out(run)
    with run.timer.stage("evaluate"):
        episodes = heldout.play_held_out(
            policy,
            run.sandbox,
            items,
            limits.play_rules(c),
            arm=Arm.PLAIN,
            seed=c.evaluation.seed,
            seats=c.sampling.slots,
        )
    starved = sum(not e.turns and e.end is EpisodeEnd.TOKENS for e in episodes)
    if starved:
        raise UsageError(
            f"play.context is {c.play.context}, but {starved} of the {len(items)} held-out tasks "
            "fill it before the first reply; raise --config.play.context, in a new --workdir"
        )
    record.write_evaluation(workdir, iteration, items, episodes)
    with run.timer.stage("evaluate"):
        suites = in_loop.evaluate(c, policy, workdir / "evaluation" / f"{iteration:06d}")
    return measures.of_evaluation(items, episodes) | suites


def open_trackers(c: config_dict.ConfigDict, workdir: Path, step: int) -> list[Tracker]:
    """What follows the run from iteration `step` on."""
    opened: list[Tracker] = [TensorBoard(workdir, step)] if c.log.tensorboard else []
    if c.log.wandb != "off":
        opened.append(WandB(workdir, c.log.project, c.log.wandb, c.to_dict()))
    return opened


def train(
    c: config_dict.ConfigDict,
    workdir: str | os.PathLike[str],
    *,
    profiled: range = range(0),
    export_hf: bool = False,
) -> int:
    """Run, or go on with, the run of this config in `workdir`; returns the exit code.

    Of the `profiled` iterations a trace is written. With `export_hf` a finished run leaves
    Hugging Face files.
    """
    with storage.open_workdir(workdir) as place:
        code = start(c, place, profiled)
        if export_hf and code == 0:
            export(place)
        place.keep()
    return code


def start(c: config_dict.ConfigDict, place: storage.Workdir, profiled: range) -> int:
    """Set up, go on where the run is, and iterate; returns the exit code."""
    workdir, watchdog = place.folder, Watchdog(dict(c.watchdog))
    configs.compare(c, workdir)
    with contextlib.ExitStack() as stack:
        with watchdog.stage("start"):
            run, state = stack.enter_context(run_setup.set_up(c))
            run.timer.around.extend((watchdog.stage, tracing.stage))
            configs.save(c, workdir)  # only now, so that a mistake found above leaves no trace
            checkpoints = stack.enter_context(
                Checkpoints(place.checkpoints, c.checkpoint.keep, c.checkpoint.keep_every)
            )
            host = HostState()
            found = checkpoints.restore(abstract(state))
            if found:
                _, state, host = found
        if host.iteration >= c.iterations:
            print(f"{place.name} is finished: {host.iteration} iterations are done")
            if not (workdir / summary.PLOT).exists():  # killed after its last checkpoint
                print(summarise(place))
            return 0
        checkpoints.check_room(state)
        if found:
            print(f"going on in {place.name} at iteration {host.iteration}")
        run_setup.describe(run)
        run_setup.describe_checkpoints(c, size(state))
        return loop(run, state, host, checkpoints, place, profiled)


def summarise(place: storage.Workdir) -> str:
    """Write the run's table and plot; the table as text."""
    return summary.write(place.folder).replace(str(place.folder), place.name)


def export(place: storage.Workdir) -> None:
    """Write the weights of the newest checkpoint as Hugging Face files, unless they are there."""
    folder = place.folder / EXPORTED
    if folder.exists() or jax.process_index() > 0:
        return
    draft = folder.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    with weights.on_host():
        convert.to_hugging_face(weights.find(place.folder, place.checkpoints), draft, None)
    draft.rename(folder)
    print(f"wrote Hugging Face files to {place.name}/{EXPORTED}")


def loop(
    run: Run,
    state: LearnerState,
    host: HostState,
    checkpoints: Checkpoints,
    place: storage.Workdir,
    profiled: range = range(0),
) -> int:
    """Iterate to the end or until interrupted, saving, recording and evaluating."""
    c, first, stage, stop = run.config, host.iteration, run.timer.stage, None
    workdir = place.folder
    with (
        Interruption() as interruption,
        MetricsWriter(workdir, step=first, trackers=open_trackers(c, workdir, first)) as writer,
        record.open_journal(
            workdir, first, c.log.episodes, run.tokenizers[Role.AGENT].spell
        ) as journal,
        Progress(c.iterations, start=first) as progress,
        tracing.Trace(workdir / "profile", profiled) as trace,
    ):
        run = dataclasses.replace(run, show=progress.designs)
        run.timer.around.append(progress.stage)
        if first == 0:
            evaluate(run, state, workdir, 0)
        while host.iteration < c.iterations and interruption.signal is None and not stop:
            iteration = host.iteration
            with trace.step(iteration), stage("iteration"):
                state, host, made = iterate(run, state, host)
            with stage("measure"):
                measured = measures.of_iteration(made, host, run.training)
                host, raised = health.watch(c, iteration, measured, host)
                stop = health.reason_to_stop(c, measured, host)
            with stage("record"):
                journal.write(iteration, made, host, raised)
            last = host.iteration == c.iterations
            if last or (c.evaluation.every and host.iteration % c.evaluation.every == 0):
                measured |= evaluate(run, state, workdir, host.iteration)
            seconds = run.timer.take()
            measured |= seconds | {
                "compiles": run_setup.compiles(),
                "health/alarms": len(host.alarms),
                **run_setup.memory(run),
                "sample/tokens_per_s": made.tokens_sampled / seconds["time/iteration_s"],
            }
            writer.write(iteration, measured, measures.shown(made, host))
            progress.update(iteration, measured)
            for alarm in raised:
                warn(str(alarm))
            if host.iteration % c.checkpoint.every == 0:
                with stage("checkpoint"):
                    place.keep()  # first, so that no checkpoint is ahead of the files
                    checkpoints.save(host.iteration, state, host)
        with stage("checkpoint"):
            place.keep()
            checkpoints.save(host.iteration, state, host)
            checkpoints.wait()
    if stop and host.iteration < c.iterations:
        warn(f"stopped and saved at iteration {host.iteration} of {c.iterations}: {stop}")
        return 1
    if interruption.signal is not None and host.iteration < c.iterations:
        print(
            f"saved iteration {host.iteration} of {c.iterations}; give the same command with "
            f"--workdir={place.name} to go on"
        )
        return RESTART if interruption.signal == signal.SIGTERM else 130
    print(summarise(place))
    return 0


def main() -> int:
    # Until the loop turns it into a wish: nothing is lost, and launchers start anew.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(RESTART))
    return train(
        FLAGS.config,
        FLAGS.workdir,
        profiled=tracing.read_steps(FLAGS.profile),
        export_hf=FLAGS.export_hf,
    )


if __name__ == "__main__":
    flags.DEFINE_string(
        "workdir", "runs/tiny", "Folder or gs:// path of everything the run writes."
    )
    flags.DEFINE_string(
        "profile", "", "Iterations, counted from 0, such as 2-3: trace for xprof in the workdir."
    )
    flags.DEFINE_bool(
        "export_hf", False, "At the end write the weights as Hugging Face files in the workdir."
    )
    run_program(main, config="tiny")
