"""What is compiled is what is run: the abstract arguments against those of a real run."""

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from ml_collections import config_dict

from spade_jax import run as run_setup
from spade_jax.learn import step
from spade_jax.learn.learner import FIRST_CAPACITY
from spade_jax.policy import conversation, decoding, hub, model, sharding
from spade_jax.policy.sampler import Sampler
from spade_jax.policy.sampling import Sampling
from spade_jax.preflight import programs
from spade_jax.preflight.programs import Program
from spade_jax.types import Role, Sample, TokenRecord, UsageError
from tests import small_run

FIELDS = {"sampling.slots": 20, "learn.kl": 0.1, "learn.ema_decay": 0.9, "play.top_k": 5}


@pytest.fixture(scope="module")
def c() -> config_dict.ConfigDict:
    return small_run.configured("tiny", FIELDS)


@pytest.fixture(scope="module")
def layout(c: config_dict.ConfigDict) -> programs.Layout:
    return programs.lay_out(c, programs.sizes(""), jax.devices()[:1], jax.devices()[:1])


@pytest.fixture(scope="module")
def named(layout: programs.Layout) -> dict[str, Program]:
    held, own = programs.cache(layout), programs.learning(layout)
    return {p.name: p for p in programs.programs(layout, own, held, every_bucket=True)}


def shapes(tree: Any) -> list[tuple]:
    """Shape and dtype of each array, and where the others are, their types."""
    return [
        (tuple(a.shape), jnp.dtype(a.dtype)) if hasattr(a, "shape") else type(a)
        for a in jax.tree.leaves(tree)
    ]


def filled(function: Callable, value: int) -> Callable:
    """Traced and not compiled: results of the right shapes, all of this value."""

    def answer(*arguments: Any, **options: Any) -> Any:
        out = jax.eval_shape(functools.partial(function, **options), *arguments)
        return jax.tree.map(lambda a: np.full(a.shape, value, a.dtype), out)

    return answer


class Recorded:
    """In a jitted function's place: notes the arguments and answers something."""

    def __init__(self, answer: Callable) -> None:
        self.answer, self.calls = answer, []

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls.append((shapes(arguments), {k: v for k, v in options.items() if k != "tx"}))
        return self.answer(*arguments, **options)


def nothing(tree: Any) -> Any:
    """Zeros of these shapes."""
    return jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), tree)


def alike(call: tuple, program: Program, *without: str) -> bool:
    """Whether a call has a program's arguments and its options, but for some."""
    told = {k: v for k, v in program.options.items() if k not in ("tx", *without)}
    options = {k: v for k, v in call[1].items() if k not in without}
    return call[0] == shapes(program.arguments) and options == told


def test_the_sampler_calls_what_is_compiled(
    c: config_dict.ConfigDict,
    layout: programs.Layout,
    named: dict[str, Program],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = {  # a token that does not stop, then none
        "prefill": Recorded(filled(decoding.prefill, 5)),
        "decode": Recorded(filled(decoding.decode, 0)),
        "prefixes": Recorded(filled(decoding.prefixes, 0)),
        "write": Recorded(lambda cache, *_: cache),
    }
    for name, instead in recorded.items():
        monkeypatch.setattr(decoding, name, instead)
    m = layout.model
    sampler = Sampler(
        nothing(model.abstract(m)),
        m,
        slots=c.sampling.slots,
        context=programs.context(layout),
        stop_ids=programs.STOP_IDS,
        dtype=jnp.dtype(c.model.compute_dtype),
        block=c.sampling.block,
        compact=False,
    )
    said = [5] * 300
    for n in range(2):
        stream = conversation.stream(0, "", 0, 0, n, 0)
        sampler.submit(
            sampler.open(), [*said, n], stream=stream, budget=6, sampling=Sampling(top_k=5)
        )
    sampler.advance()
    for name, begins in (("prefill", "prefill"), ("decode", "decode"), ("prefixes", "copy")):
        assert recorded[name].calls
        for call in recorded[name].calls:
            own = [p for n, p in named.items() if n.startswith(begins)]
            without = ("columns",) if name == "prefixes" else ()
            assert any(alike(call, p, *without) for p in own), (name, call)
    written = [p for n, p in named.items() if n.startswith("write")]
    assert any(alike(recorded["write"].calls[-1], p) for p in written)  # of the block


def test_the_learner_calls_what_is_compiled(
    c: config_dict.ConfigDict,
    layout: programs.Layout,
    named: dict[str, Program],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Enough(Exception):
        pass

    def stop(*_: Any, **__: Any) -> None:
        raise Enough

    def zeros(params: Any, batch: tuple, counts: Any, **_: Any) -> list:
        return [jnp.zeros(rows.weight.shape) for rows in batch]

    score, update = Recorded(zeros), Recorded(stop)
    monkeypatch.setattr(step, "score", score)
    monkeypatch.setattr(step, "train_step", update)
    with jax.set_mesh(sharding.make_mesh(c.mesh, jax.devices()[:1])):
        params = jax.tree.map(jnp.asarray, nothing(model.abstract(layout.model)))
        tx = run_setup.new_optimizer(c)
        learner, trained = run_setup.new_learner(c, layout.model, params, tx)
        state = step.create(trained, tx, ema=True)
        record = TokenRecord().read((1,) * 9).wrote((2,) * 9, (-1.0,) * 9)
        sample = Sample(role=Role.AGENT, records=(record,), advantage=1.0, version=0)
        with pytest.raises(Enough):
            learner.update(state, [sample], random.Random(0))
    assert all(alike(call, named["log-probabilities"]) for call in score.calls)
    assert len(score.calls) == 1  # the reference
    assert alike(update.calls[0], named["train step"])
    assert update.calls[0][0][-2][0][0] == FIRST_CAPACITY


def test_the_copy_is_what_the_sampler_is_given(
    layout: programs.Layout, named: dict[str, Program]
) -> None:
    """The last array to move, the largest, stands for as many of its size as there are."""
    program = named["weights to the sampler"]
    last, all_of_them = (
        jax.eval_shape(program.function, *program.arguments),
        shapes(programs.copy(layout, layout.sampling)),
    )
    assert sorted(map(str, shapes([last, program.arguments[2]]))) == sorted(map(str, all_of_them))
    largest = max(np.prod(shape) for shape, _ in all_of_them)
    assert np.prod(last.shape) == largest
    assert program.repeats == model.count(layout.model) / largest


@pytest.mark.parametrize(
    ("fields", "parameters", "optimizer", "reference"),
    [
        ({}, 1, 2, 0),
        ({"learn.kl": 0.1, "learn.ema_decay": 0.9}, 1, 3, 1),
    ],
)
def test_residents(
    fields: dict[str, object], parameters: int, optimizer: int, reference: int
) -> None:
    """In float32: the parameters, two moments and a mean of them, and a reference."""
    c = small_run.configured("tiny", {"sampling.slots": 20}, fields)
    a = programs.lay_out(c, programs.sizes(""), jax.devices()[:1], jax.devices()[:1])
    n, m = 4 * model.count(a.model), a.model
    held = programs.residents(a, programs.learning(a), programs.cache(a))
    assert held["parameters"] == parameters * n
    assert held["optimizer"] == pytest.approx(optimizer * n, abs=100)  # and some counters
    assert held["reference"] == reference * n
    assert held["sampling copy"] == n
    columns = 640 + 256  # of the longest row, and what is written beyond it
    assert held["cache"] == 4 * 2 * m.layers * 20 * m.kv_heads * m.head_size * columns


@pytest.mark.parametrize(
    ("fields", "compiled"),
    [({}, False), ({"learn.passes": 2}, True), ({"learn.minibatches": 2}, True)]
    + [({"learn.kl": 0.1}, True)],
)
def test_log_probabilities_are_compiled_where_a_run_computes_them(
    fields: dict[str, object], compiled: bool
) -> None:
    c = small_run.configured("tiny", {"sampling.slots": 20}, fields)
    a = programs.lay_out(c, programs.sizes(""), jax.devices()[:1], jax.devices()[:1])
    made = programs.programs(a, programs.learning(a), programs.cache(a), every_bucket=False)
    assert ("log-probabilities" in {p.name for p in made}) is compiled


def test_adapters_are_trained_alone() -> None:
    c = small_run.configured("tiny", {"model.lora.rank": 4, "sampling.slots": 20})
    a = programs.lay_out(c, programs.sizes(""), jax.devices()[:1], jax.devices()[:1])
    own = programs.learning(a)
    assert own.base is not None and own.reference is None
    held = programs.residents(a, own, programs.cache(a))
    assert held["optimizer"] < held["parameters"] / 4


def test_where_sizes_come_from(tmp_path: Path) -> None:
    assert programs.sizes("") == hub.read_config(hub.BUNDLED)
    published = programs.sizes("models/Qwen3-30B-A3B-Instruct-2507")
    assert (published.layers, published.experts) == (48, 128)
    (tmp_path / "config.json").write_text(json.dumps({"model": {"path": "models/Qwen3-8B"}}))
    assert programs.sizes(str(tmp_path)).width == 4096  # of the model that the run starts from
    with pytest.raises(UsageError, match=r"config\.json is missing"):
        programs.sizes(str(tmp_path / "nothing"))


LARGE = programs.sizes("models/Qwen3-30B-A3B-Instruct-2507")


@pytest.mark.parametrize(
    ("mesh", "told"),
    [
        ((1, 8, 3, 1), "mesh divides .* 3 devices on the axis tensor.*32 query heads"),
        ((1, 8, 8, 1), "8 devices on the axis tensor.*4 key heads"),
        ((1, 8, 1, 3), "3 devices on the axis expert.*128 experts"),
    ],
)
def test_a_mesh_must_divide_heads_and_experts(mesh: tuple[int, ...], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        programs.check_mesh(LARGE, AbstractMesh(mesh, sharding.AXES), "mesh")


def test_the_share_of_the_experts_that_a_device_has() -> None:
    """Experts are divided over both axes; a model without any has all of its feed-forward."""
    mesh = AbstractMesh((1, 2, 4, 8), sharding.AXES)
    assert programs.own_experts(LARGE, mesh) == 1 / 32
    assert programs.own_experts(programs.sizes(""), mesh) == 1.0


def test_columns_that_prefill_may_read() -> None:
    assert programs.column_buckets(300, 400) == [0, 128, 192, 256, 384]
