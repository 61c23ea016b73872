"""Parameters in safetensors files: read slice by slice into their place, written in shards."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from spade_jax.policy.model import Parameter
from spade_jax.types import UsageError

STEM = "model"  # of the names of a model's files
INDEX = ".safetensors.index.json"
MAX_SHARD = 5 * 10**9  # bytes of one file written
MAPPED = 2**26  # bytes read of a file before it is opened anew: what is mapped counts as memory
ALIGNMENT = 64  # bytes
DTYPES = {"F32": jnp.dtype("float32"), "F16": jnp.dtype("float16"), "BF16": jnp.dtype("bfloat16")}


class Stored(Protocol):
    """A parameter that lies on disk."""

    @property
    def dtype(self) -> np.dtype:
        """The dtype it is stored in."""
        ...

    def place(
        self, dtype: np.dtype | None = None, sharding: jax.sharding.Sharding | None = None
    ) -> jax.Array:
        """Read it, in its own or another dtype, onto the default device or where `sharding` says.

        No more than one device's part of it is held by the host at a time.
        """
        ...


# -- reading ----------------------------------------------------------------------------------


class Files:
    """All tensors of a folder's safetensors files, each in one file only; headers are read first.

    Raises UsageError where files are missing or damaged, or hold a tensor twice.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._where: dict[str, pathlib.Path] = {}
        self._forms: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        for file in _files(folder):
            try:
                with safe_open(file, framework="numpy") as tensors:
                    for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                        self._add(file, name, tensors.get_slice(name))
            except SafetensorError as error:
                raise UsageError(
                    f"{file} is damaged ({error}); take it from the model again"
                ) from None
        self._open: tuple[pathlib.Path, Any] | None = None
        self._mapped = 0

    def _add(self, file: pathlib.Path, name: str, tensor: Any) -> None:
        if name in self._where:
            raise UsageError(f"{file} holds {name} a second time; remove one of the files")
        dtype = tensor.get_dtype()
        if dtype not in DTYPES:
            raise UsageError(
                f"{file} holds {name} as {dtype}; take the model in one of {', '.join(DTYPES)}"
            )
        self._where[name] = file
        self._forms[name] = DTYPES[dtype], tuple(tensor.get_shape())

    @property
    def names(self) -> set[str]:
        return set(self._where)

    def dtype(self, name: str) -> np.dtype:
        return self._forms[name][0]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._forms[name][1]

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """That part of a tensor, in the dtype stored."""
        file = self._where[name]
        if self._open is None or self._open[0] != file or self._mapped > MAPPED:
            self._open = None  # unmapped before the next is mapped
            self._open, self._mapped = (file, safe_open(file, framework="numpy")), 0
        part = self._open[1].get_slice(name)[index]
        self._mapped += part.nbytes
        return part


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Those the index lists or, without one, all of the folder."""
    index = folder / (STEM + INDEX)
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise UsageError(f"{folder} has no .safetensors file; put the model's weights there")
        return files
    try:
        files = [
            folder / name
            for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))
        ]
    except (ValueError, KeyError, AttributeError, TypeError):
        raise UsageError(f"{index} has no weight_map; take it from the model again") from None
    for file in files:
        if not file.is_file():
            raise UsageError(
                f"{file}, which {index.name} lists, is missing; take it from the model"
            )
    return files


@dataclasses.dataclass(frozen=True)
class InFiles:
    """A declared parameter whose tensors lie in `files` (a `Stored`)."""

    parameter: Parameter
    files: Files

    @property
    def dtype(self) -> np.dtype:
        return jnp.result_type(*{self.files.dtype(name) for name in self.parameter.hf_names})

    def place(
        self, dtype: np.dtype | None = None, sharding: jax.sharding.Sharding | None = None
    ) -> jax.Array:
        dtype, shape = dtype or self.dtype, self.parameter.shape
        if sharding is None:
            return jax.device_put(self.read((slice(None),) * len(shape), dtype))
        devices: dict[tuple, list[jax.Device]] = {}  # those that hold the same part
        indices = sharding.addressable_devices_indices_map(shape)
        for device, index in indices.items():
            key = tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
            devices.setdefault(key, []).append(device)
        parts: dict[jax.Device, jax.Array] = {}
        for same in devices.values():
            block = self.read(indices[same[0]], dtype)
            parts |= {device: jax.device_put(block, device) for device in same}
            jax.block_until_ready([parts[device] for device in same])
        return jax.make_array_from_single_device_arrays(
            shape, sharding, [parts[d] for d in indices]
        )

    def read(self, index: tuple[slice, ...], dtype: np.dtype) -> np.ndarray:
        """That part of the parameter; of the files, only what it needs is read."""
        p = self.parameter
        ranges = [range(*s.indices(n)) for s, n in zip(index, p.shape, strict=True)]
        names = np.asarray(p.hf_names, object).reshape(p.stack)
        names = names[(*(slice(r.start, r.stop) for r in ranges[: len(p.stack)]), ...)]
        block = _aligned([len(r) for r in ranges], dtype)
        for at in np.ndindex(names.shape):
            block[at] = self._tensor(names[at], ranges[len(p.stack) :])
        return block

    def _tensor(self, name: str, ranges: Sequence[range]) -> np.ndarray:
        """Those ranges of one tensor's axes, which are finer than the file's."""
        p = self.parameter
        sizes = p.shape[len(p.stack) :]
        file_sizes = p.hf_shape[::-1] if p.transpose else p.hf_shape
        rows, shapes = [], []
        for axes in _split(sizes, file_sizes):
            inner = math.prod(sizes[a] for a in axes[1:])
            first = ranges[axes[0]] if axes else range(1)
            rows.append(slice(first.start * inner, first.stop * inner))
            shapes.append([len(ranges[a]) if a == axes[0] else sizes[a] for a in axes])
        if p.transpose:
            rows, shapes = rows[::-1], shapes[::-1]
        part = self.files.read(name, tuple(rows)).reshape([n for shape in shapes for n in shape])
        if p.transpose:
            outs, both = len(shapes[0]), part.ndim
            part = part.transpose(*range(outs, both), *range(outs))
        # The first axis of each group is cut already, the others are now.
        cut = [
            slice(None) if n == len(r) else slice(r.start, r.stop)
            for n, r in zip(part.shape, ranges, strict=True)
        ]
        return part[tuple(cut)]


def _aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An empty array which a CPU device takes over instead of copying it."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _split(sizes: Sequence[int], products: Sequence[int]) -> list[list[int]]:
    """Consecutive axes of these sizes in groups of these products."""
    groups: list[list[int]] = []
    axis = 0
    for product in products:
        group: list[int] = []
        while math.prod(sizes[a] for a in group) < product:
            group.append(axis)
            axis += 1
        groups.append(group)
    groups[-1] += range(axis, len(sizes))  # of size 1
    return groups


# -- writing ----------------------------------------------------------------------------------


def write(
    folder: pathlib.Path,
    parameters: Sequence[Parameter],
    values: Sequence[jax.Array | Stored],
    dtype: np.dtype | None = None,
    max_shard: int = MAX_SHARD,
    stem: str = STEM,
) -> None:
    """Write the tensors, in their own or another dtype, in files of at most `max_shard` bytes.

    One value at a time is read from where it is. Files of an earlier model there are removed.
    """
    for old in (*folder.glob(f"{stem}*.safetensors"), folder / (stem + INDEX)):
        old.unlink(missing_ok=True)
    shards = _shards(parameters, [dtype or value.dtype for value in values], max_shard)
    count = max(shards.values())
    names = [f"{stem}-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
    names = names if count > 1 else [f"{stem}.safetensors"]
    shard: dict[str, np.ndarray] = {}
    total, written = 0, 0
    for p, value in zip(parameters, values, strict=True):
        for name, tensor in _tensors(p, value, dtype):
            if shards[name] > written + 1:
                save_file(shard, folder / names[written], metadata={"format": "pt"})
                shard, written = {}, written + 1
            shard[name] = tensor
            total += tensor.nbytes
    save_file(shard, folder / names[written], metadata={"format": "pt"})
    if count > 1:
        index = {
            "metadata": {"total_size": total},
            "weight_map": {name: names[n - 1] for name, n in sorted(shards.items())},
        }
        (folder / (stem + INDEX)).write_text(json.dumps(index, indent=2) + "\n")


def _tensors(
    p: Parameter, value: jax.Array | Stored, dtype: np.dtype | None
) -> Iterator[tuple[str, np.ndarray]]:
    """Copies of a parameter's tensors, so that the parameter itself is held no longer than here."""
    array = np.asarray(value if isinstance(value, jax.Array) else value.place(dtype))
    array = array.reshape(-1, *(p.hf_shape[::-1] if p.transpose else p.hf_shape))
    for name, part in zip(p.hf_names, array, strict=True):
        yield name, np.array(part.T if p.transpose else part, dtype, order="C")


def _shards(
    parameters: Sequence[Parameter], dtypes: Sequence[np.dtype], max_shard: int
) -> dict[str, int]:
    """The number, from 1, of the file each tensor goes to."""
    shards: dict[str, int] = {}
    number, size = 1, 0
    for p, dtype in zip(parameters, dtypes, strict=True):
        bytes_each = math.prod(p.hf_shape) * dtype.itemsize
        for name in p.hf_names:
            if size and size + bytes_each > max_shard:
                number, size = number + 1, 0
            shards[name] = number
            size += bytes_each
    return shards
