"""Where weights come from: a Hugging Face folder, an imported folder, or a run's checkpoint.

Each is good as `model.path`. A run keeps in its `config.json` what it started from; sizes,
tokenizer and, where adapters are trained, the frozen weights are found there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
from pathlib import Path, PurePath
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from spade_jax import checkpoint, storage
from spade_jax.learn import batching, step
from spade_jax.policy import hub, lora, model, sharding
from spade_jax.policy.lora import Lora
from spade_jax.policy.model import ModelConfig, Params
from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.types import Message, Role, UsageError

CONFIG = "config.json"  # of a model's folder, and of a run's
IMPORTED = "weights"  # in an imported folder: one Orbax checkpoint a parameter
CHUNK = 2**26  # bytes of an array stored together, so that a reader of a part reads little else
SOUND = Path(__file__).parent / "assets" / "loss_check.jsonl"
SOUND_ROW = 256  # tokens of a row of the loss check


@dataclasses.dataclass(frozen=True)
class Source:
    """A model on disk. Of a run that trains adapters, `parameters` have them merged in."""

    kind: str  # hugging face | imported | run
    path: Path  # of the weights
    folder: Path  # of sizes and tokenizer
    model: ModelConfig
    parameters: Params  # tensors.Stored
    step: int | None = None  # of a run
    mean: bool = False  # of a run: its running mean of weights, not the weights themselves
    lora: Lora | None = None
    adapters: Params | None = None  # tensors.Stored

    def load(self, *, dtype: str = "float32", shardings: Params | None = None) -> Params:
        """The parameters, each read straight to where its sharding says."""
        return hub.place(self.parameters, dtype=dtype, shardings=shardings)


def find(path: str | Path, checkpoints: PurePath | None = None, *, mean: bool = False) -> Source:
    """The model at `path`; "" is the one shipped with the package.

    The `checkpoints` of a run may lie elsewhere than in its folder. With `mean` it is the running
    mean of its weights, where it keeps one. Headers and metadata are read, weights are not. Raises
    UsageError where there is no whole model.
    """
    if storage.is_remote(storage.local(path)):
        raise UsageError(
            f"the model {path} is in no folder of this machine; copy it into one and give that"
        )
    folder = hub.folder(storage.local(path))
    run = folder.parent if folder.name == storage.CHECKPOINTS else folder
    raw = _read(run / CONFIG)
    if isinstance(raw.get("model"), dict):
        return _run(run, raw, checkpoints or run / storage.CHECKPOINTS, mean)
    if (folder / IMPORTED).is_dir():
        c = hub.read_config(folder)
        return Source("imported", folder, folder, c, _imported(folder / IMPORTED, c))
    c, parameters = hub.stored(folder)
    return Source("hugging face", folder, folder, c, parameters)


def _read(file: Path) -> dict[str, Any]:
    """The content of a JSON file; {} where there is none, what is wrong with it others say."""
    try:
        raw = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _run(run: Path, raw: dict[str, Any], checkpoints: PurePath, mean: bool) -> Source:
    """The newest checkpoint of a run, its `mean` of weights where that is wanted and kept."""
    if "iterations" not in raw:  # a warm start, which writes a model when it is done
        if (run / "model" / CONFIG).is_file():
            return find(run / "model")
        raise UsageError(
            f"the warm start in {run} is not finished; give its command again to go on with it"
        )
    committed = checkpoint.steps(checkpoints)[0] if checkpoints.is_dir() else []
    if not committed:
        raise UsageError(
            f"the run in {run} has no checkpoint yet; use the model it started from, "
            f"{raw['model'].get('path') or 'the one of the package'}, or wait for a checkpoint"
        )
    try:
        base = find(raw["model"]["path"])
    except UsageError as error:
        raise UsageError(f"the run in {run} goes back to another model: {error}") from None
    newest = checkpoints / str(max(committed))
    trees = _metadata(newest / "learner")
    mean = mean and bool(trees.get("ema"))
    key = "ema" if mean else "params"
    tree = trees.get(key, {})
    source = dataclasses.replace(base, kind="run", path=newest, step=max(committed), mean=mean)
    adapted = raw["model"].get("lora", {"rank": 0})
    if not adapted["rank"]:
        parameters = _in_checkpoint(newest / "learner", tree, model.declare(base.model), (key,))
        return dataclasses.replace(source, parameters=parameters, lora=None, adapters=None)
    how = Lora(**adapted)
    adapters = _in_checkpoint(newest / "learner", tree, lora.declare(base.model, how), (key,))
    merged = jax.tree.map(
        lambda leaf: Merged(leaf) if isinstance(leaf, lora.Adapted) else leaf,
        how(adapters, base.parameters),
        is_leaf=lambda leaf: isinstance(leaf, lora.Adapted),
    )
    return dataclasses.replace(source, parameters=merged, lora=how, adapters=adapters)


def on_host() -> contextlib.AbstractContextManager:
    """Where the body reads weights to nowhere in particular, they stay in the host's memory."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return contextlib.nullcontext()


# -- arrays of Orbax checkpoints --------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class InCheckpoint:
    """An array of an Orbax checkpoint (a `tensors.Stored`)."""

    folder: Path
    keys: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype

    def place(
        self, dtype: np.dtype | None = None, sharding: jax.sharding.Sharding | None = None
    ) -> jax.Array:
        device = jax.config.jax_default_device or jax.devices()[0]
        sharding = sharding or jax.sharding.SingleDeviceSharding(device)
        wanted = jax.ShapeDtypeStruct(self.shape, dtype or self.dtype, sharding=sharding)
        item = functools.reduce(lambda tree, key: {key: tree}, reversed(self.keys), wanted)
        arguments = ocp.args.PyTreeRestore(
            item=item,
            restore_args=ocp.checkpoint_utils.construct_restore_args(item),
            partial_restore=True,
        )
        try:
            handler = ocp.PyTreeCheckpointHandler()
            tree = handler.restore(storage.absolute(self.folder), args=arguments)
        except Exception as error:
            raise _damaged(self.folder) from error
        return functools.reduce(lambda tree, key: tree[key], self.keys, tree)


@dataclasses.dataclass(frozen=True)
class Merged:
    """A matrix with its adapter's product added (a `tensors.Stored`), in float32."""

    adapted: lora.Adapted  # of tensors.Stored
    dtype: np.dtype = dataclasses.field(default=np.dtype("float32"), init=False)

    def place(
        self, dtype: np.dtype | None = None, sharding: jax.sharding.Sharding | None = None
    ) -> jax.Array:
        everywhere = sharding
        if isinstance(sharding, jax.sharding.NamedSharding):
            everywhere = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
        arrays = dataclasses.replace(
            self.adapted,
            weight=self.adapted.weight.place(self.dtype, sharding),
            a=self.adapted.a.place(self.dtype, everywhere),
            b=self.adapted.b.place(self.dtype, everywhere),
        )
        return jax.jit(lambda leaf: leaf().astype(dtype or self.dtype), out_shardings=sharding)(
            arrays
        )


def _in_checkpoint(
    folder: Path, tree: dict[str, Any], declared: Params, keys: tuple[str, ...]
) -> Params:
    """Of the declared parameters, those in a checkpoint's tree; UsageError where one is another."""

    def one(path: tuple, p: model.Parameter) -> InCheckpoint:
        own = tuple(key.key for key in path)
        found = functools.reduce(lambda at, key: at.get(key, {}), own, tree)
        shape = tuple(getattr(found, "shape", ()) or ())
        if shape != p.shape:
            raise UsageError(
                f"checkpoint {folder} has {'/'.join(own)} of shape {shape} where its model has "
                f"{p.shape}; point model.path of the run's config.json at what it started from"
            )
        return InCheckpoint(folder, (*keys, *own), shape, np.dtype(found.dtype))

    return jax.tree.map_with_path(one, declared, is_leaf=model.is_parameter)


def _imported(folder: Path, c: ModelConfig) -> Params:
    def one(path: tuple, p: model.Parameter) -> InCheckpoint:
        own = folder / ".".join(key.key for key in path)
        tree = {"value": p}
        return _in_checkpoint(own, _metadata(own), tree, ())["value"]

    return jax.tree.map_with_path(one, model.declare(c), is_leaf=model.is_parameter)


def write_imported(folder: Path, parameters: Params) -> None:
    """Write parameters (`tensors.Stored`), in the dtype they have, one after the other."""
    options = {"value": ocp.SaveArgs(chunk_byte_size=CHUNK)}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        for path, parameter in jax.tree.leaves_with_path(parameters):
            own = (folder / IMPORTED / ".".join(key.key for key in path)).absolute()
            item = {"value": parameter.place()}
            checkpointer.save(own, args=ocp.args.PyTreeSave(item, save_args=options))
            del item  # before the next is read


def _metadata(folder: Path) -> dict[str, Any]:
    """The tree of a checkpoint's arrays, without their values."""
    try:
        return ocp.PyTreeCheckpointHandler().metadata(storage.absolute(folder)).tree
    except Exception as error:
        raise _damaged(folder) from error


def _damaged(folder: Path) -> UsageError:
    return UsageError(
        f"checkpoint {folder} is damaged and cannot be read; take another one, or make it again"
    )


# -- soundness --------------------------------------------------------------------------------


def check_loss(
    params: Params, c: ModelConfig, tokenizer: ChatTokenizer, source: Source, share: float
) -> None:
    """Refuse weights whose loss on the replies of a bundled text, in nats a token, exceeds `share`
    of that of a uniform guess: what came out of a failed conversion is no better than that."""
    lines = [json.loads(line)["messages"] for line in SOUND.read_text().splitlines()]
    records = [tokenizer.supervised([Message(**m) for m in messages]) for messages in lines]
    rows = [batching.Row(r, Role.AGENT, advantage=0.0, temperature=1.0) for r in records]
    lengths = [len(r.ids) for r in records]
    size = max(SOUND_ROW, *lengths)
    batch, counts, layout = batching.pack(rows, [0.0] * len(rows), buckets=(size,), micro_rows=(1,))
    logps = step.score(params, batch, counts, c=c, h=step.Hyper())
    losses = [
        -logp
        for r, logps in zip(
            records, batching.unpack(sharding.fetch(logps), layout, lengths), strict=True
        )
        for logp, own in zip(logps, r.action, strict=True)
        if own
    ]
    loss, bound = math.fsum(losses) / len(losses), share * math.log(c.vocab)
    if not loss < bound:
        raise UsageError(
            f"the weights of {source.path} have a loss of {loss:.2f} nats a token on plain text, "
            f"and a sound model of {c.vocab} tokens one below {bound:.2f}; convert them again, or "
            "set --config.model.max_loss=0 if they are meant to be so"
        )
