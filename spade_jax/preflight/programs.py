"""The programs of a run, with abstract arguments, made by the functions that the run calls.

Nothing is allocated and no device is needed but by name: parameters, optimizer, cache and batches
are shapes with the places they will have.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import config_dict

from spade_jax import limits
from spade_jax import run as run_setup
from spade_jax.learn import batching, learner, step
from spade_jax.learn.batching import Rows
from spade_jax.policy import buckets, conversation, decoding, drawing, hub, model, sharding
from spade_jax.policy.model import ModelConfig, Params
from spade_jax.types import UsageError

PUBLISHED = Path(__file__).parent / "assets" / "published"  # config.json of models, by folder name
STOP_IDS = (0, 1)  # what they are makes no difference to a program
Tree = Any  # of jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True)
class Layout:
    """A run on a slice: where it trains, and where its `replicas` sample, as one or apart."""

    config: config_dict.ConfigDict
    model: ModelConfig
    mesh: Mesh
    sampling: Mesh  # of one replica
    spread: Mesh  # of all, for the copy of the weights to them
    replicas: int


@dataclasses.dataclass(frozen=True)
class Program:
    """A jitted function and its arguments, in shapes, to compile on `mesh`.

    `holds` names the residents among the arguments, see `residents`; `loops` says what one round
    of each of its loops is whose length the data decide, and `lengths` the rows that each is over.
    Of the experts a token picks, a device has `share` where the picks are spread evenly. A program
    whose like are run too stands for `repeats` of its size.
    """

    name: str
    phase: str  # weights | sample | learn
    mesh: Mesh
    function: Any  # of jax.jit
    arguments: tuple[Tree, ...]
    options: dict[str, Any]  # static arguments, and others by name
    holds: tuple[str, ...]
    loops: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    share: float = 1.0
    repeats: float = 1.0

    def lower(self) -> jax.stages.Lowered:
        """The program as the compiler gets it."""
        with jax.set_mesh(self.mesh):
            return self.function.lower(*self.arguments, **self.options)


# -- model and meshes -------------------------------------------------------------------------


def sizes(path: str) -> ModelConfig:
    """Sizes of the model at `path`, or of the published one of that name where nothing is there.

    The weights need not be there. A run's folder leads to the model that it started from.
    """
    folder = hub.folder(path)
    if not folder.exists() and (PUBLISHED / folder.name).is_dir():
        return hub.read_config(PUBLISHED / folder.name)
    try:
        kept = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        kept = {}
    if isinstance(kept, dict) and isinstance(kept.get("model"), dict):
        return sizes(kept["model"]["path"])
    return hub.read_config(folder)


def lay_out(
    c: config_dict.ConfigDict,
    m: ModelConfig,
    devices: Sequence[jax.Device],
    apart: Sequence[jax.Device],
) -> Layout:
    """The run on these devices; `apart` are those of one replica as a slice of its own.

    Raises UsageError for a mesh that divides neither devices nor heads nor experts.
    """
    mesh = sharding.make_mesh(c.mesh, devices)
    check_mesh(m, mesh, "mesh")
    to = run_setup.replicas(c, m, mesh)
    if to is None:
        return Layout(c, m, mesh, mesh, mesh, 1)
    check_mesh(m, to.own, "sampling")
    # One program has its devices in one order. `device_put`, which makes the copy in a run, changes
    # theirs for it in the same way.
    shape = to.all.devices.shape
    spread = Mesh(mesh.devices.reshape(shape), to.all.axis_names, axis_types=to.all.axis_types)
    return Layout(c, m, mesh, sharding.make_mesh(shape[1:], apart), spread, shape[0])


def check_mesh(m: ModelConfig, mesh: Mesh, field: str) -> None:
    """UsageError, which names the field, where heads or experts do not fall into equal pieces."""
    for axis, what, size in (
        ("tensor", "query heads", m.heads),
        ("tensor", "key heads", m.kv_heads),
        ("expert", "experts", m.experts) if m.experts else ("tensor", "feed-forward", m.ffn),
    ):
        pieces = mesh.shape[axis]
        if size % pieces:
            raise UsageError(
                f"{field} divides the model among {pieces} devices on the axis {axis}, but "
                f"{pieces} do not divide its {size} {what}; take a divisor of {size} there"
            )


def own_experts(m: ModelConfig, mesh: Mesh) -> float:
    """The share of the experts that a device computes."""
    if not m.experts:
        return 1.0
    gate = model.declare(m)["layers"]["gate"]
    names = sharding.split(gate.axes, gate.shape, mesh, "sample")[gate.axes.index("expert")]
    return 1.0 / math.prod(mesh.shape[name] for name in names)


# -- what is resident -------------------------------------------------------------------------


def placed(tree: Tree, places: Tree) -> Tree:
    """A tree of shapes, each at its place."""
    return jax.tree.map(
        lambda a, place: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place), tree, places
    )


def whole(tree: Tree, mesh: Mesh) -> Tree:
    """A tree of shapes, of which each device has all."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=everywhere), tree)


def per_device(tree: Tree) -> int:
    """Bytes of a device that a tree of shapes takes; what has no place is whole."""
    return sum(
        math.prod(a.sharding.shard_shape(a.shape) if a.sharding else a.shape) * a.dtype.itemsize
        for a in jax.tree.leaves(tree)
        if isinstance(a, jax.ShapeDtypeStruct)
    )


@dataclasses.dataclass(frozen=True)
class Learning:
    """The learner with its state in shapes, as `run.set_up` makes them."""

    learner: learner.Learner
    tx: optax.GradientTransformation
    state: Tree
    base: Params | None  # what is not trained
    reference: Params | None  # of a KL term, where it is a copy of its own

    @property
    def params(self) -> Params:
        """The model's parameters."""
        return self.learner.assemble(self.state.params, self.base)


def learning(a: Layout) -> Learning:
    """What trains, on the mesh of the layout."""
    c, m = a.config, a.model
    declared = model.declare(m)
    params = placed(model.abstract(m), sharding.parameters(declared, a.mesh, "train"))
    tx, made = run_setup.new_optimizer(c), []

    def create(params: Params) -> step.LearnerState:
        own, trained = run_setup.new_learner(c, m, params, tx)
        made.append(own)
        return step.create(trained, tx, ema=c.learn.ema_decay > 0)

    with jax.set_mesh(a.mesh):  # the kernels are those of its platform
        state = jax.eval_shape(create, params)
    own = made[0]
    trained = params if own.assemble is step.whole else whole(state.params, a.mesh)
    like = jax.tree.map(lambda p: p.sharding, trained)
    everywhere = functools.partial(whole, mesh=a.mesh)
    state = step.LearnerState(
        params=trained,
        opt_state=optax.tree.map_params(
            tx,
            lambda a, place: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place),
            state.opt_state,
            like,
            transform_non_params=everywhere,
        ),
        step=everywhere(state.step),
        ema=None if state.ema is None else trained,
    )
    frozen = None if own.assemble is step.whole else params
    return Learning(own, tx, state, frozen, params if c.learn.kl and frozen is None else None)


def copy(a: Layout, mesh: Mesh, by: str = "sample") -> Params:
    """The weights as the sampler has them, on `mesh` by the rules `by`."""
    dtype = jnp.dtype(a.config.model.compute_dtype)
    shapes = jax.eval_shape(
        lambda p: model.in_compute_dtype(p, a.model, dtype), model.abstract(a.model)
    )
    return placed(shapes, sharding.parameters(model.declare(a.model), mesh, by))


def context(a: Layout) -> int:
    """Most tokens of a conversation."""
    return min(limits.longest(a.config, a.model), a.model.max_positions)


def cache(a: Layout) -> decoding.Cache:
    """The sampler's cache, where a host samples; columns are not divided, however many they are."""
    c = a.config
    columns = context(a) + max(c.sampling.block, buckets.WIDTHS[-1])  # as Sampler has them
    dtype = jnp.dtype(c.model.compute_dtype)
    with jax.set_mesh(a.sampling):
        few = jax.jit(lambda: decoding.empty_cache(a.model, c.sampling.slots, 1, dtype))
        places = few.lower().compile().output_shardings
    new = functools.partial(decoding.empty_cache, a.model, c.sampling.slots, columns, dtype)
    return placed(jax.eval_shape(new), places)


def residents(a: Layout, own: Learning, held: decoding.Cache) -> dict[str, int]:
    """Bytes of a device for what stays there from one program to the next."""
    state = own.state
    return {
        "parameters": per_device((state.params, own.base)),
        "optimizer": per_device((state.opt_state, state.ema, state.step)),
        "reference": per_device(own.reference),
        "sampling copy": per_device(copy(a, a.sampling)),
        "cache": per_device(held),
    }


# -- the programs -----------------------------------------------------------------------------


def programs(
    a: Layout, own: Learning, held: decoding.Cache, *, every_bucket: bool
) -> Iterator[Program]:
    """All programs of an iteration, in its order."""
    yield _weights(a)
    yield from _sampling(a, held, every_bucket)
    yield from _updates(a, own)


def _weights(a: Layout) -> Program:
    """The largest array on its way to the copy that samples, where all others are already.

    The run casts the learner's parameters and then moves each array by a program of its own.
    """
    there, here = (
        jax.tree.leaves(copy(a, mesh, by)) for mesh, by in ((a.spread, "sample"), (a.mesh, "train"))
    )
    n = max(range(len(there)), key=lambda n: per_device(there[n]))
    sizes = [math.prod(w.shape) for w in there]

    def weights(w: jax.Array, cast: list[jax.Array], moved: list[jax.Array]) -> jax.Array:
        del cast, moved  # they only lie there
        return w

    return Program(
        name="weights to the sampler",
        phase="weights",
        mesh=a.mesh,
        function=jax.jit(weights, out_shardings=there[n].sharding, keep_unused=True),
        arguments=(here[n], [*here[:n], *here[n + 1 :]], [*there[:n], *there[n + 1 :]]),
        options={},
        holds=(),
        repeats=sum(sizes) / sizes[n],
    )


def rows(count: int, length: int, capacity: int, mesh: Mesh) -> Rows:
    """Room for `capacity` micro-batches of packed rows."""
    columns = batching.pack([], [], buckets=(1,), micro_rows=(1,), capacity=(1,))[0][0]
    shapes = Rows(*(jax.ShapeDtypeStruct((capacity, count, length), x.dtype) for x in columns))
    return placed(shapes, sharding.batch(shapes, mesh, axis=1))


def _updates(a: Layout, own: Learning) -> Iterator[Program]:
    """The update, and log-probabilities under the learner's weights or the reference's."""
    c = a.config
    batch = tuple(
        rows(n, length, learner.FIRST_CAPACITY, a.mesh)
        for n, length in zip(c.learn.rows, c.learn.row_tokens, strict=True)
    )
    loops = tuple(
        f"micro-batch of {n} x {length:,}"
        for n, length in zip(c.learn.rows, c.learn.row_tokens, strict=True)
    )

    lengths = tuple(c.learn.row_tokens)
    counts = whole(jax.ShapeDtypeStruct((len(batch),), jnp.int32), a.mesh)
    hyper = own.learner.hyper
    # Rows come in portions that have a quarter more of them than its share (policy/experts.py).
    share = 0.8 if own_experts(a.model, a.mesh) < 1 else 1.0
    if own.learner.scores:
        yield Program(
            name="log-probabilities",
            phase="learn",
            mesh=a.mesh,
            function=step.score,
            arguments=(own.params, batch, counts),
            options={"c": a.model, "h": hyper},
            holds=("parameters",),
            loops=loops,
            lengths=lengths,
            share=share,
        )
    twice = 2 if hyper.role_norms else 1
    counts = whole(jax.ShapeDtypeStruct((twice * len(batch),), jnp.int32), a.mesh)
    own_rules = {"tx": own.tx, "frozen": own.base, "assemble": own.learner.assemble}
    yield Program(
        name="train step",
        phase="learn",
        mesh=a.mesh,
        function=step.train_step,
        arguments=(own.state, batch * twice, counts),
        options={"c": a.model, "h": hyper, **own_rules},
        holds=("parameters", "optimizer"),
        loops=loops * twice,
        lengths=lengths * twice,
        share=share,
    )


def column_buckets(longest: int, columns: int) -> list[int]:
    """How many columns of the cache a program of the sampler may read."""
    return sorted({min(buckets.columns(n), columns) for n in range(longest)})


def _replies(count: int) -> decoding.Replies:
    """Shapes of what is known of so many replies."""
    length = len(conversation.stream(0, "", 0, 0, 0, 0))  # of a turn's random stream

    def each(dtype: type, *more: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((count, *more), dtype)

    how = drawing.Rows(each(jnp.float32), each(jnp.float32), each(jnp.int32), each(jnp.float32))
    return decoding.Replies(each(jnp.uint32, length), each(jnp.int32), each(jnp.int32), how)


def _sampling(a: Layout, held: decoding.Cache, every_bucket: bool) -> Iterator[Program]:
    """Prefill, decoding and what moves keys and values; of the buckets at least the extremes."""
    c, m, slots = a.config, a.model, a.config.sampling.slots
    params = copy(a, a.sampling)
    truncated = limits.sampling(c.play).truncates or limits.sampling(c.design).truncates
    lengths = column_buckets(context(a), held.values[0].shape[-2])
    both = ("sampling copy", "cache")

    def ints(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    share = own_experts(m, a.sampling)
    make = functools.partial(Program, phase="sample", mesh=a.sampling, share=share)
    for width in buckets.WIDTHS if every_bucket else buckets.WIDTHS[-1:]:
        for columns in lengths if every_bucket else (lengths[0], lengths[-1]):
            group = buckets.rows(columns)
            told = (ints(group), ints(group), ints(group, width), ints(group), _replies(group))
            yield make(
                f"prefill {group} x {width} after {columns:,}",
                function=decoding.prefill,
                arguments=(params, held, *told),
                options={"c": m, "columns": columns, "truncated": truncated},
                holds=both,
            )
    block = c.sampling.block
    yield make(
        f"decode {slots} slots",
        function=decoding.decode,
        arguments=(params, held, *(ints(slots),) * 3, _replies(slots)),
        options={
            **{"c": m, "blocks": None, "stop_ids": STOP_IDS},
            **{"steps": block, "truncated": truncated},
        },
        holds=both,
        loops=("token of each slot",),
    )
    group = buckets.rows(lengths[-1])
    for name, n, width in (("prefill", buckets.GROUP, buckets.WIDTHS[-1]), ("block", slots, block)):
        new = functools.partial(decoding.empty_cache, m, n, width, held.keys[0].dtype)
        yield make(
            f"write a {name} into the cache",
            function=decoding.write,
            arguments=(held, jax.eval_shape(new), ints(n), ints(n)),
            options={},
            holds=("cache",),
        )
    yield make(
        f"copy a prefix of {lengths[-1]:,}",
        function=decoding.prefixes,
        arguments=(held, ints(group)),
        options={"columns": lengths[-1]},
        holds=("cache",),
    )
