"""Weights from one form into another: Hugging Face folders, folders of ours, runs.

    python -m spade_jax.convert import SRC DST             Orbax weights beside tokenizer and sizes
    python -m spade_jax.convert export SRC DST [--dtype=bfloat16] [--adapter]   Hugging Face files
    python -m spade_jax.convert inspect PATH [--json]      what is there, without reading weights

SRC and PATH are a Hugging Face folder, a folder that `import` wrote, or the workdir of a run, whose
newest checkpoint counts. All three are good as `--config.model.path`, so none of this is needed to
train: `import` makes weights of which each host of many reads its part only, `export` hands a
trained model to others. No accelerator is used; one parameter at a time is held, and by `export` a
file of at most 5 GB.
"""

from __future__ import annotations

from absl import flags

from spade_jax.program import run_program

if __name__ == "__main__":  # before all else, so that --help needs no JAX
    flags.DEFINE_bool("json", False, "inspect: print one JSON object.")
    flags.DEFINE_enum("dtype", None, ["float32", "bfloat16"], "export: other than it is stored.")
    flags.DEFINE_bool("adapter", False, "export: a run's adapters alone, as peft opens them.")
    run_program("spade_jax.convert", files=True)

import json
import math
import shutil
from pathlib import Path
from typing import Any

import jax
import rich.box
from rich.console import Console
from rich.table import Table

from spade_jax import host_memory, storage, weights
from spade_jax.folder import EXPORTED
from spade_jax.policy import hub, lora, model
from spade_jax.types import UsageError
from spade_jax.weights import Source

FLAGS = flags.FLAGS
GB = 1e9
ITERATION = "iteration.txt"  # in an exported run: that of the checkpoint it was made of


def to_ours(source: Source, path: Path) -> None:
    """Write a folder with the weights as Orbax checkpoints, in the dtype they have."""
    path.mkdir(parents=True, exist_ok=True)
    weights.write_imported(path, source.parameters)
    hub.copy_companions(source.folder, path)
    config = (source.folder / weights.CONFIG).read_bytes()
    (path / weights.CONFIG).write_bytes(config)  # last, so that a part of a folder is no model


def to_hugging_face(source: Source, path: Path, dtype: str | None) -> None:
    """Write a Hugging Face folder in the dtype the weights have, or another."""
    if dtype is None and source.lora:
        dtype = "float32"  # merged matrices have more digits than the frozen ones may have
    hub.export(path, source.parameters, like=source.folder, dtype=dtype)


def export_run(place: storage.Workdir) -> None:
    """Write the weights of a run's newest checkpoint into its folder, unless they are there."""
    folder, source = place.folder / EXPORTED, weights.find(place.folder, place.checkpoints)
    if (folder / ITERATION).exists() and int((folder / ITERATION).read_text()) == source.step:
        return
    draft = folder.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    with weights.on_host():
        to_hugging_face(source, draft, None)
    (draft / ITERATION).write_text(f"{source.step}\n")
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)
    print(f"wrote Hugging Face files to {place.name}/{EXPORTED}")


def to_adapter(source: Source, path: Path) -> None:
    """Write the adapters alone, for `peft` to open on the model they belong to."""
    if source.lora is None:
        raise UsageError(f"{source.path} has no adapters; export it without --adapter")
    base = str(source.folder.absolute())
    lora.export(path, source.model, source.lora, source.adapters, base=base)


def inspect(source: Source) -> dict[str, Any]:
    """What there is, as JSON has it; tensors are named as this package has them."""
    shown = source.parameters if source.adapters is None else source.adapters
    declared = model.declare(source.model)
    if source.lora:
        declared = lora.declare(source.model, source.lora)
    tensors = []
    leaves = jax.tree.leaves(shown)
    for (path, p), stored in zip(
        jax.tree.leaves_with_path(declared, is_leaf=model.is_parameter), leaves, strict=True
    ):
        name, size = "/".join(key.key for key in path), math.prod(p.shape)
        tensors.append(
            {
                "name": name,
                "hugging_face": p.hf_name,
                "shape": list(p.shape),
                "dtype": str(stored.dtype),
                "bytes": size * stored.dtype.itemsize,
            }
        )
    sizes = {k: v for k, v in vars(source.model).items() if v or k == "tied"}
    return {
        "path": str(source.path),
        "kind": source.kind,
        "architecture": "qwen3_moe" if source.model.experts else "qwen3",
        "sizes": sizes,
        "parameters": model.count(source.model),
        "step": source.step,
        "lora": vars(source.lora) if source.lora else None,
        "sizes_and_tokenizer": str(source.folder),
        "bytes": sum(t["bytes"] for t in tensors),
        "tensors": tensors,
    }


def show(found: dict[str, Any]) -> None:
    """For people: a line on each matter, then a row a tensor."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    dtypes = sorted({t["dtype"] for t in found["tensors"]})
    step = "" if found["step"] is None else f", checkpoint of iteration {found['step']}"
    sizes = ", ".join(f"{name} {value}" for name, value in found["sizes"].items())
    lines = [
        f"{found['path']}: {found['kind']}{step}",
        f"{found['architecture']}: {sizes}",
        f"{found['parameters']:,} parameters; here {found['bytes'] / GB:.3f} GB of "
        f"{', '.join(dtypes)}; sizes and tokenizer in {found['sizes_and_tokenizer']}",
    ]
    if found["lora"]:
        lines.append(f"only adapters are here: {found['lora']}")
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    rows = Table(box=rich.box.SIMPLE)
    for name in ("tensor", "Hugging Face name", "dtype"):
        rows.add_column(name, overflow="fold")
    rows.add_column("shape", justify="right", overflow="fold")
    for t in found["tensors"]:
        shape = " ".join(map(str, t["shape"]))
        rows.add_row(t["name"], t["hugging_face"], t["dtype"], shape)
    console.print(rows, markup=False)


def destination(name: str) -> Path:
    """A folder to write to, which must hold nothing yet."""
    path = Path(name)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} exists already; give the name of a new folder")
    return path


def main(arguments: list[str]) -> int:
    jax.config.update("jax_platforms", "cpu")
    count = {"import": 2, "export": 2, "inspect": 1}
    verb, *paths = arguments or [""]
    if count.get(verb) != len(paths):
        raise UsageError(
            f"{' '.join(arguments) or 'nothing'} is no conversion; pass import SRC DST, export SRC "
            "DST or inspect PATH (--help lists the flags)"
        )
    if verb == "inspect":
        found = inspect(weights.find(paths[0]))
        print(json.dumps(found)) if FLAGS.json else show(found)
        return 0
    if verb == "import" and (FLAGS.dtype or FLAGS.adapter):
        raise UsageError(
            "import keeps the weights as they are; pass --dtype or --adapter to export"
        )
    path, source = destination(paths[1]), weights.find(paths[0])
    if verb == "import":
        to_ours(source, path)
    elif FLAGS.adapter:
        to_adapter(source, path)
    else:
        to_hugging_face(source, path, FLAGS.dtype)
    print(f"wrote {path}; peak host memory {host_memory.peak() / GB:.2f} GB")
    return 0
