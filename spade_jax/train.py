"""Self-play: one model designs environments, acts in them, and learns from both.

    python -m spade_jax.train --config=tiny --workdir=runs/tiny

`iterate` is the method: draw, design, validate, play, score, compare, learn, remember. The rest of
this file is its set-up, and the loop that saves, records and evaluates.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from absl import flags
from ml_collections import config_dict

from spade_jax import config as configs
from spade_jax import epoch, health, limits, measures, record, scoring, summary
from spade_jax import run as run_setup
from spade_jax.checkpoint import Checkpoints, abstract
from spade_jax.evals import heldout
from spade_jax.learn.step import LearnerState
from spade_jax.measures import Made
from spade_jax.metrics import MetricsWriter, Progress, Timer, Value
from spade_jax.play.episodes import Job, play, play_seed
from spade_jax.policy.conversation import Policy
from spade_jax.program import RESTART, run_program, warn
from spade_jax.run import Run
from spade_jax.types import (
    Arm,
    Episode,
    EpisodeEnd,
    HostState,
    UsageError,
)
from spade_jax.watchdog import Watchdog

FLAGS = flags.FLAGS


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
    """Play the held-out set with these weights, or their mean, and write down each outcome."""
    c = run.config
    items = run_setup.held_out(run)
    with run.timer.stage("evaluate"):
        episodes = heldout.play_held_out(
            run.policy(state.averaged()),
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
    return measures.of_evaluation(items, episodes)


def train(c: config_dict.ConfigDict, workdir: Path) -> int:
    """Run, or go on with, the run of this config in `workdir`; returns the exit code."""
    configs.compare(c, workdir)
    watchdog = Watchdog(dict(c.watchdog))
    with contextlib.ExitStack() as stack:
        with watchdog.stage("start"):
            run, state = stack.enter_context(run_setup.set_up(c))
            run = dataclasses.replace(run, timer=Timer(watch=watchdog.stage))
            configs.save(c, workdir)  # only now, so that a mistake found above leaves no trace
            checkpoints = stack.enter_context(
                Checkpoints(workdir / "checkpoints", c.checkpoint.keep)
            )
            host = HostState()
            found = checkpoints.restore(abstract(state))
            if found:
                _, state, host = found
        if host.iteration >= c.iterations:
            print(f"{workdir} is finished: {host.iteration} iterations are done")
            if not (workdir / summary.PLOT).exists():  # killed after its last checkpoint
                print(summary.write(workdir))
            return 0
        if found:
            print(f"going on in {workdir} at iteration {host.iteration}")
        run_setup.describe(run)
        return loop(run, state, host, checkpoints, workdir)


def loop(
    run: Run, state: LearnerState, host: HostState, checkpoints: Checkpoints, workdir: Path
) -> int:
    """Iterate to the end or until interrupted, saving, recording and evaluating."""
    c, first, stage, stop = run.config, host.iteration, run.timer.stage, None
    with (
        Interruption() as interruption,
        MetricsWriter(workdir, step=first, tensorboard=c.log.tensorboard) as writer,
        record.open_journal(workdir, first, c.log.episodes) as journal,
        Progress(c.iterations, start=first) as progress,
    ):
        if first == 0:
            evaluate(run, state, workdir, 0)
        while host.iteration < c.iterations and interruption.signal is None and not stop:
            iteration = host.iteration
            with stage("iteration"):
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
                "sample/tokens_per_s": made.tokens_sampled / seconds["time/iteration_s"],
            }
            writer.write(iteration, measured)
            progress.update(iteration, measured)
            for alarm in raised:
                warn(str(alarm))
            if host.iteration % c.checkpoint.every == 0:
                with stage("checkpoint"):
                    checkpoints.save(host.iteration, state, host)
        with stage("checkpoint"):
            checkpoints.save(host.iteration, state, host)
            checkpoints.wait()
    if stop and host.iteration < c.iterations:
        warn(f"stopped and saved at iteration {host.iteration} of {c.iterations}: {stop}")
        return 1
    if interruption.signal is not None and host.iteration < c.iterations:
        print(
            f"saved iteration {host.iteration} of {c.iterations}; give the same command with "
            f"--workdir={workdir} to go on"
        )
        return RESTART if interruption.signal == signal.SIGTERM else 130
    print(summary.write(workdir))
    return 0


def main() -> int:
    # Until the loop turns it into a wish: nothing is lost, and launchers start anew.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(RESTART))
    return train(FLAGS.config, Path(FLAGS.workdir))


if __name__ == "__main__":
    flags.DEFINE_string("workdir", "runs/tiny", "Folder of everything the run writes.")
    run_program(main, config="tiny")
