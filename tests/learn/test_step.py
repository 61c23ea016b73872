"""The update: the same whatever the split, unharmed by what is masked, in the right direction."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spade_jax.learn import batching, step
from spade_jax.learn.batching import Row, Rows
from spade_jax.learn.step import Hyper, LearnerState
from spade_jax.policy import model
from spade_jax.policy.model import Params
from spade_jax.types import Role, TokenRecord
from tests.policy.small import SMALL, random_params

POLICY = Hyper(kl=0.1, entropy=0.01)
TX = step.optimizer(1e-2, beta1=0.9, beta2=0.98, weight_decay=0.1, clip_norm=1.0)
LENGTHS = ((5, 7), (3, 4), (9, 2), (2, 6), (6, 5), (1, 3))
BUCKET = 16


def rows(lengths: Sequence[tuple[int, int]] = LENGTHS) -> list[Row]:
    """Conversations of both roles with stored log-probabilities near those of random weights."""
    made = []
    for i, (context, own) in enumerate(lengths):
        rng = np.random.default_rng(i)
        n = context + own
        ids = tuple(rng.integers(0, SMALL.vocab, n).tolist())
        near = [tuple((-4.0 + 0.1 * rng.standard_normal(n)).tolist()) for _ in range(3)]
        made.append(
            Row(
                record=TokenRecord().read(ids[:context]).wrote(ids[context:], near[0][context:]),
                role=Role.DESIGNER if i % 3 == 0 else Role.AGENT,
                advantage=float(rng.standard_normal()),
                temperature=0.6 if i % 2 else 1.0,
                logp_old=near[1],
                logp_reference=near[2],
            )
        )
    return made


def pack(
    rows: Sequence[Row], buckets: Sequence[int] = (BUCKET,), micro: Sequence[int] = (2,)
) -> tuple[tuple[Rows, ...], np.ndarray]:
    weights = batching.token_weights(rows, "token_mean")
    packed, counts, _ = batching.pack(
        rows, weights, buckets=buckets, micro_rows=micro, capacity=[2] * len(buckets)
    )
    return packed, counts


@pytest.fixture(scope="module")
def params() -> Params:
    return random_params(SMALL)


@functools.partial(jax.jit, static_argnames=("h",))
def gradients(params: Params, batch: tuple[Rows, ...], counts, h: Hyper) -> tuple:
    return step.gradients(params, batch, counts, SMALL, h)[:3]


def new_state(params: Params) -> LearnerState:
    """A state of its own, as the step gives its buffers away."""
    return step.create(jax.tree.map(jnp.copy, params), TX)


def train(
    params: Params, batch: tuple[Rows, ...], counts: np.ndarray, h: Hyper = POLICY
) -> tuple[LearnerState, dict[str, float]]:
    state, metrics = step.train_step(new_state(params), batch, counts, c=SMALL, h=h, tx=TX)
    return state, {name: float(value) for name, value in metrics.items()}


def relative(a: Params, b: Params) -> float:
    """Norm of the difference over the norm."""
    return float(optax.tree.norm(jax.tree.map(jnp.subtract, a, b)) / optax.tree.norm(a))


def change(batch: tuple[Rows, ...], where: np.ndarray, **values: float) -> tuple[Rows, ...]:
    """The one bucket with some fields set at some places."""
    [p] = batch
    return (p._replace(**{k: np.where(where, v, getattr(p, k)) for k, v in values.items()}),)


@pytest.mark.parametrize(
    ("buckets", "micro", "remat"),
    [((48,), (1,), "none"), ((6, 12), (1, 2), "layer")],
    ids=["all in one row", "two lengths, layers recomputed"],
)
def test_the_gradient_does_not_depend_on_the_split(
    params: Params, buckets: tuple[int, ...], micro: tuple[int, ...], remat: str
) -> None:
    whole = gradients(params, *pack(rows()), POLICY)
    split = pack(rows(), buckets, micro)
    other = gradients(params, *split, dataclasses.replace(POLICY, remat=remat))
    assert float(other[0]) == pytest.approx(float(whole[0]), rel=1e-6)
    assert relative(whole[2], other[2]) < 1e-6
    for name, value in whole[1].items():
        assert float(other[1][name]) == pytest.approx(float(value), rel=1e-5), name


def test_the_loss_by_definition(params: Params) -> None:
    """The weighted sum over tokens, written out in numpy."""
    made = rows()
    batch, counts = pack(made)
    loss, stats, _ = gradients(params, batch, counts, POLICY)
    layout = batching.lay_out([len(r.record.ids) for r in made], (BUCKET,))
    scored = step.score(params, batch, counts, c=SMALL, h=POLICY)
    now = batching.unpack(jax.device_get(scored), layout, [len(r.record.ids) for r in made])
    total, n = 0.0, sum(r.trained for r in made)
    for r, logp in zip(made, now, strict=True):
        for t in range(1, len(logp)):
            if not r.record.action[t]:
                continue
            ratio = np.exp(logp[t] - r.logp_old[t])
            clipped = np.clip(ratio, 0.8, 1.28)
            term = -min(ratio * r.advantage, clipped * r.advantage)
            term *= min(np.exp(r.logp_old[t] - r.record.logp[t]), 2.0)
            d = r.logp_reference[t] - logp[t]
            total += (term + 0.1 * (np.exp(d) - d - 1)) / n
    entropy = float(stats["entropy_agent"] + stats["entropy_designer"])
    assert float(loss) == pytest.approx(total - 0.01 * entropy, rel=1e-5)
    own = sum(r.trained for r in made if r.role is Role.DESIGNER)
    assert float(stats["designer_share"]) == pytest.approx(own / n)
    assert float(stats["agent_share"]) == pytest.approx(1 - own / n)
    assert 0 < entropy < np.log(SMALL.vocab)


# Three tokens and a masked one that holds no numbers; probabilities by row of the loss's inputs.
PROBABILITY = {
    "now": (0.6, 0.2, 0.75, np.nan),
    "logp_old": (0.5, 0.5, 0.5, np.inf),  # ratios 1.2, 0.4, 1.5
    "logp_behaviour": (0.25, 1.0, 0.1, np.nan),  # weights 2, 1/2, and 5, capped at 2
    "logp_reference": (0.6, 0.4, 0.375, np.inf),  # d = 0, log 2, -log 2
}


@pytest.mark.parametrize(("cap", "policy", "slope"), [(2.0, -2.38, -1.2), (0.0, -1.04, -0.6)])
def test_the_loss_of_three_tokens_by_hand(
    monkeypatch: pytest.MonkeyPatch, cap: float, policy: float, slope: float
) -> None:
    entropy = jnp.asarray([[1.0, 2.0, 4.0, jnp.nan]])
    monkeypatch.setattr(step, "predict", lambda logp, *_: (logp, entropy))
    logs = {name: jnp.log(jnp.asarray([values])) for name, values in PROBABILITY.items()}
    now = logs.pop("now")
    filled = dict.fromkeys(Rows._fields) | logs
    filled |= {"weight": jnp.asarray([[0.5, 0.25, 0.25, 0.0]]), "designer": jnp.zeros((1, 4), bool)}
    filled |= {"advantage": jnp.asarray([[1.0, -1.0, 2.0, jnp.nan]])}
    h = Hyper(kl=0.1, entropy=0.01, importance_cap=cap)
    share = jax.value_and_grad(step.objective, has_aux=True)
    (loss, (stats, _)), gradient = share(now, Rows(**filled), None, h)
    # Per token -1.2, max(0.4, 0.8) = 0.8 (clipped), -min(3, 2.56) = -2.56 (clipped); with the
    # weights of the behaviour -2.4, 0.4, -5.12. Entropy 0.5 + 0.5 + 1.
    # k3: 0, 2 - log 2 - 1, 1/2 + log 2 - 1; a quarter of their sum is 1/8.
    assert float(loss) == pytest.approx(policy - 0.01 * 2.0 + 0.1 * 0.125, rel=1e-5)
    assert float(stats["clip_share"]) == 0.5
    assert float(stats["kl_reference"]) == pytest.approx(0.125, rel=1e-5)
    # Clipped tokens are moved by the reference alone: 0.1 * 0.25 * (1 - exp(d)).
    np.testing.assert_allclose(gradient, [[slope, -0.025, 0.0125, 0.0]], rtol=1e-5, atol=1e-7)


def join(trained: Params, frozen: Params) -> Params:
    """A model of which the embedding and the layers' query matrices are trained."""
    layers = frozen["layers"] | {"q": trained["q"]}
    return {**frozen, "embed": trained["embed"], "layers": layers}


def test_a_part_is_trained_alone(params: Params) -> None:
    """Its gradient is its part of the whole; only it has an optimizer state, and only it moves."""
    layers = dict(params["layers"])
    trained = {"embed": params["embed"], "q": layers.pop("q")}
    frozen = {"final_norm": params["final_norm"], "layers": layers}
    batch, counts = pack(rows())
    loss, _, whole = gradients(params, batch, counts, POLICY)
    sizes = {leaf.size for leaf in jax.tree.leaves(new_state(trained).opt_state)}
    assert sizes == {1, trained["embed"].size, trained["q"].size}

    state = step.create(jax.tree.map(jnp.copy, trained), optax.sgd(8.0))
    state, metrics = step.train_step(
        state, batch, counts, c=SMALL, h=POLICY, tx=optax.sgd(8.0), frozen=frozen, assemble=join
    )
    assert float(metrics["loss"]) == pytest.approx(float(loss), rel=1e-6)
    gradient = jax.tree.map(lambda new, old: (old - new) / 8, state.params, trained)
    assert relative({"embed": whole["embed"], "q": whole["layers"]["q"]}, gradient) < 1e-5
    jax.tree.map(lambda a: a.block_until_ready(), frozen)  # lent to the step, not given away


def of_role(batch: tuple[Rows, ...], role: Role) -> tuple[Rows, ...]:
    """The batch with the other role's tokens masked."""
    [p] = batch
    own = p.designer == (role is Role.DESIGNER)
    return (p._replace(weight=np.where(own, p.weight, 0.0).astype(np.float32)),)


def test_the_roles_shares_add_up_to_the_gradient(params: Params) -> None:
    """With terms of KL and entropy, which belong to the role whose token it is."""
    made = rows()
    batch, counts = pack(made)
    whole = gradients(params, batch, counts, POLICY)
    shares = [gradients(params, of_role(batch, role), counts, POLICY) for role in Role]
    total = jax.tree.map(jnp.add, *shares)
    assert float(total[0]) == pytest.approx(float(whole[0]), rel=1e-6)
    assert relative(whole[2], total[2]) < 1e-6

    weights = batching.token_weights(made, "token_mean")
    packed = []
    for role in Role:
        own = [(r, w) for r, w in zip(made, weights, strict=True) if r.role is role]
        packed.append(
            batching.pack(*zip(*own, strict=True), buckets=(BUCKET,), micro_rows=(2,))[:2]
        )
    apart = (*packed[0][0], *packed[1][0]), np.concatenate([counts for _, counts in packed])
    by_role = dataclasses.replace(POLICY, role_norms=True)
    state, metrics = train(params, *apart, by_role)
    for role, (_, _, share) in zip(Role, shares, strict=True):
        norm = float(optax.tree.norm(share))
        assert metrics[f"grad_norm_{role}"] == pytest.approx(norm, rel=1e-5)
    together, expected = train(params, batch, counts)
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-5), name
    assert relative(together.params, state.params) < 1e-6


def test_the_mean_of_the_weights_by_hand(params: Params) -> None:
    """ema <- 0.75 ema + 0.25 new after each real step, and only then."""
    h = dataclasses.replace(POLICY, ema_decay=0.75)
    batch, counts = pack(rows())
    state = step.create(jax.tree.map(jnp.copy, params), TX, ema=True)
    expected = params
    for _ in range(2):
        state, _ = step.train_step(state, batch, counts, c=SMALL, h=h, tx=TX)
        expected = jax.tree.map(lambda e, p: 0.75 * e + 0.25 * p, expected, state.params)
    assert relative(expected, state.ema) < 1e-6 < relative(state.params, state.ema)
    assert state.averaged().params is state.ema and int(state.averaged().step) == 2

    before = jax.tree.map(np.asarray, state)
    nothing = change(batch, batch[0].weight > 0, weight=0.0)
    broken = change(batch, batch[0].weight > 0, advantage=np.nan)
    for idle in (nothing, broken):
        state, _ = step.train_step(state, idle, counts, c=SMALL, h=h, tx=TX)
        jax.tree.map(np.testing.assert_array_equal, state, before)

    alone, _ = train(params, batch, counts)
    assert alone.ema is None and alone.averaged() is alone
    first = step.create(jax.tree.map(jnp.copy, params), TX, ema=True)
    first, _ = step.train_step(first, batch, counts, c=SMALL, h=h, tx=TX)
    assert relative(alone.params, first.params) < 1e-6, "the mean changes no update"


def test_float32_wherever_it_counts(params: Params) -> None:
    """Losses, statistics, gradients and moments, also where activations are bfloat16."""
    batch, counts = pack(rows())
    out = gradients(params, batch, counts, dataclasses.replace(POLICY, compute_dtype="bfloat16"))
    assert {leaf.dtype for leaf in jax.tree.leaves(out)} == {jnp.dtype("float32")}
    state = new_state(params)
    kinds = {leaf.dtype for leaf in jax.tree.leaves((state.params, state.opt_state)) if leaf.ndim}
    assert kinds == {jnp.dtype("float32")}
    half = {**params, "embed": params["embed"].astype(jnp.bfloat16)}
    with pytest.raises(
        ValueError, match=r"\['embed'\] is bfloat16; load what is trained as float32"
    ):
        step.create(half, TX)


def test_nothing_to_train_changes_nothing(params: Params) -> None:
    [p], counts = pack(rows())
    state, metrics = train(params, (p._replace(weight=np.zeros_like(p.weight)),), counts)
    jax.tree.map(np.testing.assert_array_equal, state, new_state(params))
    assert (metrics["grad_norm"], metrics["loss"], metrics["skipped"]) == (0, 0, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_is_skipped_and_counted(params: Params, bad: float) -> None:
    batch, counts = pack(rows())
    one = np.zeros(batch[0].weight.shape, bool)
    one[tuple(np.argwhere(batch[0].weight > 0)[3])] = True
    state, metrics = train(params, change(batch, one, advantage=bad), counts)
    jax.tree.map(np.testing.assert_array_equal, state, new_state(params))
    assert metrics["skipped"] == 1
    state, metrics = train(params, batch, counts)
    assert (int(state.step), metrics["skipped"]) == (1, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_masked_places_may_hold_anything(params: Params, bad: float) -> None:
    batch, counts = pack(rows())
    fields = ("advantage", "logp_old", "logp_behaviour", "logp_reference")
    dirty = change(batch, batch[0].weight == 0, **dict.fromkeys(fields, bad))
    clean_loss, _, clean = gradients(params, batch, counts, POLICY)
    loss, stats, grads = gradients(params, dirty, counts, POLICY)
    assert float(loss) == float(clean_loss)
    jax.tree.map(np.testing.assert_array_equal, grads, clean)
    assert all(np.isfinite(value) for value in stats.values())


def test_micro_batches_beyond_the_count_are_ignored(params: Params) -> None:
    [p], counts = pack(rows())
    assert counts.tolist() == [2]
    first = np.asarray([1], np.int32)
    empty = p._replace(weight=p.weight * np.asarray([1, 0], np.float32)[:, None, None])
    noise = np.asarray([1, np.nan], np.float32)[:, None, None]
    expected = gradients(params, (empty,), counts, POLICY)
    broken = p._replace(advantage=p.advantage * noise)
    got = gradients(params, (broken,), first, POLICY)
    assert float(got[0]) == pytest.approx(float(expected[0]), rel=1e-6)
    assert relative(expected[2], got[2]) < 1e-6
    scored = np.asarray(step.score(params, (p,), first, c=SMALL, h=POLICY)[0])
    assert scored[0].any() and not scored[1].any()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_advantage_gives_the_direction(params: Params, sign: float) -> None:
    """One step at ratio 1, at the reference, moves the tokens the way their advantage says."""
    made = dataclasses.replace(rows()[1], advantage=sign)
    batch, counts = pack([made])
    trained = batch[0].weight > 0
    before = np.asarray(step.score(params, batch, counts, c=SMALL, h=POLICY)[0])
    fields = ("logp_old", "logp_behaviour", "logp_reference")
    on_policy = (batch[0]._replace(**dict.fromkeys(fields, before)),)
    state, metrics = train(params, on_policy, counts)
    assert metrics["loss"] == pytest.approx(-sign - 0.01 * metrics["entropy_agent"], rel=1e-5)
    assert metrics["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["kl_reference"] == pytest.approx(0, abs=1e-6)
    assert metrics["clip_share"] == 0
    after = np.asarray(step.score(state.params, batch, counts, c=SMALL, h=POLICY)[0])
    assert sign * np.mean((after - before)[trained]) > 0.01


def test_supervised_loss_is_the_mean_negative_log_likelihood(params: Params) -> None:
    h = dataclasses.replace(POLICY, objective="supervised")
    batch, counts = pack(rows())
    trained = batch[0].weight > 0
    logp = np.asarray(step.score(params, batch, counts, c=SMALL, h=POLICY)[0])
    state, metrics = train(params, batch, counts, h)
    assert metrics["loss"] == pytest.approx(-logp[trained].mean(), rel=1e-5)
    assert metrics["clip_share"] == 0
    after = np.asarray(step.score(state.params, batch, counts, c=SMALL, h=POLICY)[0])
    assert after[trained].mean() > logp[trained].mean()


def test_one_step_of_the_optimizer_by_hand() -> None:
    # The gradient (3, 4) is clipped to norm 1: (0.6, 0.8). Adam's first step is its sign, and
    # weight decay adds 0.1 times the parameter; lr 0.5.
    tx = step.optimizer(0.5, beta1=0.9, beta2=0.98, weight_decay=0.1, clip_norm=1.0)
    state = step.create({"a": jnp.array([2.0, -1.0])}, tx)
    updates, opt_state = tx.update({"a": jnp.array([3.0, 4.0])}, state.opt_state, state.params)
    np.testing.assert_allclose(updates["a"], [-0.5 * 1.2, -0.5 * 0.9], rtol=1e-5)
    [adam] = [s for s in jax.tree.leaves(opt_state, is_leaf=_is_adam) if _is_adam(s)]
    np.testing.assert_allclose(adam.mu["a"], [0.06, 0.08], rtol=1e-5)
    np.testing.assert_allclose(adam.nu["a"], [0.02 * 0.36, 0.02 * 0.64], rtol=1e-5)
    assert int(state.step) == 0


def test_a_first_moment_in_bfloat16_by_hand() -> None:
    """Gradients 1 and 0: the moment kept of the first is 0.1 in bfloat16, 0.10009765625, and 0.9
    times that is 184.5 of its spacings 2**-11, rounded to 184. The step is as ever, -m / sqrt(v)
    without their bias, with v in float32."""
    plain = {"beta1": 0.9, "beta2": 0.98, "weight_decay": 0.0, "clip_norm": 1.0, "eps": 0.0}
    tx = step.optimizer(1.0, **plain, first_moment_dtype="bfloat16")
    state = step.create({"final_norm": jnp.ones(1)}, tx)
    kept = state.opt_state
    for gradient in (1.0, 0.0):
        updates, kept = tx.update({"final_norm": jnp.full(1, gradient)}, kept, state.params)
        (adam,) = (s for s in jax.tree.leaves(kept, is_leaf=_is_adam) if _is_adam(s))
        assert (adam.mu["final_norm"].dtype, adam.nu["final_norm"].dtype) == ("bfloat16", "float32")
    first, second = 184 * 2**-11 / (1 - 0.9**2), 0.98 * 0.02 / (1 - 0.98**2)
    assert float(updates["final_norm"][0]) == pytest.approx(-first / second**0.5, rel=1e-5)


def _is_adam(node: object) -> bool:
    return hasattr(node, "mu")


def test_eps_holds_still_what_has_hardly_a_gradient() -> None:
    tx = step.optimizer(1e-2, beta1=0.9, beta2=0.98, weight_decay=0.0, clip_norm=1.0, eps=1e-5)
    params = {"used": jnp.zeros(1), "unused": jnp.zeros(1)}
    gradients = {"used": jnp.full(1, 1e-3), "unused": jnp.full(1, 1e-9)}
    updates, _ = tx.update(gradients, tx.init(params), params)
    # The first step of Adam is -lr g / (|g| + eps).
    assert float(updates["used"][0]) == pytest.approx(-1e-2 / 1.01, rel=1e-3)
    assert float(updates["unused"][0]) == pytest.approx(-1e-6, rel=1e-3)


def test_the_final_norm_moves_at_a_rate_of_its_own() -> None:
    tx = step.optimizer(
        1e-2, beta1=0.9, beta2=0.98, weight_decay=0.1, clip_norm=1.0, final_norm_rate=20.0
    )
    params = model.init(SMALL, jax.random.key(0))
    gradients = jax.tree.map(lambda p: jnp.full(p.shape, 1e-3), params)
    updates, _ = tx.update(gradients, tx.init(params), params)
    # The first step is -rate (sign of the gradient + 0.1 parameter); norms begin at 1.
    np.testing.assert_allclose(updates["final_norm"], -0.2 * 1.1, rtol=1e-4)
    np.testing.assert_allclose(updates["layers"]["attn_norm"], -1e-2 * 1.1, rtol=1e-4)
    for name in ("q", "down"):
        expected = -1e-2 * (1.0 + 0.1 * params["layers"][name])
        np.testing.assert_allclose(updates["layers"][name], expected, rtol=1e-4)
