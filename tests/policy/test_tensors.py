"""Tensors of files: any part of a parameter, on any devices, and no more read than it needs."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from spade_jax.policy import hub, tensors
from spade_jax.policy.model import Parameter
from spade_jax.policy.tensors import Files, InFiles
from spade_jax.types import UsageError
from tests.policy.small import MOE, random_params


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in four files."""
    path = tmp_path_factory.mktemp("sharded")
    hub.save(path / "one", MOE, random_params(MOE), eos_id=1, pad_id=0)
    hub.export(path, random_params(MOE), like=path / "one", max_shard=40_000)
    assert len(list(path.glob("*.safetensors"))) == 4
    return path


@pytest.mark.parametrize("path", ["embed", "head", "layers/q", "layers/o", "layers/up"])
def test_every_part_is_read_as_it_stands_in_the_whole(folder: Path, path: str) -> None:
    """All combinations of the whole, the first half and a middle part of every axis."""
    whole, stored = random_params(MOE), hub.stored(folder)[1]
    for key in path.split("/"):
        whole, stored = whole[key], stored[key]
    whole = np.asarray(whole)
    for parts in itertools.product(range(3), repeat=whole.ndim):
        cuts = zip(parts, whole.shape, strict=True)
        index = tuple((slice(None), slice(n // 2), slice(n // 4, n // 2))[k] for k, n in cuts)
        read = stored.read(index, np.dtype("float32"))
        np.testing.assert_array_equal(read, whole[index])


def test_a_part_costs_only_its_own_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads are rows of the file's matrix and are cut there; their insides are cut in memory."""
    read = []

    def count(self: Files, name: str, index: tuple[slice, ...]) -> np.ndarray:
        read.append(original(self, name, index))
        return read[-1]

    original = Files.read
    monkeypatch.setattr(Files, "read", count)
    layers = hub.stored(folder)[1]["layers"]
    everything = slice(None)
    for name, index, elements in (
        ("q", (slice(1), everything, slice(1, 2), everything), 32 * 8),
        ("q", (slice(1), slice(16), everything, everything), 16 * 32),
        ("o", (everything, slice(2), everything, slice(8)), 2 * 16 * 8),
        ("q", (slice(1), everything, slice(1, 2), slice(2)), 32 * 8),
        ("up", (slice(1), slice(2, 4), everything, slice(6)), 2 * 32 * 6),
    ):
        read.clear()
        layers[name].read(index, np.dtype("float32"))
        assert sum(part.size for part in read) == elements, (name, index)


def test_axes_of_size_one() -> None:
    assert tensors._split((4, 8, 32), (32, 32)) == [[0, 1], [2]]
    assert tensors._split((32, 1), (32, 1)) == [[0], [1]]
    assert tensors._split((32, 4, 1), (32, 4)) == [[0], [1, 2]]


def test_a_mapping_is_renewed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been read of a mapped file counts as memory until it is closed."""
    opened = []

    def count(file: Path, framework: str) -> object:
        opened.append(file)
        return original(file, framework)

    original = tensors.safe_open
    _, stored = hub.stored(folder)
    monkeypatch.setattr(tensors, "safe_open", count)
    stored["layers"]["gate"].place()
    assert 1 <= len(opened) <= 2, "the parameter lies in two files at most"
    monkeypatch.setattr(tensors, "MAPPED", 0)
    opened.clear()
    stored["layers"]["gate"].place()
    assert len(opened) == 8, "once for each of its matrices"


ON_FOUR_DEVICES = """
import sys
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from spade_jax.policy import hub
folder = sys.argv[1]
mesh = jax.make_mesh((2, 2), ("a", "b"))
specs = {"embed": P("a"), "head": P(None, ("a", "b")), "final_norm": P(), "layers": {
    "q": P(None, "a", "b"), "k": P(None, None, None, "a"), "v": P("b"),
    "o": P(None, "b", None, "a"), "gate": P("a", "b"), "up": P(None, None, "b", "a"),
    "down": P(None, ("a", "b")), "router": P(None, "a")}}
c, whole = hub.load(folder)
for name in whole["layers"]:
    specs["layers"].setdefault(name, P())
is_spec = lambda s: isinstance(s, P)
shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=is_spec)
_, sharded = hub.load(folder, shardings=shardings)
for a, b, s in zip(*map(jax.tree.leaves, (whole, sharded, shardings)), strict=True):
    assert b.sharding == s, (b.sharding, s)
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
"""


def test_parts_go_to_their_devices(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_FOUR_DEVICES, str(folder)],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_bfloat16_keeps_its_bits(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((4, 6)).astype(jnp.bfloat16)
    save_file({"a": values}, tmp_path / "x.safetensors")
    stored = InFiles(Parameter((6, 4), ("x", "y"), "a", (4, 6), True), Files(tmp_path))
    assert stored.dtype == jnp.bfloat16
    np.testing.assert_array_equal(stored.place(), values.T)
    widened = stored.place(jnp.dtype("float32"))
    assert widened.dtype == jnp.float32
    np.testing.assert_array_equal(widened, values.T.astype(np.float32))


def test_numbers_of_another_kind(tmp_path: Path) -> None:
    save_file({"a": np.zeros(3, np.int8)}, tmp_path / "x.safetensors")
    with pytest.raises(UsageError, match="holds a as I8; take the model in one of F32, F16, BF16"):
        Files(tmp_path)


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"\x10" * 40)
    with pytest.raises(UsageError, match="x.safetensors is damaged .*; take it from the model aga"):
        Files(tmp_path)


def test_what_the_index_lists(folder: Path, tmp_path: Path) -> None:
    save_file({"a": np.zeros(3, np.float32)}, tmp_path / "x.safetensors")
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "y.safetensors")
    index = tmp_path / (tensors.STEM + tensors.INDEX)
    index.write_text(json.dumps({"weight_map": {"a": "y.safetensors"}}))
    assert Files(tmp_path).read("a", (slice(1),)) == [1], "the other file is none of the model"
    index.write_text(json.dumps({"weight_map": {"a": "z.safetensors"}}))
    with pytest.raises(UsageError, match="z.safetensors, which .*index.json lists, is missing"):
        Files(tmp_path)
    index.write_text("[]")
    with pytest.raises(UsageError, match="index.json has no weight_map; take it from the model"):
        Files(tmp_path)


def test_files_are_filled_in_order() -> None:
    p = Parameter((3, 2, 2), ("layer", "x", "y"), "w{layer}", (2, 2))
    big = Parameter((9,), ("x",), "big", (9,))
    half, full = jnp.dtype("bfloat16"), jnp.dtype("float32")
    # 16 bytes each, then one of 18 that is larger than a file may be.
    assert tensors._shards([p, big], [full, half], 32) == {"w0": 1, "w1": 1, "w2": 2, "big": 3}
    assert tensors._shards([big, p], [half, full], 16) == {"big": 1, "w0": 2, "w1": 3, "w2": 4}
    assert jax.devices()[0].platform == "cpu"
