"""The jitted update of one set of weights from both roles' tokens.

`train_step` sums gradients over micro-batches of packed rows, then takes one AdamW step. The same
step does supervised training: there the loss is the negative log-probability.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
import optax

from spade_jax.learn import losses
from spade_jax.learn.batching import Rows
from spade_jax.policy import model, sharding
from spade_jax.policy.kernels import Kernels, once
from spade_jax.policy.model import ModelConfig, Params
from spade_jax.types import Role

Assemble = Callable[[Params, Params | None], Params]  # (trained, frozen) -> the model's parameters


class LearnerState(flax.struct.PyTreeNode):
    """Float32 parameters that are trained, optimizer state and the number of updates made.

    `ema` is the exponential mean of the parameters over the updates, where one is kept.
    """

    params: Params
    opt_state: optax.OptState
    step: jax.Array  # int32 scalar
    ema: Params | None = None

    def averaged(self) -> LearnerState:
        """The state with the mean, where one is kept, in place of the parameters."""
        return self if self.ema is None else self.replace(params=self.ema)


@dataclasses.dataclass(frozen=True)
class Hyper:
    """What the update is, apart from the model. Hashable: a new value is a new program."""

    objective: str = "policy"  # policy | supervised
    clip_low: float = 0.2
    clip_high: float = 0.28
    importance_cap: float = 2.0  # 0: no importance weight
    kl: float = 0.0
    entropy: float = 0.0
    one_update: bool = False  # of its iteration: its own log-probabilities are the old ones
    role_norms: bool = False  # the batch is the buckets of one role and then the other's
    ema_decay: float = 0.0  # of the mean of the parameters, where the state has one
    compute_dtype: str = "float32"
    remat: str = "none"
    kernels: Kernels | None = None  # None: the platform's


def optimizer(
    lr: float | Callable[[jax.Array], jax.Array],
    *,
    beta1: float,
    beta2: float,
    weight_decay: float,
    clip_norm: float,
    eps: float = 1e-8,
    final_norm_rate: float = 1.0,
    first_moment_dtype: str = "float32",
) -> optax.GradientTransformation:
    """AdamW after clipping the global norm; `lr` is a number or a schedule of the step.

    `eps` is added to the root of the second moment: parameters whose gradients are far below it
    hardly move. The scale of the final norm, which sets how decided the policy is, takes steps
    `final_norm_rate` times as large. The first moment is kept in `first_moment_dtype`. The second
    stays float32: it moves by shares of 1 - `beta2`, which bfloat16 rounds away once they are
    below half of its spacing, up to 0.8%.
    """
    adamw = optax.adamw(
        lr,
        b1=beta1,
        b2=beta2,
        weight_decay=weight_decay,
        eps=eps,
        mu_dtype=first_moment_dtype,
    )
    return optax.chain(
        optax.clip_by_global_norm(clip_norm),
        adamw,
        optax.masked(optax.scale(final_norm_rate), _final_norm),
    )


def _final_norm(params: Params) -> dict[str, bool]:
    """A mask of the final norm: a prefix of the tree of parameters."""
    return {name: name == "final_norm" for name in params}


def whole(trained: Params, frozen: Params | None) -> Params:
    """What is trained is the model."""
    assert frozen is None, "nothing may be frozen where all is trained"
    return trained


def create(params: Params, tx: optax.GradientTransformation, *, ema: bool = False) -> LearnerState:
    """The state before the first update; with `ema` a mean is kept, which starts as the parameters.

    Raises ValueError for parameters that are not float32: small updates would be lost in others.
    """
    for path, leaf in jax.tree.leaves_with_path(params):
        if leaf.dtype != jnp.float32:
            raise ValueError(
                f"{jax.tree_util.keystr(path)} is {leaf.dtype}; load what is trained as float32"
            )
    return LearnerState(
        params=params,
        opt_state=tx.init(params),
        step=jnp.zeros((), jnp.int32),
        ema=jax.tree.map(jnp.copy, params) if ema else None,
    )


def take(rows: Rows, i: jax.Array) -> Rows:
    """Micro-batch `i`, inside a loop over some of them.

    `once` also ties it to `i`. Where there is room for one micro-batch only, the compiler would
    otherwise move its whole computation out of the loop, and run it when none is in use.
    """

    def micro() -> Rows:
        return jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, i, keepdims=False), rows)

    return once(micro, i)


def predict(params: Params, rows: Rows, c: ModelConfig, h: Hyper) -> tuple[jax.Array, jax.Array]:
    """Tempered log-probability and entropy, (R, T) each, of one micro-batch's targets."""
    x_BTD = model.hidden(
        params,
        rows.tokens,
        rows.positions,
        rows.segments,
        c,
        dtype=jnp.dtype(h.compute_dtype),
        remat=h.remat,
        kernels=h.kernels,
    )
    return model.token_logps(params, x_BTD, rows.target, rows.temperature, c)


def objective(
    params: Params, rows: Rows, c: ModelConfig, h: Hyper
) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
    """This micro-batch's share of the loss and of the statistics, and log-probabilities (R, T).

    Shares add up. Statistics are weighted as the loss is, so their sums are means over trained
    tokens.
    """
    predicted, entropy = predict(params, rows, c, h)
    trained = rows.weight > 0
    # Untrained places are replaced before exp, so that nothing there reaches the gradient.
    logp = jnp.where(trained, predicted, 0.0)
    before = jax.lax.stop_gradient(logp) if h.one_update else rows.logp_old
    old = jnp.where(trained, before, 0.0)
    behaviour = jnp.where(trained, rows.logp_behaviour, 0.0)

    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(trained, rows.weight * x, 0.0))

    stats = {
        "entropy_agent": total(jnp.where(rows.designer, 0.0, entropy)),
        "entropy_designer": total(jnp.where(rows.designer, entropy, 0.0)),
        "agent_share": total((~rows.designer).astype(jnp.float32)),
        "designer_share": total(rows.designer.astype(jnp.float32)),
        "approx_kl": total(losses.kl_k3(old, logp)),
    }
    if h.objective == "supervised":
        loss = total(-logp)
        return loss, (stats | {"clip_share": jnp.zeros(())}, predicted)
    loss_BT, clipped_BT = losses.clipped_policy_loss(
        logp, old, rows.advantage, h.clip_low, h.clip_high
    )
    if h.importance_cap:
        loss_BT *= losses.importance_weight(old, behaviour, h.importance_cap)
    loss = total(loss_BT) - h.entropy * total(entropy)
    stats["clip_share"] = total(clipped_BT.astype(jnp.float32))
    if h.kl:
        reference = jnp.where(trained, rows.logp_reference, 0.0)
        kl = total(losses.kl_k3(logp, reference))
        loss, stats["kl_reference"] = loss + h.kl * kl, kl
    return loss, (stats, predicted)


def gradients(
    trained: Params,
    batch: tuple[Rows, ...],
    counts: jax.Array,
    c: ModelConfig,
    h: Hyper,
    frozen: Params | None = None,
    assemble: Assemble = whole,
) -> tuple[jax.Array, dict[str, jax.Array], Params, tuple[jax.Array, ...]]:
    """Loss, statistics and gradient summed over the first `counts[b]` micro-batches of each
    bucket; the arrays may hold more of them, so that their shape does not change.

    The gradient is that of `trained`; `assemble` makes the model of it and of what is frozen.
    Last come log-probabilities as by `score`.
    """

    def loss_of(trained: Params, rows: Rows) -> tuple:
        return objective(assemble(trained, frozen), rows, c, h)

    differentiate = jax.value_and_grad(loss_of, has_aux=True)

    def share(rows: Rows) -> tuple[tuple, jax.Array]:
        """What adds up over micro-batches, and log-probabilities."""
        (loss, (stats, logp)), grads = differentiate(trained, rows)
        if assemble is whole:  # adapters are small and lie anywhere
            grads = sharding.constrain_parameters(grads, model.declare(c), "train")
        return (loss, stats, grads), logp

    shapes, _ = jax.eval_shape(share, jax.tree.map(lambda a: a[0], batch[0]))
    sums, logps = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes), []
    for b, rows in enumerate(batch):

        def add(i: jax.Array, carry: tuple, rows: Rows = rows) -> tuple:
            sums, logps = carry
            more, logp = share(take(rows, i))
            return jax.tree.map(jnp.add, sums, more), logps.at[i].set(logp)

        start = jnp.zeros(rows.weight.shape, jnp.float32)
        sums, scored = jax.lax.fori_loop(0, counts[b], add, (sums, start))
        logps.append(scored)
    return *sums, tuple(logps)


def by_role(
    trained: Params,
    batch: tuple[Rows, ...],
    counts: jax.Array,
    c: ModelConfig,
    h: Hyper,
    frozen: Params | None = None,
    assemble: Assemble = whole,
) -> tuple[jax.Array, dict[str, jax.Array], Params, tuple[jax.Array, ...]]:
    """`gradients`, with the norm of each role's share of the gradient among the statistics.

    The first half of the buckets holds the rows of the first `Role` and the second the other's.
    No row is gone through twice: what this takes is memory for one more gradient.
    """
    half = len(batch) // 2
    parts = [
        gradients(trained, batch[own], counts[own], c, h, frozen, assemble)
        for own in (slice(half), slice(half, None))
    ]
    loss, stats, grads = jax.tree.map(jnp.add, *(part[:3] for part in parts))
    norms = {
        f"grad_norm_{role}": optax.tree.norm(share)
        for role, (_, _, share, _) in zip(Role, parts, strict=True)
    }
    return loss, stats | norms, grads, parts[0][3] + parts[1][3]


@functools.partial(
    jax.jit, static_argnames=("c", "h", "tx", "assemble"), donate_argnames=("state",)
)
def train_step(
    state: LearnerState,
    batch: tuple[Rows, ...],
    counts: jax.Array,
    *,
    c: ModelConfig,
    h: Hyper,
    tx: optax.GradientTransformation,
    frozen: Params | None = None,
    assemble: Assemble = whole,
) -> tuple[LearnerState, dict[str, jax.Array]]:
    """One optimizer step on packed rows; `counts` (int32, one a bucket) are micro-batches in use.

    `state` holds what is trained, `frozen` what is not, `assemble` makes the model of both.

    A batch that trains nothing, and one whose loss or gradient is not finite, leaves the state as
    it was; the latter sets `skipped` to 1. Otherwise ema <- d ema + (1 - d) new parameters.

    Of an iteration's only update the metrics hold `logps` too, which are those of `score`.
    """
    make = by_role if h.role_norms else gradients
    loss, stats, grads, logps = make(state.params, batch, counts, c, h, frozen, assemble)
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    anything = norm > 0
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params, ema = optax.apply_updates(state.params, updates), state.ema
    if ema is not None:
        ema = optax.incremental_update(params, ema, 1.0 - h.ema_decay)
    new = LearnerState(params=params, opt_state=opt_state, step=state.step + 1, ema=ema)
    state = jax.tree.map(lambda a, b: jnp.where(finite & anything, a, b), new, state)
    skipped = (~finite).astype(jnp.int32)
    if h.one_update:
        stats["logps"] = logps
    return state, stats | {"loss": loss, "grad_norm": norm, "skipped": skipped}


@functools.partial(jax.jit, static_argnames=("c", "h"))
def score(
    params: Params, batch: tuple[Rows, ...], counts: jax.Array, *, c: ModelConfig, h: Hyper
) -> tuple[jax.Array, ...]:
    """Log-probabilities (M, R, T) of every bucket's targets; 0 beyond `counts[b]`."""
    out = []
    for b, rows in enumerate(batch):

        def one(i: jax.Array, logps: jax.Array, rows: Rows = rows) -> jax.Array:
            return logps.at[i].set(predict(params, take(rows, i), c, h)[0])

        start = jnp.zeros(rows.weight.shape, jnp.float32)
        out.append(jax.lax.fori_loop(0, counts[b], one, start))
    return tuple(out)
