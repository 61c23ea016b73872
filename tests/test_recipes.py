"""Recipes: the published numbers, and every config and sweep point in shapes and shardings."""

import functools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType
from ml_collections import config_dict

from launch import sweep
from spade_jax import config as configs
from spade_jax import limits
from spade_jax import run as run_setup
from spade_jax.configs import ablations, games, tool_use
from spade_jax.learn import batching, step
from spade_jax.learn.batching import Rows
from spade_jax.policy import hub, model, sharding
from spade_jax.policy.model import ModelConfig
from spade_jax.preflight.programs import PUBLISHED

RECIPES = [*(f"games:{v}" for v in games.VARIANTS), *(f"tool_use:{v}" for v in tool_use.VARIANTS)]


def sizes(name: str) -> ModelConfig:
    """The model of a recipe, by the public facts; the bundled one of other configs."""
    for part, folder in (
        ("qwen3_0_6b", "Qwen3-0.6B"),
        ("qwen3_4b", "Qwen3-4B-Instruct-2507"),
        ("qwen3_8b", "Qwen3-8B"),
        ("qwen3_30b_a3b", "Qwen3-30B-A3B-Instruct-2507"),
    ):
        if part in name:
            return read_sizes(PUBLISHED / folder)
    return read_sizes(hub.BUNDLED)


read_sizes = functools.cache(hub.read_config)


def mesh_of(name: str, c: config_dict.ConfigDict, devices: int = 0) -> AbstractMesh:
    """So many devices, or those a recipe is for; one for other configs."""
    devices = devices or ((32 if "30b_a3b" in name else 8) if "qwen3" in name else 1)
    given = math.prod(n for n in c.mesh if n != -1)
    shape = tuple(devices // given if n == -1 else n for n in c.mesh)
    assert math.prod(shape) == devices
    return AbstractMesh(shape, sharding.AXES, (AxisType.Auto,) * 4)


# -- the numbers ------------------------------------------------------------------------------

COLUMNS = {
    "games:qwen3_4b": (400, 24, 192, 8, 16, 4, 4, 3, "blend", 8192, 16384, 0.0, False),
    "games:qwen3_8b": (400, 24, 192, 8, 16, 4, 4, 3, "blend", 8192, 20000, 0.005, False),
    "games:qwen3_30b_a3b": (400, 24, 192, 8, 16, 4, 4, 3, "blend", 8192, 16384, 0.0, False),
    "tool_use:qwen3_4b": (500, 16, 256, 16, 4, 32, 32, 6, "regret", 8192, 16384, 0.005, True),
    "tool_use:qwen3_8b": (400, 24, 192, 8, 16, 8, 8, 6, "blend", 8192, 20000, 0.005, True),
    "tool_use:qwen3_30b_a3b": (400, 24, 192, 8, 16, 8, 8, 6, "blend", 8192, 16384, 0.005, True),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_published_numbers(name: str) -> None:
    """arXiv 2608.19197, the table of training settings."""
    c = configs.load(name)
    assert COLUMNS[name] == (
        c.iterations,
        c.design.num_envs,
        c.design.num_envs * c.play.plays,
        c.play.plays,
        c.play.hint_plays,
        c.design.regenerate_every,
        c.learn.designer_delay,
        c.skills_per_epoch,
        c.reward.designer,
        c.play.reply_tokens,
        c.design.max_tokens,
        c.learn.kl,
        c.play.mask_truncated,
    )
    for role in (c.play, c.design):
        assert (role.temperature, role.top_p, role.top_k, role.min_p) == (0.6, 0.95, 20, 0.0)
    assert (c.play.max_turns, c.play.context, len(c.skills)) == (25, 32768, 6)
    assert c.corpus.max_words == (4000 if "tool_use" in name else 6000)
    assert (c.memory.size, c.memory.positives, c.memory.negatives) == (200, 2, 1)
    assert (c.corpus.seed, c.advantage.agent, c.learn.aggregation) == (42, "grpo", "token_mean")
    thinks = "on" if "8b" in name else "auto"
    assert (c.design.thinking, c.play.thinking) == (thinks, thinks)


@pytest.mark.parametrize(
    ("name", "hint_tokens", "judge", "variance"),
    [
        *((f"games:{v}", 4096, "none", 0.0) for v in games.VARIANTS if v != "qwen3_0_6b"),
        ("tool_use:qwen3_4b", 512, "self", 1.0),
        ("tool_use:qwen3_8b", 2048, "self", 0.0),
        ("tool_use:qwen3_30b_a3b", 2048, "self", 0.0),
    ],
)
def test_published_hints_and_judges(
    name: str, hint_tokens: int, judge: str, variance: float
) -> None:
    c = configs.load(name)
    assert (c.hint.source, c.hint.temperature, c.hint.max_tokens) == ("self", 0.3, hint_tokens)
    assert (c.judge.source, c.reward.w_variance) == (judge, variance)


def test_the_later_phase_of_games() -> None:
    first, later = (configs.flatten(configs.load(f"games:qwen3_4b{x}")) for x in ("", "_long"))
    assert {field: v for field, v in later.items() if v != first[field]} == {
        "model.path": "runs/games-qwen3_4b",  # where launch/local.sh puts the first phase
        "play.context": 49152,
        "sampling.slots": 32,
        "reward.plateau_low": 0.2,
        "reward.plateau_high": 0.4,
        "reward.plateau_ramp": 0.2,
        "learn.row_tokens": (8192, 49152),
    }


@pytest.mark.parametrize(
    ("name", "billions"),
    [("qwen3_0_6b", 0.596), ("qwen3_4b", 4.02), ("qwen3_8b", 8.19), ("qwen3_30b_a3b", 30.5)],
)
def test_parameters_are_as_many_as_published(name: str, billions: float) -> None:
    assert model.count(sizes(name)) == pytest.approx(1e9 * billions, rel=0.01)


# -- shapes and shardings ---------------------------------------------------------------------


def names() -> list[str]:
    """Every config to launch, every variant, alone and with each word."""
    bases = ["tiny", *RECIPES]
    return [*bases, *(f"{b}{',' if ':' in b else ':'}{w}" for b in bases for w in ablations.WORDS)]


@pytest.mark.parametrize("name", names())
def test_every_config_fits(name: str) -> None:
    c = configs.load(name)
    configs.check(c)
    check_shapes(name, c)


@pytest.mark.parametrize("base", ["tiny", "games:qwen3_4b", "tool_use:qwen3_30b_a3b"])
@pytest.mark.parametrize("name", configs.bundled(sweep.PACKAGE, "points"))
def test_every_point_of_every_sweep_fits(name: str, base: str, tmp_path: Path) -> None:
    jobs = sweep.plan(name, base, configs.load(base), tmp_path)  # checks each config
    assert len(jobs) > 3
    for job in jobs:
        check_shapes(base, sweep.configured(job.source, job.fields))


def check_shapes(name: str, c: config_dict.ConfigDict) -> None:
    """Parameters and batches of a config divide evenly among its devices."""
    m, mesh = sizes(name), mesh_of(name, c)
    assert c.play.context <= m.max_positions
    assert c.design.max_tokens < limits.design_context(c, m)
    check_divided(m, mesh)
    for rows in (c.sampling.slots, *c.learn.rows) if mesh.size > 1 else ():
        [names] = sharding.split(("batch",), (rows,), mesh, "train")
        pieces = math.prod(mesh.shape[n] for n in names)
        assert pieces == mesh.size // mesh.shape["tensor"], f"{rows} rows on {mesh}"


@functools.cache
def check_divided(m: ModelConfig, mesh: AbstractMesh) -> None:
    """No mesh axis is left out for want of a divisor."""
    for mode in ("train", "sample"):
        for p in jax.tree.leaves(model.declare(m), is_leaf=model.is_parameter):
            found = sharding.split(p.axes, p.shape, mesh, mode)
            claimed = {n for axis in p.axes for n in sharding.TABLE[mode].get(axis, ())}
            assert claimed == {n for names in found for n in names}, p.hf_name


def parameters_per_device(m: ModelConfig, mesh: AbstractMesh, mode: str) -> int:
    places = jax.tree.leaves(sharding.parameters(model.declare(m), mesh, mode))
    shapes = jax.tree.leaves(model.abstract(m))
    pairs = zip(places, shapes, strict=True)
    return sum(math.prod(place.shard_shape(a.shape)) for place, a in pairs)


SMALLEST = "games:qwen3_0_6b"


@pytest.mark.parametrize(
    ("name", "devices", "gigabytes"),
    [
        *((name, 0, 80) for name in RECIPES if name != SMALLEST),
        (SMALLEST, 8, 16),  # a TPU VM
        (SMALLEST, 1, 80),  # a GPU
    ],
)
def test_each_device_has_room(name: str, devices: int, gigabytes: int) -> None:
    """A tenth is left for what is gathered and computed for a moment."""
    c, m = configs.load(name), sizes(name)
    mesh = mesh_of(name, c, devices)
    room = 0.9 * gigabytes * 1e9
    trained = parameters_per_device(m, mesh, "train")
    assert trained == pytest.approx(model.count(m) / mesh.size, rel=0.01)
    state = 4 * (3 + (c.learn.kl > 0)) * trained  # with two moments and the reference
    gradients = 2 * 4 * trained  # a micro-batch's, and the sum
    copy = 2 * parameters_per_device(m, mesh, "sample")
    # In bfloat16, keys and values of the slots, and the input of each layer of the long rows.
    cache = 2 * 2 * m.layers * m.kv_heads * m.head_size * c.play.context * c.sampling.slots
    inputs = 2 * m.layers * m.width * c.learn.row_tokens[-1] * c.learn.rows[-1]
    host = min(mesh.size, 8)  # its devices, which share the cache of its slots
    assert state + copy + cache / host < room
    # While weights are learned the sampler holds nothing.
    assert state + gradients + inputs / (mesh.size // mesh.shape["tensor"]) < room


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_update_of_every_recipe(name: str) -> None:
    """Traced in shapes, with its precision, losses and rows, on a mesh of its size."""
    c, m = configs.load(name), sizes(name)
    tx = step.optimizer(c.optimizer.lr, beta1=0.9, beta2=0.98, weight_decay=0.1, clip_norm=1.0)
    state = jax.eval_shape(lambda params: step.create(params, tx), model.abstract(m))
    batch = tuple(map(abstract_rows, c.learn.rows, c.learn.row_tokens))
    counts = jax.ShapeDtypeStruct((len(batch),), jnp.int32)
    update = functools.partial(step.train_step, c=m, h=run_setup.hyper(c), tx=tx)
    with jax.sharding.use_abstract_mesh(mesh_of(name, c)):
        new, metrics = jax.eval_shape(update, state, batch, counts)
    assert jax.tree.map(str, new) == jax.tree.map(str, state)
    assert ("kl_reference" in metrics) == (c.learn.kl > 0)


def abstract_rows(rows: int, length: int) -> Rows:
    """One micro-batch."""
    columns = batching.pack([], [], buckets=(1,), micro_rows=(1,), capacity=(1,))[0][0]
    return Rows(*(jax.ShapeDtypeStruct((1, rows, length), a.dtype) for a in columns))
