"""Self-play: one model designs environments, acts in them, and learns from both.

    python -m spade_jax.train --config=tiny --workdir=runs/tiny

`iterate` is the method: draw, design, validate, play, score, compare, learn, remember. The rest of
this file is its set-up, and the loop that saves, records and evaluates.

What JAX compiles is kept for the next start in the folder that the environment variable
JAX_COMPILATION_CACHE_DIR names, which may be a gs:// path.
"""

from __future__ import annotations

from absl import flags

from spade_jax.program import run_program

if __name__ == "__main__":  # before all else, so that --help needs no JAX
    flags.DEFINE_string(
        "workdir", "runs/tiny", "Folder or gs:// path of everything the run writes."
    )
    flags.DEFINE_string(
        "profile", "", "Iterations, counted from 0, such as 2-3: trace for xprof in the workdir."
    )
    flags.DEFINE_bool(
        "export_hf", False, "At the end write the weights as Hugging Face files in the workdir."
    )
    flags.DEFINE_string(
        "coordinator",
        "",
        "With several hosts: ADDRESS:PORT of host 0, the same for all; auto: as the cluster says. "
        "By default JAX_COORDINATOR_ADDRESS, and auto on Cloud TPU.",
    )
    flags.DEFINE_integer("hosts", -1, "Number of hosts; by default JAX_NUM_PROCESSES.")
    flags.DEFINE_integer("host", -1, "This one of them, from 0; by default JAX_PROCESS_ID.")
    run_program("spade_jax.train", config="tiny")

import contextlib
import dataclasses
import os
import random
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from ml_collections import config_dict

from spade_jax import config as configs
from spade_jax import (
    convert,
    epoch,
    health,
    hosts,
    in_loop,
    limits,
    measures,
    record,
    scoring,
    storage,
    summary,
    tracing,
)
from spade_jax import run as run_setup
from spade_jax.checkpoint import Checkpoints, abstract, size
from spade_jax.evals import heldout
from spade_jax.interruption import Interruption
from spade_jax.learn.step import LearnerState
from spade_jax.measures import Made
from spade_jax.metrics import MetricsWriter, Progress, Value
from spade_jax.play.episodes import Job, play, play_seed
from spade_jax.policy.conversation import Policy
from spade_jax.program import RESTART, warn
from spade_jax.run import Run
from spade_jax.trackers import open_trackers
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
            designs = epoch.write_designs(run, designer, tasks, host.corpus_position)
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
        run.sampler.rest()
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
        tokens_sampled=sum(hosts.gather(policy.tokens_sampled, int)),
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
    return run.divide(
        jobs,
        lambda own: play(
            policy,
            run.sandbox,
            own,
            limits.play_rules(c),
            seed=c.seed,
            iteration=host.iteration,
            seats=c.sampling.slots,
        ),
        Episode,
        by=lambda job: job.environment.id,
    )


# -- the loop ---------------------------------------------------------------------------------


def evaluate(run: Run, state: LearnerState, workdir: Path, iteration: int) -> Mapping[str, Value]:
    """Play the held-out set with these weights, or their mean, and write down each outcome.

    Benchmarks that the config names follow.
    """
    c, policy = run.config, run.policy(state.averaged())
    items = run_setup.held_out(run)
    with run.timer.stage("evaluate"):
        episodes = run.divide(
            items,
            lambda own: heldout.play_held_out(
                policy,
                run.sandbox,
                own,
                limits.play_rules(c),
                arm=Arm.PLAIN,
                seed=c.evaluation.seed,
                seats=c.sampling.slots,
            ),
            Episode,
        )
    starved = sum(not e.turns and e.end is EpisodeEnd.TOKENS for e in episodes)
    if starved:
        raise UsageError(
            f"play.context is {c.play.context}, but {starved} of the {len(items)} held-out tasks "
            "fill it before the first reply; raise --config.play.context, in a new --workdir"
        )
    hosts.lead(lambda: record.write_evaluation(workdir, iteration, items, episodes))
    with run.timer.stage("evaluate"):
        folder = workdir / "evaluation" / f"{iteration:06d}"
        suites = in_loop.evaluate(c, policy, folder, run.divide)
    return measures.of_evaluation(items, episodes) | suites


def open_writer(c: config_dict.ConfigDict, workdir: Path, step: int) -> MetricsWriter:
    """What writes the metrics of the run from iteration `step` on, and tells its trackers."""
    return MetricsWriter(workdir, step=step, trackers=open_trackers(c, workdir, step))


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
            hosts.lead(lambda: convert.export_run(place))
        hosts.lead(place.keep)
    return code


def start(c: config_dict.ConfigDict, place: storage.Workdir, profiled: range) -> int:
    """Set up, go on where the run is, and iterate; returns the exit code."""
    workdir, watchdog = place.folder, Watchdog(dict(c.watchdog))
    in_loop.check(c)
    hosts.lead(lambda: configs.compare(c, workdir))
    with contextlib.ExitStack() as stack:
        with watchdog.stage("start"):
            run, state = stack.enter_context(run_setup.set_up(c))
            run.timer.around.extend((watchdog.stage, tracing.stage))
            # Only now, so that a mistake found above leaves no trace.
            hosts.lead(lambda: configs.save(c, workdir))
            if place.shared:
                hosts.check_shared(workdir / configs.FILE)
            checkpoints = stack.enter_context(
                Checkpoints(place.checkpoints, c.checkpoint.keep, c.checkpoint.keep_every)
            )
            host = HostState()
            found = checkpoints.restore(abstract(state))
            if found:
                _, state, host = found
        if host.iteration >= c.iterations:
            hosts.say(f"{place.name} is finished: {host.iteration} iterations are done")
            if hosts.lead((workdir / summary.PLOT).exists):
                return 0
            hosts.lead(lambda: summarise(place))  # it was killed after its last checkpoint
            return 0
        checkpoints.check_room(state)
        if found:
            hosts.say(f"going on in {place.name} at iteration {host.iteration}")
        if hosts.leads():
            run_setup.describe(run)
            run_setup.describe_checkpoints(c, size(state))
        return loop(run, state, host, checkpoints, place, profiled)


def summarise(place: storage.Workdir) -> None:
    """Write the run's table and plot, and print the table."""
    print(summary.write(place.folder).replace(str(place.folder), place.name))


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
    spell = run.tokenizers[Role.AGENT].spell

    def save() -> None:
        with stage("checkpoint"):
            hosts.lead(place.keep)  # first, so that no checkpoint is ahead of the files
            checkpoints.save(host.iteration, state, host)

    with (
        Interruption() as interruption,
        hosts.only_first(open_writer, c, place.folder, first) as writer,
        hosts.only_first(
            record.open_journal, place.folder, first, c.log.episodes, spell
        ) as journal,
        hosts.only_first(Progress, c.iterations) as progress,
        tracing.Trace(place.folder / "profile", f"{place.name}/profile", profiled) as trace,
    ):
        if hosts.leads():
            run = dataclasses.replace(run, show=progress.designs)
            run.timer.around.append(progress.stage)
        if first == 0:
            evaluate(run, state, place.folder, 0)
        while not ((asked := interruption.agreed()) or stop or host.iteration == c.iterations):
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
                measured |= evaluate(run, state, place.folder, host.iteration)
            measured |= cost(run, host, made)
            writer.write(iteration, measured, measures.shown(made, host))
            progress.update(iteration, measured)
            for alarm in raised if hosts.leads() else ():
                warn(str(alarm))
            if host.iteration % c.checkpoint.every == 0:
                save()
        save()
        with stage("checkpoint"):
            checkpoints.wait()
    return finish(c, place, host, asked, stop)


def cost(run: Run, host: HostState, made: Made) -> dict[str, Value]:
    """What an iteration took, by the timer, which starts anew, and what the process now holds."""
    seconds = run.timer.take()
    return seconds | {
        "compiles": run_setup.compiles(),
        "health/alarms": len(host.alarms),
        **run_setup.memory(run),
        "sample/tokens_per_s": made.tokens_sampled / seconds["time/iteration_s"],
    }


def finish(
    c: config_dict.ConfigDict,
    place: storage.Workdir,
    host: HostState,
    asked: int | None,
    stop: str | None,
) -> int:
    """Say how the loop ended, by a signal, a rule or by itself; returns the exit code."""
    done = f"iteration {host.iteration} of {c.iterations}"
    if stop and host.iteration < c.iterations:
        if hosts.leads():
            warn(f"stopped and saved at {done}: {stop}")
        return 1
    if asked and host.iteration < c.iterations:
        hosts.say(f"saved {done}; give the same command with --workdir={place.name} to go on")
        return RESTART if asked == signal.SIGTERM else 130
    hosts.lead(lambda: summarise(place))
    return 0


def main() -> int:
    # Until the loop turns it into a wish: nothing is lost, and launchers start anew.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(RESTART))
    c, place = FLAGS.config, hosts.find_place(FLAGS.coordinator, FLAGS.hosts, FLAGS.host)
    with hosts.joined(
        place,
        connect_seconds=c.hosts.connect_seconds,
        heartbeat_seconds=c.hosts.heartbeat_seconds,
    ):
        hosts.check_alike({**configs.flatten(c), "--workdir": FLAGS.workdir})
        return train(
            c,
            FLAGS.workdir,
            profiled=tracing.read_steps(FLAGS.profile),
            export_hf=FLAGS.export_hf,
        )
