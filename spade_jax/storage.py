"""Places that are no folder of this machine: file://, gs:// and whatever else fsspec opens.

Object stores replace files whole and cannot append to them. So a run writes its files, all but the
checkpoints, into a folder of this machine, and copies there what has changed before each
checkpoint is saved: whatever checkpoint a run goes on from, the lines up to it are there, and later
ones it cuts. A corpus is copied from there, since a run reads all of it at its start anyhow.
Checkpoints go to their place by Orbax itself, which knows folders and gs:// alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import posixpath
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

import fsspec
from etils import epath

from spade_jax.types import UsageError

CHECKPOINTS = "checkpoints"  # in a workdir
_PROBE = ".writable-"  # begins the name of a file that is there for a moment
_URL = re.compile(r"[A-Za-z][\w+.\-]*://")
_INSTALL = {"gs": "gcs", "gcs": "gcs"}  # extra of setup.py by scheme


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether the path names a place that is no folder of this machine."""
    return bool(_URL.match(os.fspath(path)))


def local(path: str | os.PathLike[str]) -> str:
    """The path, file://PATH as PATH."""
    text = os.fspath(path)
    return "/" + text[7:].lstrip("/") if text.startswith("file://") else text


def absolute(path: str | os.PathLike[str]) -> Any:
    """The path as what Orbax takes: with pathlib's methods wherever it lies."""
    return epath.Path(os.fspath(path)) if is_remote(path) else Path(path).absolute()


@dataclasses.dataclass(frozen=True)
class Workdir:
    """Where a run writes. `keep` puts what is in `folder` where it stays.

    Where that is the folder itself, it is `shared` by all hosts of the run.
    """

    name: str  # as it was given
    folder: Path
    checkpoints: PurePath  # with pathlib's methods
    keep: Callable[[], None]
    shared: bool


@contextlib.contextmanager
def open_workdir(name: str | os.PathLike[str]) -> Iterator[Workdir]:
    """The workdir of that name, with what an earlier process left there.

    Raises UsageError where it cannot be read and written.
    """
    name = local(name)
    if not is_remote(name):
        yield Workdir(name, Path(name), Path(name) / CHECKPOINTS, lambda: None, shared=True)
        return
    checkpoints = checkpoint_folder(name)
    with tempfile.TemporaryDirectory(prefix="spade-jax-") as folder:
        mirror = Mirror(name, Path(folder))
        mirror.fetch()
        try:
            yield Workdir(name, Path(folder), checkpoints, mirror.copy, shared=False)
        except UsageError as error:
            raise UsageError(str(error).replace(folder, name)) from error


def checkpoint_folder(name: str) -> PurePath:
    """Where the checkpoints of a remote workdir lie."""
    if not name.startswith("gs://"):
        raise UsageError(
            f"the workdir {name} cannot hold checkpoints, which Orbax writes into a folder of this "
            "machine or to gs:// only; choose another --workdir"
        )
    return absolute(posixpath.join(name, CHECKPOINTS))


class Mirror:
    """A folder of this machine and its copy in a remote place."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder
        self._system, root = open_system(name, "the workdir")
        self._root = root.rstrip("/")
        self._copied: dict[Path, tuple[int, int]] = {}  # time and size of what lies there

    def fetch(self) -> None:
        """Copy what is there, checkpoints aside, into the folder; UsageError where it cannot be."""
        probe = f"{self._root}/{_PROBE}{secrets.token_hex(4)}"  # hosts may be at it at once
        try:
            self._system.pipe_file(probe, b"")
            self._system.rm_file(probe)
            for path in self._system.find(self._root):
                inner = posixpath.relpath(path, self._root)
                if not inner.startswith((CHECKPOINTS + "/", _PROBE)):
                    target = self._folder / inner
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self._system.get_file(path, str(target))
        except Exception as error:  # there are as many kinds as stores
            raise UsageError(
                f"the workdir {self._name} cannot be read and written ({_reason(error)}); make the "
                "bucket and get the right to write there, or choose another --workdir"
            ) from error
        self._copied = dict(self._files())

    def copy(self) -> None:
        """Copy there what has changed since; OSError in one sentence where that fails."""
        for path, state in self._files():
            if self._copied.get(path) != state:
                inner = path.relative_to(self._folder).as_posix()
                try:
                    self._system.put_file(str(path), f"{self._root}/{inner}")
                except Exception as error:
                    raise OSError(
                        f"cannot copy {inner} to {self._name} ({_reason(error)}): mend the access "
                        "and give the same command again to go on from the last checkpoint"
                    ) from error
                self._copied[path] = state

    def _files(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        for path in sorted(self._folder.rglob("*")):
            if path.is_file():
                status = path.stat()
                yield path, (status.st_mtime_ns, status.st_size)


@contextlib.contextmanager
def fetched(pattern: str, suffixes: tuple[str, ...], what: str) -> Iterator[str]:
    """A local path of what a remote one names: a file, or a folder of the files with these
    suffixes that lie in a folder or match a pattern, in the same order.

    Raises UsageError, with `what` naming the path, where they cannot be read.
    """
    system, root = open_system(pattern, what)
    with tempfile.TemporaryDirectory(prefix="spade-jax-") as folder:
        try:
            single = not system.isdir(root) and not re.search(r"[*?\[]", root)
            if single:
                paths, base = [root], posixpath.dirname(root)
            else:
                found = system.ls(root, detail=False) if system.isdir(root) else system.glob(root)
                paths = sorted(p for p in found if p.endswith(suffixes) and system.isfile(p))
                base = posixpath.commonpath([posixpath.dirname(p) for p in paths] or [root])
            for path in paths:
                target = Path(folder, posixpath.relpath(path, base))
                target.parent.mkdir(parents=True, exist_ok=True)
                system.get_file(path, str(target))
        except Exception as error:
            raise UsageError(
                f"{what} {pattern} cannot be read ({_reason(error)}); check the path and the right "
                "to read there"
            ) from error
        here = str(target) if single else os.path.join(folder, "**") if paths else folder
        try:
            yield here
        except UsageError as error:
            remote = system.unstrip_protocol(base)
            raise UsageError(str(error).replace(here, pattern).replace(folder, remote)) from error


def open_system(name: str, what: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of a remote path, and the path in it."""
    try:
        return fsspec.core.url_to_fs(name)
    except ImportError as error:
        extra = _INSTALL.get(name.partition(":")[0])
        remedy = f"run pip install -e '.[{extra}]' in the repository" if extra else "install that"
        raise UsageError(f"{what} {name} needs a package ({_reason(error)}); {remedy}") from None
    except ValueError as error:
        raise UsageError(
            f"{what} {name} is of no kind that fsspec opens ({_reason(error)}); give a folder of "
            "this machine or a gs:// path"
        ) from None


def _reason(error: Exception) -> str:
    """One line; what stores say is often no more than a name."""
    said = str(error).strip().splitlines()[:1]
    return ": ".join([type(error).__name__, *said]).rstrip(".")
