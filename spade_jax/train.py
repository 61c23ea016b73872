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
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from absl import flags
from ml_collections import config_dict

from spade_jax import config as configs
from spade_jax import health, measures, record, scoring, summary
from spade_jax import run as run_setup
from spade_jax.checkpoint import Checkpoints, abstract
from spade_jax.design import designer, fixed_pool, hints, judge, novelty, pool, skills
from spade_jax.envs import validation
from spade_jax.envs.sandbox import Reset, Sandbox
from spade_jax.evals import heldout
from spade_jax.learn import difficulty
from spade_jax.learn.step import LearnerState
from spade_jax.measures import Made
from spade_jax.metrics import MetricsWriter, Progress, Value
from spade_jax.play.episodes import Job, play, play_seed
from spade_jax.policy.conversation import Policy
from spade_jax.program import run_program, warn
from spade_jax.run import Run
from spade_jax.types import (
    Arm,
    Design,
    DesignTask,
    Difficulty,
    Environment,
    Episode,
    EpisodeEnd,
    Failure,
    HostState,
    PendingDesign,
    PoolEntry,
    UsageError,
    Verdict,
)

FLAGS = flags.FLAGS


# -- one iteration ----------------------------------------------------------------------------


def iterate(run: Run, state: LearnerState, host: HostState) -> tuple[LearnerState, HostState, Made]:
    """One iteration of the method on both states."""
    c, policy, stage = run.config, run.policy(state), run.timer.stage
    earlier, designs, verdicts = host, [], []
    if host.iteration % c.design.regenerate_every == 0 and c.environments.source != "designer":
        with stage("draw"):
            host = open_given_epoch(run, host)
    elif host.iteration % c.design.regenerate_every == 0:
        with stage("design"):
            tasks = draw_tasks(run, host)
            designs = write_designs(run, policy, tasks)
        with stage("validate"):
            verdicts = validate(run, policy, designs, host)
            designs, verdicts = repair(run, policy, designs, verdicts, host)
            verdicts = novelty.refuse_near_duplicates(
                designs,
                verdicts,
                host.memory,
                threshold=c.novelty.threshold,
                quota=c.novelty.quota,
            )
        kept = pool.keep(host.pool, pool_bounds(c), c.pool.keep)
        host = open_epoch(host, designs, verdicts, policy.version, kept)
    else:
        host = dataclasses.replace(host, pool=pool.retire(host.pool, pool_bounds(c)))
    hints_missing = None
    if wants_hints(c, host):
        with stage("hint"):
            host, hints_missing = write_hints(run, policy, host)
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


def draw_tasks(run: Run, host: HostState) -> list[DesignTask]:
    """What to design: a skill, a document and examples for every slot."""
    c = run.config
    epoch = host.iteration // c.design.regenerate_every
    return designer.draw_tasks(
        host,
        run.corpus,
        seed=c.seed,
        num_envs=c.design.num_envs,
        active=skills.active_skills(c.skills, c.skills_per_epoch, epoch),
        positives=c.memory.positives if c.memory.enabled else 0,
        negatives=c.memory.negatives if c.memory.enabled else 0,
        per_prompt=c.design.per_prompt,
    )


def write_designs(run: Run, policy: Policy, tasks: Sequence[DesignTask]) -> list[Design]:
    """The policy's reply to every task."""
    c = run.config
    return designer.design(
        policy,
        tasks,
        run_setup.design_budget(c, run.model),
        seed=c.seed,
        prompt_set=c.design.prompts,
        code_characters=c.memory.code_characters,
        hint_source=c.hint.source,
    )


def validate(run: Run, policy: Policy, designs: Sequence[Design], host: HostState) -> list[Verdict]:
    """Verdicts on programs nobody has run yet; those of this run count as known."""
    c, v = run.config, run.config.validation
    early = [designer.check_hint(design, c.hint.source) for design in designs]
    checked = validation.validate(
        run.sandbox,
        [(d.code, d.task.kind) for d, verdict in zip(designs, early, strict=True) if not verdict],
        seen=frozenset(host.fingerprints),
        settings=validation.Settings(
            seeds=v.seeds,
            solve_seeds=v.solve_seeds,
            max_trivial=v.max_trivial,
            max_random=v.max_random,
        ),
    )
    left = iter(checked)
    verdicts = [verdict or next(left) for verdict in early]
    if c.judge.source == "none":
        return verdicts
    return judge.review(
        run.judge or policy,
        run.sandbox,
        designs,
        verdicts,
        run_setup.reader_budget(c, run.model, c.judge),
        seed=c.seed,
        prompt_set=c.design.prompts,
        play_characters=c.judge.play_characters,
    )


def repair(
    run: Run,
    policy: Policy,
    designs: Sequence[Design],
    verdicts: Sequence[Verdict],
    host: HostState,
) -> tuple[list[Design], list[Verdict]]:
    """Designs and verdicts after rejected ones have been written anew, told why, a few times.

    What is repaired is played, but the designer is trained on its first reply alone, and that was
    rejected: it keeps the penalty, since its tokens did not earn what the repaired program will.
    """
    c, designs, verdicts = run.config, list(designs), list(verdicts)
    for _ in range(c.design.repair_turns):
        rejected = [i for i, verdict in enumerate(verdicts) if not verdict.accepted]
        replies = designer.repair(
            policy,
            [designs[i] for i in rejected],
            [verdicts[i] for i in rejected],
            run_setup.reader_budget(c, run.model, c.design),
            seed=c.seed,
            prompt_set=c.design.prompts,
            code_characters=c.memory.code_characters,
            hint_source=c.hint.source,
        )
        again = {i: design for i, design in zip(rejected, replies, strict=True) if design}
        marks = [mark for v in verdicts if v.accepted for mark in (v.fingerprint, v.behaviour)]
        known = dataclasses.replace(host, fingerprints=(*host.fingerprints, *marks))
        judged = validate(run, policy, list(again.values()), known)
        for (i, design), verdict in zip(again.items(), judged, strict=True):
            designs[i], verdicts[i] = design, verdict
    return designs, verdicts


def open_epoch(
    host: HostState,
    designs: Sequence[Design],
    verdicts: Sequence[Verdict],
    version: int,
    kept: Sequence[PoolEntry] = (),
) -> HostState:
    """A new pool of the accepted designs and what is `kept`; all designs wait for their outcome."""
    entries, pending, marks = [], [], []
    for design, verdict in zip(designs, verdicts, strict=True):
        task = design.task
        pending.append(
            PendingDesign(
                environment_id=task.environment_id,
                skill=task.skill,
                iteration=task.iteration,
                version=version,
                reason=design.first or verdict.reason,
                record=design.record,
                prompt=task.prompt,
            )
        )
        if verdict.accepted:
            environment = Environment(
                id=task.environment_id,
                kind=task.kind,
                skill=task.skill,
                code=design.code,
                iteration=task.iteration,
                fingerprint=verdict.fingerprint,
                seeds=tuple(seed.environment_id for seed in task.positives),
                document=task.document.id if task.document else None,
                hint=design.hint,
            )
            entries.append(PoolEntry(environment=environment))
            marks += [verdict.fingerprint, verdict.behaviour]
    documents = len({design.task.prompt for design in designs if design.task.document})
    return dataclasses.replace(
        host,
        pool=(*entries, *kept),
        pending=(*host.pending, *pending),
        fingerprints=(*host.fingerprints, *marks),
        corpus_position=host.corpus_position + documents,
    )


def open_given_epoch(run: Run, host: HostState) -> HostState:
    """A new pool of environments that nobody designs: out of the fixed pool, or procedural ones."""
    c = run.config
    if c.environments.source == "fixed":
        epoch = host.iteration // c.design.regenerate_every
        drawn = fixed_pool.draw(run.fixed_pool, c.design.num_envs, epoch, c.seed)
    else:
        host, drawn = draw_procedural(run, host)
    if c.environments.probe:
        drawn = probe(run.sandbox, drawn)
    return dataclasses.replace(host, pool=tuple(PoolEntry(environment=e) for e in drawn))


def draw_procedural(run: Run, host: HostState) -> tuple[HostState, list[Environment]]:
    """Environments of tasks and levels by how difficult these are by now."""
    c, n = run.config, host.iteration
    begun = {name: Difficulty(levels=task.levels) for name, task in run.tasks.items()}
    host = dataclasses.replace(host, difficulty=begun | host.difficulty)
    chosen = difficulty.choose(
        random.Random(f"{c.seed}/difficulty/{n}"),
        host.difficulty,
        c.design.num_envs,
        run_setup.schedule(c),
    )
    return host, [
        run.tasks[name].make(
            random.Random(f"{c.seed}/procedural/{n}/{slot}"), level, f"{n:06d}-{slot:03d}", n
        )
        for slot, (name, level) in enumerate(chosen)
    ]


def probe(sandbox: Sandbox, drawn: Sequence[Environment]) -> list[Environment]:
    """Those of the environments that can be reset."""
    kept, room = [], sandbox.max_instances
    for start in range(0, len(drawn), room):
        some = drawn[start : start + room]
        instances = [sandbox.open(e.code, e.kind, modules=e.modules) for e in some]
        answers = sandbox.exchange([(instance, Reset(0)) for instance in instances])
        sandbox.close_instances(instances)
        kept += [e for e, a in zip(some, answers, strict=True) if not isinstance(a, Failure)]
    return kept


def pool_bounds(c: config_dict.ConfigDict) -> pool.Bounds:
    """Win rates beyond which an environment retires."""
    return pool.Bounds(c.pool.retire_easy, c.pool.retire_hard, c.pool.min_plays)


def wants_hints(c: config_dict.ConfigDict, host: HostState) -> bool:
    """Whether the pool has just been made, and a reader of its programs writes the hints."""
    fresh = host.iteration % c.design.regenerate_every == 0
    return fresh and c.play.hint_plays > 0 and c.hint.source in hints.READERS


def write_hints(run: Run, policy: Policy, host: HostState) -> tuple[HostState, int]:
    """A hint for each new environment, and how many got none: these have no hinted plays."""
    c = run.config
    new = [entry.environment for entry in host.pool if not entry.plain]
    written = hints.write(
        run.hinter or policy,
        new,
        run_setup.reader_budget(c, run.model, c.hint),
        seed=c.seed,
        iteration=host.iteration,
        prompt_set=c.design.prompts,
    )
    hinted = {
        environment.id: dataclasses.replace(environment, hint=hint)
        for environment, hint in zip(new, written, strict=True)
    }
    entries = (
        dataclasses.replace(entry, environment=hinted.get(entry.environment.id, entry.environment))
        for entry in host.pool
    )
    return dataclasses.replace(host, pool=tuple(entries)), written.count(None)


def play_pool(run: Run, policy: Policy, host: HostState) -> list[Episode]:
    """Plain plays of the pool and, of what it plays first, hinted ones on the same seeds.

    With `play.paired_plays` each of the latter has its plain partner, trained on or not.
    """
    c = run.config
    hinted = c.play.hint_plays
    paired = max(c.play.plays, hinted) if c.play.paired_plays else c.play.plays
    plain_and_hinted = {True: (paired, hinted), False: (c.play.plays, 0)}  # of a new one or not
    playing = [entry for entry in host.pool if not entry.retired]
    jobs = [
        Job(e, arm, k, play_seed(c.seed, e.id, host.iteration, k))
        for i, arm in enumerate(Arm)
        for e, new in ((entry.environment, not entry.plain) for entry in playing)
        if arm is Arm.PLAIN or e.hint or c.hint.source == "method"
        for k in range(plain_and_hinted[new][i])
    ]
    return play(
        policy,
        run.sandbox,
        jobs,
        run_setup.play_rules(c),
        seed=c.seed,
        iteration=host.iteration,
        seats=c.sampling.slots,
    )


# -- the loop ---------------------------------------------------------------------------------


class Interruption:
    """Turns the first SIGINT or SIGTERM into a wish to stop after the iteration at hand."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> Interruption:
        self._before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        print("stopping after this iteration; press Ctrl-C again to stop at once", flush=True)


def evaluate(run: Run, state: LearnerState, workdir: Path, iteration: int) -> Mapping[str, Value]:
    """Play the held-out set with these weights, or their mean, and write down each outcome."""
    c = run.config
    items = run_setup.held_out(run)
    with run.timer.stage("evaluate"):
        episodes = heldout.play_held_out(
            run.policy(state.averaged()),
            run.sandbox,
            items,
            run_setup.play_rules(c),
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
    known = configs.compare(c, workdir)
    with contextlib.ExitStack() as stack:
        run, state = stack.enter_context(run_setup.set_up(c))
        if not known:  # only now, so that a mistake found above leaves no trace
            configs.save(c, workdir)
        checkpoints = stack.enter_context(Checkpoints(workdir / "checkpoints", c.checkpoint.keep))
        host = HostState()
        found = checkpoints.restore(abstract(state))
        if found:
            _, state, host = found
        if host.iteration >= c.iterations:
            print(f"{workdir} is finished: {host.iteration} iterations are done")
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
        checkpoints.save(host.iteration, state, host)
    if stop and host.iteration < c.iterations:
        checkpoints.wait()
        warn(f"stopped and saved at iteration {host.iteration} of {c.iterations}: {stop}")
        return 1
    if interruption.signal is not None and host.iteration < c.iterations:
        print(
            f"saved iteration {host.iteration} of {c.iterations}; give the same command with "
            f"--workdir={workdir} to go on"
        )
        return 128 + interruption.signal
    print(summary.write(workdir))
    return 0


def main() -> int:
    return train(FLAGS.config, Path(FLAGS.workdir))


if __name__ == "__main__":
    flags.DEFINE_string("workdir", "runs/tiny", "Folder of everything the run writes.")
    run_program(main, config="tiny")
