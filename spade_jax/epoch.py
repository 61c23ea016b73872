"""A new epoch of environments: designed and validated, or given; hints; what retires.

The arrows of `train.iterate` from a corpus document to the pool.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from ml_collections import config_dict

from spade_jax import hosts, limits
from spade_jax import run as run_setup
from spade_jax.design import designer, fixed_pool, hints, judge, novelty, pool, skills
from spade_jax.envs import validation
from spade_jax.envs.sandbox import Reset, Sandbox
from spade_jax.learn import difficulty
from spade_jax.policy.conversation import Policy
from spade_jax.run import Run
from spade_jax.types import (
    Design,
    DesignTask,
    Difficulty,
    Environment,
    Failure,
    HostState,
    PendingDesign,
    PoolEntry,
    UsageError,
    Verdict,
)


def draw_tasks(run: Run, host: HostState) -> list[DesignTask]:
    """What to design: a skill and examples for every slot."""
    c = run.config
    epoch = host.iteration // c.design.regenerate_every
    return designer.draw_tasks(
        host,
        seed=c.seed,
        num_envs=c.design.num_envs,
        active=skills.active_skills(c.skills, c.skills_per_epoch, epoch),
        positives=c.memory.positives if c.memory.enabled else 0,
        negatives=c.memory.negatives if c.memory.enabled else 0,
        per_prompt=c.design.per_prompt,
    )


def write_designs(
    run: Run, policy: Policy, tasks: Sequence[DesignTask], position: int
) -> list[Design]:
    """The policy's reply to every task; documents from `position` of the corpus on.

    A host reads those of its own share alone.
    """
    c = run.config
    return run.divide(
        tasks,
        lambda own: designer.design(
            policy,
            designer.read_documents(own, run.corpus, position, c.design.per_prompt),
            limits.design_budget(c, run.model),
            seed=c.seed,
            prompt_set=c.design.prompts,
            code_characters=c.memory.code_characters,
            hint_source=c.hint.source,
        ),
        Design,
        by=lambda task: task.prompt,
    )


def validate(
    run: Run, policy: Policy, designs: Sequence[Design], host: HostState
) -> tuple[list[Design], list[Verdict]]:
    """The designs as they are after repairs, with their verdicts."""
    novel = run.config.novelty
    verdicts = judge_programs(run, policy, designs, host)
    designs, verdicts = repair(run, policy, designs, verdicts, host)
    return designs, novelty.refuse_near_duplicates(
        designs, verdicts, host.memory, threshold=novel.threshold, quota=novel.quota
    )


def judge_programs(
    run: Run, policy: Policy, designs: Sequence[Design], host: HostState
) -> list[Verdict]:
    """Verdicts on programs nobody has run yet; those of this run count as known."""
    c, v = run.config, run.config.validation
    early = [designer.check_hint(design, c.hint.source) for design in designs]
    settings = validation.Settings(
        seeds=v.seeds,
        solve_seeds=v.solve_seeds,
        max_trivial=v.max_trivial,
        max_random=v.max_random,
    )
    checked = hosts.divide(
        [(d.code, d.task.kind) for d, verdict in zip(designs, early, strict=True) if not verdict],
        lambda own: validation.check(run.sandbox, own, settings=settings),
        Verdict,
    )
    left = iter(validation.refuse_known(checked, frozenset(host.fingerprints)))
    verdicts = [verdict or next(left) for verdict in early]
    if c.judge.source == "none":
        return verdicts
    return run.divide(
        list(zip(designs, verdicts, strict=True)),
        lambda own: judge.review(
            run.judge or policy,
            run.sandbox,
            [design for design, _ in own],
            [verdict for _, verdict in own],
            limits.reader_budget(c, run.model, c.judge),
            seed=c.seed,
            prompt_set=c.design.prompts,
            play_characters=c.judge.play_characters,
        ),
        Verdict,
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
        replies = run.divide(
            [(designs[i], verdicts[i]) for i in rejected],
            lambda own: designer.repair(
                policy,
                [design for design, _ in own],
                [verdict for _, verdict in own],
                limits.reader_budget(c, run.model, c.design),
                seed=c.seed,
                prompt_set=c.design.prompts,
                code_characters=c.memory.code_characters,
                hint_source=c.hint.source,
            ),
            Design | None,
        )
        again = {i: design for i, design in zip(rejected, replies, strict=True) if design}
        marks = [mark for v in verdicts if v.accepted for mark in (v.fingerprint, v.behaviour)]
        known = dataclasses.replace(host, fingerprints=(*host.fingerprints, *marks))
        judged = judge_programs(run, policy, list(again.values()), known)
        for (i, design), verdict in zip(again.items(), judged, strict=True):
            designs[i], verdicts[i] = design, verdict
    return designs, verdicts


def open_designed(
    c: config_dict.ConfigDict,
    host: HostState,
    designs: Sequence[Design],
    verdicts: Sequence[Verdict],
    version: int,
) -> HostState:
    """A new pool of the accepted designs and those kept; all designs wait for their outcome."""
    kept = pool.keep(host.pool, pool_bounds(c), c.pool.keep)
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


def open_given(run: Run, host: HostState) -> HostState:
    """A new pool of environments that nobody designs: out of the fixed pool, or procedural ones."""
    c = run.config
    if c.environments.source == "fixed":
        epoch = host.iteration // c.design.regenerate_every
        drawn = fixed_pool.draw(run.fixed_pool, c.design.num_envs, epoch, c.seed)
    else:
        host, drawn = draw_procedural(run, host)
    if c.environments.probe:
        n = len(drawn)
        sound = hosts.divide(drawn, lambda own: probe(run.sandbox, own), bool)
        drawn = [environment for environment, begins in zip(drawn, sound, strict=True) if begins]
        if not drawn:
            raise UsageError(
                f"none of the {n} environments of iteration {host.iteration}{run_setup.given(run)} "
                "can be reset; mend what environments.path or environments.provider gives, or "
                "raise sandbox.step_seconds"
            )
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


def probe(sandbox: Sandbox, drawn: Sequence[Environment]) -> list[bool]:
    """Which of the environments can be reset."""
    sound, room = [], sandbox.max_instances
    for start in range(0, len(drawn), room):
        some = drawn[start : start + room]
        instances = [sandbox.open(e.code, e.kind, modules=e.modules) for e in some]
        answers = sandbox.exchange([(instance, Reset(0)) for instance in instances])
        sandbox.close_instances(instances)
        sound += [not isinstance(answer, Failure) for answer in answers]
    return sound


def retire(c: config_dict.ConfigDict, host: HostState) -> HostState:
    """The pool goes on without what has become too easy or too hard."""
    return dataclasses.replace(host, pool=pool.retire(host.pool, pool_bounds(c)))


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
    written = run.divide(
        new,
        lambda own: hints.write(
            run.hinter or policy,
            own,
            limits.reader_budget(c, run.model, c.hint),
            seed=c.seed,
            iteration=host.iteration,
            prompt_set=c.design.prompts,
        ),
        str | None,
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
