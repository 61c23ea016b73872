"""The set-up of a run: what every iteration uses and none changes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.monitoring
import jax.numpy as jnp
import optax
from ml_collections import config_dict

from spade_jax import host_memory, hosts, limits, weights
from spade_jax.config_rules import actor_only
from spade_jax.design import fixed_pool, procedural
from spade_jax.design.corpus import Corpus
from spade_jax.design.procedural import Procedural
from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals.heldout import Item, held_out_set
from spade_jax.learn import step
from spade_jax.learn.difficulty import Schedule
from spade_jax.learn.learner import Learner, Settings
from spade_jax.learn.step import LearnerState
from spade_jax.metrics import Timer
from spade_jax.policy import endpoint as endpoints
from spade_jax.policy import hub, kernels, lockstep, lora, sharding, templates
from spade_jax.policy.conversation import Policy
from spade_jax.policy.endpoint import Endpoint
from spade_jax.policy.model import ModelConfig, Params, count, declare, in_compute_dtype, merged
from spade_jax.policy.sampler import Sampler
from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.types import (
    Design,
    Environment,
    Role,
    UsageError,
    Verdict,
)

Task = TypeVar("Task")
Made = TypeVar("Made")

LARGE = 10**10  # bytes of a checkpoint worth a word


@dataclasses.dataclass(frozen=True)
class Run:
    """What every iteration uses and none changes."""

    config: config_dict.ConfigDict
    model: ModelConfig
    tokenizers: dict[Role, ChatTokenizer]
    corpus: Corpus | None
    fixed_pool: list[Environment]  # empty where environments come from elsewhere
    tasks: dict[str, Procedural]  # by name; empty where environments come from elsewhere
    training: frozenset[str]  # fingerprints of the programs the model was warm-started on
    sandbox: Sandbox
    sampler: Sampler
    learner: Learner
    timer: Timer
    hinter: Endpoint | None = None  # writes the hints in the policy's place
    judge: Endpoint | None = None  # judges designs in the policy's place
    show: Callable[[Sequence[Design], Sequence[Verdict]], None] = lambda designs, verdicts: None

    def policy(self, state: LearnerState) -> Policy:
        """The weights of `state`, ready to talk; there is one such policy at a time."""
        self.sampler.rest()
        dtype = jnp.dtype(self.config.model.compute_dtype)
        params = in_compute_dtype(merged(self.learner.params(state)), self.model, dtype)
        mesh, declared = jax.sharding.get_mesh(), declare(self.model)
        to = replicas(self.config, self.model, mesh)
        if to is None:
            own = jax.device_put(params, sharding.parameters(declared, mesh, "sample"))
        else:
            own = sharding.replicate(params, declared, to)
        self.sampler.load(own)
        return Policy(self.sampler, self.tokenizers[Role.AGENT], version=int(state.step))

    def divide(
        self,
        items: Sequence[Task],
        work: Callable[[list[Task]], Sequence[Made]],
        kind: Any,
        by: Callable[[Task], Hashable] | None = None,
    ) -> list[Made]:
        """`hosts.divide`, a share for each replica, of `work` that talks with the policy."""
        lockstep.follow(self.sampler)
        led = lockstep.leading(self.sampler, work)
        return hosts.divide(items, led, kind, by, every=self.config.hosts.per_replica)

    def designer(self, policy: Policy) -> Policy:
        """The policy in the designer's chat form, in which it also writes hints and judges."""
        agent, designer = self.tokenizers[Role.AGENT], self.tokenizers[Role.DESIGNER]
        return policy if designer is agent else policy.speaking(designer)


@contextlib.contextmanager
def set_up(c: config_dict.ConfigDict) -> Iterator[tuple[Run, LearnerState]]:
    """Everything a run needs, and the learner's state before the first update."""
    _listen_for_compiles()
    with jax.set_mesh(sharding.make_mesh(c.mesh)):
        yield from _on_mesh(c)


def _on_mesh(c: config_dict.ConfigDict) -> Iterator[tuple[Run, LearnerState]]:
    """`set_up` on the mesh that is set."""
    source = weights.find(c.model.path)
    model = source.model
    to = replicas(c, model, jax.sharding.get_mesh())
    tokenizers = new_tokenizers(c, source.folder)
    tokenizer = tokenizers[Role.AGENT]
    limits.check_sizes(c, model, tokenizer)
    places = sharding.parameters(declare(model), jax.sharding.get_mesh(), "train")
    params = source.load(shardings=places)
    if c.model.max_loss:
        weights.check_loss(params, model, tokenizer, source, c.model.max_loss)
    tx = new_optimizer(c)
    learner, trained = new_learner(c, model, params, tx)
    with jax.set_mesh(to.own) if to else contextlib.nullcontext():
        sampler = sampler_class(c.hosts.per_replica)(
            params,
            model,
            slots=c.sampling.slots,
            context=limits.longest(c, model),
            stop_ids=tokenizer.stop_ids,
            dtype=jnp.dtype(c.model.compute_dtype),
            block=c.sampling.block,
        )
    pool = open_pool(c)
    known = source.folder / hub.PROGRAMS_FILE
    training = frozenset(known.read_text().split() if known.exists() else ())
    with (
        open_corpus(c) as corpus,
        Sandbox(**c.sandbox) as sandbox,
        open_endpoint(c.hint) as hinter,
        open_endpoint(c.judge) as judge,
    ):
        limits.check_prompts(c, model, tokenizers[Role.DESIGNER], corpus)
        yield (
            Run(
                config=c,
                model=model,
                tokenizers=tokenizers,
                corpus=corpus,
                fixed_pool=pool,
                tasks=open_tasks(c, sandbox),
                training=training,
                sandbox=sandbox,
                sampler=sampler,
                learner=learner,
                timer=Timer(),
                hinter=hinter,
                judge=judge,
            ),
            sharding.place_state(step.create(trained, tx, ema=c.learn.ema_decay > 0)),
        )


def replicas(
    c: config_dict.ConfigDict, model: ModelConfig, mesh: jax.sharding.Mesh
) -> sharding.Replicas | None:
    """Where `hosts.per_replica` hosts sample apart from the others; None: where it trains.

    A step of decoding reads nearly all weights, so they lie in as many pieces as can be.
    """
    groups = sharding.by_replica(mesh, c.hosts.per_replica)
    if not (mesh.is_multi_process or c.sampling.tensor or c.sampling.expert):
        return None
    devices = len(groups[0])
    tensor = c.sampling.tensor or math.gcd(model.kv_heads, devices)
    expert = c.sampling.expert or math.gcd(model.experts or 1, devices // tensor)
    return sharding.replicas(groups, tensor, expert)


def sampler_class(hosts_each: int) -> Callable[..., Sampler]:
    """What makes the sampler of a host: as one of a replica of several, it leads or follows."""
    if hosts_each == 1:
        return Sampler
    leader = hosts.index() - hosts.index() % hosts_each
    line = hosts.Line(leader, range(leader + 1, leader + hosts_each))
    if hosts.index() == leader:
        return functools.partial(lockstep.Leader, send=line.send)
    return functools.partial(lockstep.Follower, receive=line.receive)


def open_pool(c: config_dict.ConfigDict) -> list[Environment]:
    """The fixed pool of environments, where they come from one."""
    e = c.environments
    if e.source != "fixed":
        return []
    with bundled_corpus(c) as documents:
        pool = fixed_pool.load_pool(e.path, c.seed, e.size, c.skills, documents)
    if len(pool) < c.design.num_envs:
        raise UsageError(
            f"the pool {e.path} holds {len(pool)} environments, but design.num_envs is "
            f"{c.design.num_envs}; lower --config.design.num_envs or take a larger pool"
        )
    return pool


def open_tasks(c: config_dict.ConfigDict, sandbox: Sandbox) -> dict[str, Procedural]:
    """The procedural tasks, where environments come from these."""
    e = c.environments
    if e.source != "procedural":
        return {}
    with bundled_corpus(c) as documents:
        return procedural.tasks(e.provider, e.tasks, e.max_level, sandbox, documents)


def new_tokenizers(c: config_dict.ConfigDict, folder: Path) -> dict[Role, ChatTokenizer]:
    """The chat form of each role, one object where both roles think alike."""
    made: dict[str, ChatTokenizer] = {}
    for name, how in (("design", c.design.thinking), ("play", c.play.thinking)):
        options = templates.read_options(c.model.template_options)
        if how != "auto":
            options["enable_thinking"] = how == "on"
        if how not in made:
            made[how] = ChatTokenizer(folder, think=c.model.think, options=options)
        if how != "auto" and not made[how].switches_thinking:
            raise UsageError(
                f"{name}.thinking is {how!r}, but the chat template of {folder} has no switch "
                f"enable_thinking; leave --config.{name}.thinking at auto"
            )
    return {Role.DESIGNER: made[c.design.thinking], Role.AGENT: made[c.play.thinking]}


def new_optimizer(c: config_dict.ConfigDict) -> optax.GradientTransformation:
    """AdamW with its warm-up."""
    warmup = max(1, c.optimizer.warmup)
    return step.optimizer(
        optax.linear_schedule(c.optimizer.lr / warmup, c.optimizer.lr, warmup - 1),
        beta1=c.optimizer.beta1,
        beta2=c.optimizer.beta2,
        weight_decay=c.optimizer.weight_decay,
        clip_norm=c.optimizer.clip_norm,
        eps=c.optimizer.eps,
        final_norm_rate=c.optimizer.final_norm_rate,
        first_moment_dtype=c.optimizer.first_moment_dtype,
    )


def new_learner(
    c: config_dict.ConfigDict, model: ModelConfig, params: Params, tx: optax.GradientTransformation
) -> tuple[Learner, Params]:
    """The learner, and what it trains: the model's parameters or, with `model.lora`, adapters."""
    if not c.model.lora.rank:
        reference = jax.tree.map(jnp.copy, params) if c.learn.kl else None
        return Learner(model, hyper(c), tx, settings(c), reference), params
    how = lora.Lora(**c.model.lora)
    adapters = lora.init(model, how, jax.random.key(c.seed % 2**32))
    reference = params if c.learn.kl else None
    return Learner(model, hyper(c), tx, settings(c), reference, params, how), adapters


def hyper(c: config_dict.ConfigDict) -> step.Hyper:
    """What the update is."""
    return step.Hyper(
        clip_low=c.learn.clip_low,
        clip_high=c.learn.clip_high,
        importance_cap=c.learn.importance_cap,
        kl=c.learn.kl,
        entropy=c.learn.entropy,
        role_norms=c.learn.role_norms,
        ema_decay=c.learn.ema_decay,
        compute_dtype=c.model.compute_dtype,
        remat=c.model.remat,
        kernels=kernels.choose(c.model.attention),
    )


def settings(c: config_dict.ConfigDict) -> Settings:
    """How an iteration's samples are gone through."""
    updates = c.learn.passes * c.learn.minibatches
    return Settings(
        passes=c.learn.passes,
        minibatches=c.learn.minibatches,
        row_tokens=tuple(c.learn.row_tokens),
        rows=tuple(c.learn.rows),
        aggregation=c.learn.aggregation,
        temperature={Role.AGENT: c.play.temperature, Role.DESIGNER: c.design.temperature},
        max_gap=c.learn.logprob_gap,
        max_lag={Role.AGENT: 0, Role.DESIGNER: c.learn.designer_delay * updates},
    )


@contextlib.contextmanager
def open_corpus(c: config_dict.ConfigDict) -> Iterator[Corpus | None]:
    """The documents to design from, with a warning where records are skipped; None without."""
    if actor_only(c) or not c.corpus.enabled:
        yield None
        return
    with Corpus(
        c.corpus.path,
        seed=c.corpus.seed,
        max_words=c.corpus.max_words,
        data_dir=c.corpus.data_dir,
        split=c.corpus.split,
    ) as corpus:
        if warning := corpus.warning():
            print(f"warning: {warning}")
        yield corpus


@contextlib.contextmanager
def open_endpoint(group: config_dict.ConfigDict) -> Iterator[Endpoint | None]:
    """The served model that a group of fields names; None where its source is another."""
    if group.source != "endpoint":
        yield None
        return
    settings = endpoints.Settings(
        url=group.endpoint_url, model=group.endpoint_model, key_variable=group.endpoint_key
    )
    with Endpoint(settings) as opened:
        yield opened


def bundled_corpus(c: config_dict.ConfigDict) -> Corpus:
    """The documents shipped with the package."""
    return Corpus("", seed=c.corpus.seed, max_words=c.corpus.max_words)


def held_out(run: Run) -> tuple[Item, ...]:
    """The held-out set of the config; it is about the bundled documents, whatever the corpus."""
    c = run.config
    with bundled_corpus(c) as documents:
        return held_out_set(c.evaluation.seed, c.evaluation.per_level, documents)


def schedule(c: config_dict.ConfigDict) -> Schedule:
    """How the difficulty of procedural tasks goes."""
    e = c.environments
    return Schedule(
        by=e.difficulty,
        width=e.window,
        attempts=e.attempts,
        success=e.success,
        gamma_fast=e.gamma_fast,
        gamma_slow=e.gamma_slow,
        random_share=e.random_share,
        won=procedural.WON[e.provider],
    )


_compiles = 0


@functools.cache  # a second listener would count all once more
def _listen_for_compiles() -> None:
    def count(event: str, duration: float, **_: str | int) -> None:
        global _compiles
        _compiles += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(count)


def compiles() -> int:
    """Programs XLA has compiled in this process since the first call of `set_up`."""
    return _compiles


def describe_checkpoints(c: config_dict.ConfigDict, size: int) -> None:
    """Print what checkpoints of so many bytes ask of a disk, where that is much."""
    if size < LARGE:
        return
    most = c.checkpoint.keep + 1
    print(
        f"each checkpoint is of {size / 1e9:.0f} GB, one is written every {c.checkpoint.every} "
        f"iterations, and up to {most} lie in the workdir at once, {most * size / 1e9:.0f} GB"
        + (f", besides those of every {c.checkpoint.keep_every}" if c.checkpoint.keep_every else "")
        + "; a larger --config.checkpoint.every writes fewer, and "
        "--config.optimizer.first_moment_dtype=bfloat16 smaller ones",
        flush=True,
    )


def memory(run: Run) -> dict[str, float | None]:
    """What the host's memory holds of the run by now, in MiB."""
    resident = host_memory.resident()
    return {
        "host/memory_mb": None if resident is None else resident / 2**20,
        "host/memory_peak_mb": host_memory.peak() / 2**20,
        "host/environment_peak_mb": run.sandbox.peak_mb or None,
    }


def given(run: Run) -> str:
    """Where environments come from that nobody designs, as a clause of a sentence."""
    e = run.config.environments
    if e.source == "fixed":
        return f" of {len(run.fixed_pool)} in {e.path or 'the bundled pool'}"
    if e.source == "procedural":
        most = max(task.levels for task in run.tasks.values())
        return f" of {len(run.tasks)} tasks of {e.provider} at up to {most} levels"
    return ""


def _shape(mesh: jax.sharding.Mesh) -> str:
    return ", ".join(f"{name} {n}" for name, n in mesh.shape.items())


def describe(run: Run) -> None:
    """Print what the run is, the loss it minimises among it."""
    c = run.config
    kl = f" + {c.learn.kl} k3(reference)" if c.learn.kl else ""
    bonus = f" - {c.learn.entropy} entropy" if c.learn.entropy else ""
    weight = f"min(old/behaviour, {c.learn.importance_cap:g}) " if c.learn.importance_cap else ""
    print(
        f"model of {count(run.model):,} parameters; {c.design.num_envs} environments{given(run)} "
        f"every {c.design.regenerate_every} iterations, {c.play.plays} plain and "
        f"{c.play.hint_plays} hinted plays each\n"
        f"loss: {c.learn.aggregation} of -{weight}min(r A, clip(r, {1 - c.learn.clip_low:g}, "
        f"{1 + c.learn.clip_high:g}) A){kl}{bonus}, {c.learn.passes} passes in "
        f"{c.learn.minibatches} minibatches, AdamW at {c.optimizer.lr:g}",
        flush=True,
    )
    mesh = jax.sharding.get_mesh()
    if mesh.size > 1:
        print("devices: " + _shape(mesh))
    if to := replicas(c, run.model, mesh):
        of = f" of {c.hosts.per_replica} hosts" if c.hosts.per_replica > 1 else ""
        print(f"sampling: on each of {to.all.shape['replica']} replicas{of}, {_shape(to.own)}")
    for rows, tokens in zip(c.learn.rows, c.learn.row_tokens, strict=True):
        divided = sharding.pieces(rows)
        all_of_them = mesh.size // mesh.shape["tensor"]
        if divided < all_of_them:
            print(
                f"warning: rows of {tokens} tokens are computed {all_of_them // divided} times "
                f"over: {all_of_them} pieces divide no {rows} of them; raise --config.learn.rows"
            )
    report = run.sandbox.confinement
    lacks = "".join(f"; not enforced: {step} ({why})" for step, why in report.missing.items())
    print(f"programs run confined by tier {report.tier}{lacks}", flush=True)
