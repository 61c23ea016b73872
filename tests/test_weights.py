"""Whatever form a model lies in, the same weights come out; what is no model is one sentence."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spade_jax import weights
from spade_jax.checkpoint import Checkpoints
from spade_jax.learn import step
from spade_jax.policy import hub, lora, model
from spade_jax.policy.lora import Lora
from spade_jax.policy.model import Params
from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.types import HostState, UsageError
from tests.policy.small import MOE, SMALL, random_params

ADAPTED = Lora(rank=2, alpha=4.0, targets="layers/(q|down)")


def assert_equal(a: Params, b: Params) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def make_run(
    workdir: Path,
    base: Path,
    steps: dict[int, Params],
    how: Lora | None = None,
    mean: Params | None = None,
) -> Path:
    """What a run of the trainer leaves: its config, and a checkpoint of each of these weights."""
    workdir.mkdir()
    adapted = dataclasses.asdict(how) if how else {"rank": 0, "alpha": 1.0, "targets": ""}
    config = {"iterations": 9, "model": {"path": str(base), "lora": adapted}}
    (workdir / "config.json").write_text(json.dumps(config))
    with Checkpoints(workdir / "checkpoints", keep=2) as checkpoints:
        for iteration, params in steps.items():
            state = step.create(params, optax.adamw(1e-3)).replace(ema=mean)
            checkpoints.save(iteration, state, HostState(iteration=iteration))
    return workdir


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    hub.save(folder, SMALL, random_params(SMALL), eos_id=1, pad_id=0)
    return folder


@pytest.fixture(scope="module")
def run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    steps = {n: random_params(SMALL, seed=n) for n in (1, 3)}
    return make_run(tmp_path_factory.mktemp("runs") / "run", base, steps)


def test_the_policy_of_the_package() -> None:
    source = weights.find("")
    assert (source.kind, source.folder, source.step) == ("hugging face", hub.BUNDLED, None)
    assert_equal(source.load(), hub.load(hub.BUNDLED)[1])


def test_a_run_stands_for_its_newest_checkpoint(run: Path, base: Path) -> None:
    (run / "checkpoints" / "7").mkdir(exist_ok=True)  # half-written
    for path in (run, run / "checkpoints"):
        source = weights.find(path)
        assert (source.kind, source.step, source.folder) == ("run", 3, base)
        assert source.model == SMALL and source.lora is None
        params = source.load()
        assert_equal(params, random_params(SMALL, seed=3))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert source.load(dtype="bfloat16")["embed"].dtype == jnp.bfloat16


def test_the_mean_of_weights_that_a_run_keeps(run: Path, base: Path, tmp_path: Path) -> None:
    assert not weights.find(run, mean=True).mean, "it keeps none"
    assert_equal(weights.find(run, mean=True).load(), random_params(SMALL, seed=3))
    steps, mean = {1: random_params(SMALL, seed=1)}, random_params(SMALL, seed=2)
    keeping = make_run(tmp_path / "run", base, steps, mean=mean)
    source = weights.find(keeping, mean=True)
    assert source.mean and not weights.find(keeping).mean
    assert_equal(source.load(), mean)
    assert_equal(weights.find(keeping).load(), steps[1])
    adapters = jax.tree.map(lambda a: a + 0.1, lora.init(SMALL, ADAPTED, jax.random.key(0)))
    own = jax.tree.map(jnp.zeros_like, adapters)
    adapted = make_run(tmp_path / "adapted", base, {1: own}, ADAPTED, mean=adapters)
    assert_equal(hub.place(weights.find(adapted, mean=True).adapters), adapters)


def test_a_path_may_be_relative(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    assert_equal(weights.find(run.name).load(), weights.find(run).load())


def test_a_run_may_start_from_a_run(run: Path, base: Path, tmp_path: Path) -> None:
    later = make_run(tmp_path / "later", run, {2: random_params(SMALL, seed=8)})
    source = weights.find(later)
    assert (source.step, source.folder) == (2, base)
    assert_equal(source.load(), random_params(SMALL, seed=8))


def test_the_adapters_of_a_run_are_merged(base: Path, tmp_path: Path) -> None:
    trained = lora.init(SMALL, ADAPTED, jax.random.key(0))
    trained = jax.tree.map(lambda a: a + 0.1, trained)
    source = weights.find(make_run(tmp_path / "run", base, {5: trained}, ADAPTED))
    assert (source.step, source.lora, source.model) == (5, ADAPTED, SMALL)
    assert_equal(hub.place(source.adapters), trained)
    merged = model.merged(ADAPTED(trained, random_params(SMALL)))
    loaded = source.load()
    assert_equal(loaded, merged)
    again = weights.find(make_run(tmp_path / "again", tmp_path / "run", {1: trained}, ADAPTED))
    expected = model.merged(ADAPTED(trained, merged))
    assert_equal(again.load(), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_imported_comes_out(tmp_path: Path, dtype: str) -> None:
    params = random_params(MOE)
    hub.save(tmp_path / "there", MOE, params, eos_id=1, pad_id=0, dtype=dtype)
    here = tmp_path / "here"
    here.mkdir()
    weights.write_imported(here, weights.find(tmp_path / "there").parameters)
    shutil.copy(tmp_path / "there" / "config.json", here)
    source = weights.find(here)
    assert (source.kind, source.model) == ("imported", MOE)
    assert {leaf.dtype for leaf in jax.tree.leaves(source.parameters)} == {jnp.dtype(dtype)}
    assert_equal(source.load(), jax.tree.map(lambda a: a.astype(dtype), params))
    sharding = jax.sharding.NamedSharding(jax.make_mesh((1,), ("x",)), jax.sharding.PartitionSpec())
    shardings = jax.tree.map(lambda _: sharding, params)
    placed = source.load(shardings=shardings)
    assert placed["layers"]["up"].sharding == sharding
    assert_equal(placed, source.load())


def test_runs_without_weights(run: Path, base: Path, tmp_path: Path) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(UsageError) as caught:
            weights.find(path)
        return str(caught.value)

    new = make_run(tmp_path / "new", base, {})
    assert "has no checkpoint yet; use the model it started from" in refusal(new)
    lost = make_run(tmp_path / "lost", tmp_path / "nowhere", {1: random_params(SMALL)})
    assert f"the run in {lost} goes back to another model: {tmp_path}/nowhere/config.j" in refusal(
        lost
    )
    other = make_run(tmp_path / "other", base, {1: random_params(MOE)})
    assert "has layers/down of shape (2, 4, 24, 32) where its model has (2, 48, 32)" in refusal(
        other
    )
    warm = tmp_path / "warm"
    warm.mkdir()
    (warm / "config.json").write_text(json.dumps({"model": {"path": ""}, "train": {}}))
    assert "the warm start" in refusal(warm) and "not finished" in refusal(warm)
    shutil.copytree(base, warm / "model")
    assert weights.find(warm).folder == warm / "model"
    damaged = tmp_path / "damaged"
    shutil.copytree(run, damaged)
    (damaged / "checkpoints" / "3" / "learner" / "manifest.ocdbt").write_bytes(b"{")
    with pytest.raises(UsageError, match=r"checkpoint .*/3/learner is damaged and cannot be read"):
        weights.find(damaged).load()


# -- soundness --------------------------------------------------------------------------------


def damage(params: Params, how: str) -> Params:
    layers = params["layers"]
    if how == "noise":
        return model.init(hub.read_config(hub.BUNDLED), jax.random.key(0))
    if how == "rows shifted":
        return {**params, "embed": jnp.roll(params["embed"], 1, axis=0)}
    if how == "layers reversed":
        return {**params, "layers": jax.tree.map(lambda a: a[::-1], layers)}
    if how == "heads reversed":
        return {**params, "layers": layers | {"q": layers["q"][:, :, ::-1]}}
    assert how == "not finite"
    return {**params, "final_norm": params["final_norm"] * jnp.nan}


def test_the_policy_of_the_package_is_sound() -> None:
    """Its loss on the bundled text is about 0.5 nats a token; a uniform guess has 6.9."""
    source, tokenizer = weights.find(""), ChatTokenizer(hub.BUNDLED)
    params = source.load()
    weights.check_loss(params, source.model, tokenizer, source, 0.1)
    with pytest.raises(
        UsageError, match=r"have a loss of 0\.5\d nats .* below 0\.35; convert them"
    ):
        weights.check_loss(params, source.model, tokenizer, source, 0.05)
    assert math.log(source.model.vocab) == pytest.approx(6.93, abs=0.01)
    for how in ("noise", "rows shifted", "layers reversed", "heads reversed", "not finite"):
        with pytest.raises(UsageError, match="a sound model of 1024 tokens one below 3.47"):
            weights.check_loss(damage(params, how), source.model, tokenizer, source, 0.5)
