"""Learner and host state as one checkpoint: both are saved, or neither is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import msgspec
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from spade_jax import hosts, storage, types

PyTree = Any

_UNFINISHED = ".orbax-checkpoint-tmp"  # marks Orbax's folder of a save that was not committed


class Checkpoints:
    """The checkpoints of a run in one folder, a subfolder each, the newest `keep` of them kept.

    With `keep_every`, those of steps that it divides are kept besides.

    Saving goes on in the background; what went wrong there is raised by the next call of
    `save`, `wait` or `close`. A checkpoint appears under its step by one rename, so that killing
    the process at any moment leaves whole checkpoints and at most one unfinished folder, which
    `restore` passes over with a warning and the next `save` removes. Not for two runs at once.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int, keep_every: int = 0) -> None:
        self.directory = storage.absolute(directory)
        self._remote = storage.is_remote(directory)
        try:
            if not self._remote:  # object stores have no folders
                self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._not_written(error) from error
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            keep_period=keep_every or None,
            async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
        )
        handlers = {"learner": ocp.StandardCheckpointHandler(), "host": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(
            self.directory, options=options, item_handlers=handlers
        )
        self._swept = False

    def save(self, step: int, learner: PyTree, host: types.HostState) -> None:
        """Start saving both states under `step`; returns when `learner` may be donated.

        A step that is saved already is left as it is. Raises OSError in one sentence where this
        or the save before it cannot be written, or there is no room for it.
        """
        self.wait()
        self._sweep()
        hosts.check_same("the state beside the weights", host)
        if step in self._manager.all_steps():
            return
        self.check_room(learner)
        arguments = ocp.args.Composite(
            learner=ocp.args.StandardSave(learner),
            host=ocp.args.JsonSave(host_to_builtins(host)),
        )
        try:
            self._manager.save(step, args=arguments, force=True)
        except Exception as error:
            raise self._not_written(error) from error

    def restore(self, abstract_learner: PyTree) -> tuple[int, PyTree, types.HostState] | None:
        """Step, learner and host state of the newest whole checkpoint; None where there is none.

        `abstract_learner` is a tree of jax.ShapeDtypeStruct with the shardings wanted, which may
        be of another mesh than the one that saved. Raises UsageError in one sentence where the
        arrays saved are others than these, or cannot be read.
        """
        self.wait()
        committed, unfinished = steps(self.directory)
        for folder in unfinished:
            logging.warning("Skipping the half-written checkpoint %s.", folder)
        step = hosts.lead(lambda: max(committed, default=None))
        if step is None:
            return None
        self._check(step, abstract_learner)
        host_only = ocp.args.Composite(host=ocp.args.JsonRestore())
        learner_only = ocp.args.Composite(learner=ocp.args.StandardRestore(abstract_learner))
        try:
            host = host_from_builtins(self._manager.restore(step, args=host_only).host)
            learner = self._manager.restore(step, args=learner_only).learner
        except Exception as error:
            raise self._not_readable(step) from error
        _assert_dtypes(learner, abstract_learner)
        return step, learner, host

    def check_room(self, learner: PyTree) -> None:
        """Raise OSError in one sentence where the disk has no room for one more checkpoint."""
        if self._remote:
            return
        needed, free = size(learner), shutil.disk_usage(self.directory).free
        if needed > free:
            raise self._not_written(f"it takes {needed:,} bytes and {free:,} are free")

    def wait(self) -> None:
        """Return when all that was saved is committed; raise what went wrong with it."""
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:
            raise self._not_written(error) from error

    def close(self) -> None:
        """Wait, and release the folder."""
        try:
            self.wait()
        finally:
            self._manager.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _sweep(self) -> None:
        """Before the first save, remove what an earlier process left unfinished."""
        if self._swept:
            return
        hosts.lead(lambda: _remove(steps(self.directory)[1]))
        self._manager.reload()
        self._swept = True

    def _check(self, step: int, abstract_learner: PyTree) -> None:
        """Orbax would cast, or name no array: compare with what is stored before reading it."""
        try:
            stored = _arrays(self._manager.item_metadata(step).learner.tree)
        except Exception as error:
            raise self._not_readable(step) from error
        wanted = _arrays(abstract_learner)
        for name in sorted(stored.keys() | wanted.keys()):
            if stored.get(name) != wanted.get(name):
                raise types.UsageError(
                    f"checkpoint {self.directory / str(step)} has {name} as "
                    f"{stored.get(name, 'nothing')} where this run needs "
                    f"{wanted.get(name, 'nothing')}: run with the model and optimizer it was "
                    "saved with, or in a new workdir"
                )

    def _not_readable(self, step: int) -> types.UsageError:
        folder = self.directory / str(step)
        return types.UsageError(
            f"checkpoint {folder} is damaged and cannot be read: move it away to go on from the "
            "one before it, or start in a new workdir"
        )

    def _not_written(self, error: Exception | str) -> OSError:
        return OSError(
            f"cannot write a checkpoint to {self.directory} ({error}): make room or access there "
            "and give the same command again to go on from the last checkpoint"
        )


def steps(directory: Path) -> tuple[list[int], list[Path]]:
    """Committed steps of a folder of checkpoints, and what holds only a part of one."""
    committed, unfinished = [], []
    parts = ["_CHECKPOINT_METADATA", "learner/_METADATA", "host/metadata"]
    if storage.is_remote(directory):  # where nothing can be renamed, a file says that it is whole
        parts.append("commit_success.txt")
        if not directory.exists():
            return [], []
    for folder in sorted(directory.iterdir()):
        if folder.name.isdecimal():
            if all((folder / part).is_file() for part in parts):
                committed.append(int(folder.name))
            else:
                unfinished.append(folder)
        elif _UNFINISHED in folder.name:
            unfinished.append(folder)
    return committed, unfinished


def size(tree: PyTree) -> int:
    """Bytes of a state's arrays, which are nearly all of a checkpoint."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _remove(folders: Sequence[Path]) -> None:
    for folder in folders:
        epath.Path(folder).rmtree()


def abstract(tree: PyTree) -> PyTree:
    """What `restore` needs to know of a state: shapes, dtypes and where its arrays lie."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), tree)


def host_to_builtins(host: types.HostState) -> dict[str, Any]:
    """The state as dicts, lists, strings and numbers that JSON keeps exactly."""
    return msgspec.to_builtins(host)


def host_from_builtins(builtins: dict[str, Any]) -> types.HostState:
    """The inverse of `host_to_builtins`; msgspec.ValidationError names what does not fit."""
    return msgspec.convert(builtins, types.HostState)


def _arrays(tree: PyTree) -> dict[str, str]:
    """Of each array, by its dotted name, dtype and shape as text: `float32[4,8]`."""
    leaves = ocp.tree.to_flat_dict(tree)
    return {
        ".".join(map(str, path)): f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
        for path, leaf in leaves.items()
        if hasattr(leaf, "dtype")
    }


def _assert_dtypes(learner: PyTree, abstract_learner: PyTree) -> None:
    got, wanted = _arrays(learner), _arrays(abstract_learner)
    for name, form in wanted.items():
        if got.get(name) != form:
            raise ValueError(
                f"{name} came back from the checkpoint as {got.get(name, 'nothing')}, not {form}: "
                "restore it with the version of orbax-checkpoint that saved it"
            )
