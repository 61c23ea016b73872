"""Several hosts, one run: who does which share, what all learn of it, and failing together.

Each host is a process with devices of its own. Between two updates hosts work apart, or those of a
replica as one; where they need what others have made, all of them call the same function of this
module, in the same order. What one raises there, all raise, but for an OutOfStep, which ends its
host and so the others. A run of one host goes through none of this: `divide` and the like then call
their work and return.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import jax
import msgspec
import numpy as np
from jax._src import cloud_tpu_init, distributed
from jax.experimental import multihost_utils

from spade_jax import __version__
from spade_jax.policy.lockstep import OutOfStep
from spade_jax.types import UsageError

Item = TypeVar("Item")
Made = TypeVar("Made")

AUTO = "auto"
SMALL = 2**12  # bytes that hosts tell one another by the coordinator; more goes by the devices
POLL_MS = 1_000  # between two looks for hosts that have failed
_calls = itertools.count()


def count() -> int:
    """Number of hosts."""
    return jax.process_count()


def index() -> int:
    """Number of this one, from 0."""
    return jax.process_index()


def leads() -> bool:
    """Whether this is the host that writes files and prints."""
    return index() == 0


def say(text: str) -> None:
    """Print it, once for all hosts."""
    if leads():
        print(text, flush=True)


# -- joining ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place:
    """Which of how many hosts this is, and where host 0 is reached; "auto" asks the cluster."""

    coordinator: str
    hosts: int = 0
    host: int = 0


def find_place(coordinator: str, hosts: int, host: int) -> Place | None:
    """The place that is given, by -1 and "" not, or else by JAX's variables; None: alone.

    Raises UsageError where it is given in part, or cannot be.
    """
    given = os.environ.get
    coordinator = coordinator or given("JAX_COORDINATOR_ADDRESS", "")
    if coordinator == AUTO:
        return Place(AUTO)
    try:
        hosts = int(given("JAX_NUM_PROCESSES", "-1")) if hosts == -1 else hosts
        host = int(given("JAX_PROCESS_ID", "-1")) if host == -1 else host
    except ValueError:
        raise UsageError(
            f"JAX_NUM_PROCESSES is {given('JAX_NUM_PROCESSES')!r} and JAX_PROCESS_ID "
            f"{given('JAX_PROCESS_ID')!r}, but both are numbers; set them, or --hosts and --host"
        ) from None
    if not coordinator and hosts == host == -1:
        return Place(AUTO) if cloud_tpu_init.running_in_cloud_tpu_vm else None
    _, colon, port = coordinator.rpartition(":")
    if not (colon and port.isdecimal()):
        raise UsageError(
            f"the coordinator is {coordinator!r} where {hosts} hosts are to meet; give "
            "--coordinator=ADDRESS:PORT, with the address of host 0 and a free port there"
        )
    if not 0 <= host < hosts:
        raise UsageError(
            f"this is host {host} of {hosts}, but hosts are counted from 0; give each "
            "--hosts=COUNT and its own --host=INDEX"
        )
    return Place(coordinator, hosts, host)


@contextlib.contextmanager
def joined(
    place: Place | None, *, connect_seconds: float, heartbeat_seconds: int
) -> Iterator[None]:
    """Be one of the hosts of a run in the body; before JAX has used a device.

    A host that cannot join within `connect_seconds` says so and exits with 1. One that dies is
    missed after `heartbeat_seconds`, which ends the others with JAX's own message. One that raises
    tells the others, and waits up to as long again for them to end too.
    """
    if place is None or not _join(place, connect_seconds, heartbeat_seconds):
        yield
        return
    try:
        yield
    except BaseException as error:
        said = str(error) or type(error).__name__
        if isinstance(error, Exception) and not isinstance(error, UsageError):
            traceback.print_exception(error)  # now: to wait in vain for the others ends in an abort
        print(f"host {index()} ends: {said}", file=sys.stderr, flush=True)
        _client().key_value_set(f"spade/failed/{index()}", said, allow_overwrite=True)
        raise
    finally:
        jax.distributed.shutdown()


def _join(place: Place, connect_seconds: float, heartbeat_seconds: int) -> bool:
    """Meet the others; whether this is a cluster at all, where that is only to be found out."""
    jax.config.update("jax_enable_preemption_service", False)  # signals are `train`'s to catch
    limit = threading.Timer(connect_seconds, _give_up, (place, connect_seconds))
    limit.daemon = True
    settings: dict[str, Any] = {
        "initialization_timeout": int(connect_seconds) + 60,  # JAX's own ends in an abort
        "heartbeat_timeout_seconds": heartbeat_seconds,
        "shutdown_timeout_seconds": heartbeat_seconds,
    }
    if place.coordinator != AUTO:
        settings |= {
            "coordinator_address": place.coordinator,
            "num_processes": place.hosts,
            "process_id": place.host,
            "cluster_detection_method": "deactivate",
        }
    limit.start()
    try:
        jax.distributed.initialize(**settings)
    except ValueError:
        if place.coordinator == AUTO and cloud_tpu_init.running_in_cloud_tpu_vm:
            return False
        raise UsageError(
            "--coordinator=auto finds no cluster here; give --coordinator=ADDRESS:PORT, "
            "--hosts=COUNT and --host=INDEX"
        ) from None
    finally:
        limit.cancel()
    return True


def _give_up(place: Place, seconds: float) -> NoReturn:
    address, _, port = place.coordinator.rpartition(":")
    where = f"{address or place.coordinator}, port {port}," if address else "the cluster's address"
    print(
        f"error: host {place.host} of {place.hosts} could not meet all others at the coordinator, "
        f"{where} within {seconds:g} s; see that each host runs this command with its own --host "
        "and that nothing closes the port, or raise --config.hosts.connect_seconds",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)  # the main thread is in a call that nothing else ends


def check_alike(fields: Mapping[str, object]) -> None:
    """UsageError, on all hosts, where one runs another config or program than host 0."""
    own = {"version": __version__, "source": _source(), "jax": jax.__version__, **fields}
    told = gather({name: str(value) for name, value in own.items()}, dict[str, str])
    for k, theirs in enumerate(told):
        names = dict.fromkeys([*told[0], *theirs])
        different = [
            f"{name} is {theirs.get(name, 'absent')} there and {told[0].get(name, 'absent')} on "
            "host 0"
            for name in names
            if theirs.get(name) != told[0].get(name)
        ]
        if different:
            raise UsageError(
                f"host {k} differs from host 0 ({'; '.join(different)}): start all hosts with the "
                "same command and the same version of the package"
            )


def check_same(what: str, value: object) -> None:
    """RuntimeError, on all hosts, where the value is another on one of them than on host 0."""
    if count() > 1:
        told = gather(hashlib.sha256(msgspec.msgpack.encode(value)).hexdigest(), str)
        other = [k for k, mark in enumerate(told) if mark != told[0]]
        if other:
            raise RuntimeError(
                f"{what} is not the same on hosts {', '.join(map(str, other))} as on host 0: "
                "something that all derive from the same records was derived otherwise"
            )


def check_shared(path: Path) -> None:
    """UsageError, on all hosts, where one does not see a file that host 0 has written."""
    blind = [k for k, sees in enumerate(gather(path.exists(), bool)) if not sees]
    if blind:
        raise UsageError(
            f"host {blind[0]} does not see {path}, which host 0 has written; give --workdir a "
            "folder that all hosts share"
        )


def _source() -> str:
    """Hash of the package's modules."""
    root, mark = Path(__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        mark.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return mark.hexdigest()[:16]


# -- sharing ----------------------------------------------------------------------------------


def divide(
    items: Sequence[Item],
    work: Callable[[list[Item]], Sequence[Made]],
    kind: Any,
    by: Callable[[Item], Hashable] | None = None,
    every: int = 1,
) -> list[Made]:
    """What `work` makes of the items, one thing of type `kind` each, every host doing a share.

    Items of one `by` go to the same host. The shares depend on the items alone, and what comes of
    them is in the items' order. Of each `every` neighbouring hosts the first does the share of all.
    """
    items = list(items)
    if count() == 1:
        return list(work(items))
    keys = [by(item) if by else i for i, item in enumerate(items)]
    owners = [every * k for k in share(keys, count() // every)]
    own = [item for item, owner in zip(items, owners, strict=True) if owner == index()]
    parts = [iter(part) for part in _each(lambda: list(work(own)), list[kind])]
    return [next(parts[owner]) for owner in owners]


def share(keys: Sequence[Hashable], hosts: int) -> list[int]:
    """The host of each key: keys in the order of their first appearance, the hosts in turn."""
    turns = {key: i % hosts for i, key in enumerate(dict.fromkeys(keys))}
    return [turns[key] for key in keys]


def gather(value: Made, kind: Any) -> list[Made]:
    """The value of every host, in their order."""
    return [value] if count() == 1 else _each(lambda: value, kind)


def lead(work: Callable[[], Made]) -> Made:
    """What `work` returns on host 0, which alone does it: plain data."""
    return work() if count() == 1 else _each(lambda: work() if leads() else None, Any)[0]


def only_first(
    make: Callable[..., contextlib.AbstractContextManager[Made]], *args: Any, **named: Any
) -> contextlib.AbstractContextManager[Made]:
    """What `make` opens on host 0; elsewhere a stand-in whose every method does nothing."""
    return make(*args, **named) if leads() else contextlib.nullcontext(_Silent())


class _Silent:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **named: None


def _each(work: Callable[[], Made], kind: Any) -> list[Made]:
    """What `work` returns on every host; where it raises on one, all raise."""
    failure, told = None, ("", "", None)
    try:
        told = ("", "", work())
    except OutOfStep:
        raise
    except Exception as error:
        failure = error
        told = ("usage" if isinstance(error, UsageError) else "other", str(error), None)
    sent = _exchange(msgspec.msgpack.encode(told))
    if failure is not None:
        raise failure
    heard = [msgspec.msgpack.decode(text, type=tuple[str, str, kind | None]) for text in sent]
    for k, (wrong, message, _) in enumerate(heard):
        if wrong == "usage":
            raise UsageError(f"host {k}: {message}")
        if wrong:
            raise ConnectionError(f"host {k} failed: {message or wrong}; see what it printed")
    return [value for *_, value in heard]


# -- telling ----------------------------------------------------------------------------------


def _client() -> Any:
    return distributed.global_state.client


def _exchange(payload: bytes) -> list[bytes]:
    """The payload of every host, once all have come here.

    The coordinator passes on how long each is, which waits for as long as it takes, and what is
    small; only then do the devices meet, whose collectives may have limits of time.
    """
    client, call = _client(), next(_calls)
    head = len(payload).to_bytes(8, "big")
    client.key_value_set_bytes(f"spade/{call}/{index()}", head + payload[:SMALL])
    told = [_wait_for(f"spade/{call}/{k}") for k in range(count())]
    if call:  # all have read the one before
        client.key_value_delete(f"spade/{call - 1}/{index()}")
    lengths = [int.from_bytes(text[:8], "big") for text in told]
    if max(lengths) <= SMALL:
        return [text[8:] for text in told]
    padded = np.zeros(1 << (max(lengths) - 1).bit_length(), np.uint8)  # few sizes, few programs
    padded[: len(payload)] = np.frombuffer(payload, np.uint8)
    rows = multihost_utils.process_allgather(padded)
    return [row[:n].tobytes() for row, n in zip(rows, lengths, strict=True)]


class Line:
    """Messages from one host to some others, in their order; each of these has a line of its own.

    They lie with the coordinator until all have read them, a chapter at a time.
    """

    CHAPTER = 32

    def __init__(self, sender: int, readers: Sequence[int]) -> None:
        self._name, self._readers = f"spade/line/{sender}", readers
        self._count = 0

    def send(self, message: bytes) -> None:
        """Wait for nobody, but for those who have not read the chapter before the last one."""
        chapter, place = divmod(self._count, self.CHAPTER)
        if place == 0 and chapter > 1:
            for k in self._readers:
                _wait_for(f"{self._name}/{chapter - 2}/read/{k}")
            _client().key_value_delete(f"{self._name}/{chapter - 2}")
        _client().key_value_set_bytes(f"{self._name}/{chapter}/{place}", message)
        self._count += 1

    def receive(self) -> bytes:
        """The next message, once it is there; ConnectionError where a host has failed meanwhile."""
        chapter, place = divmod(self._count, self.CHAPTER)
        message = _wait_for(f"{self._name}/{chapter}/{place}")
        if place == self.CHAPTER - 1:
            _client().key_value_set_bytes(f"{self._name}/{chapter}/read/{index()}", b"")
        self._count += 1
        return message


def _wait_for(key: str) -> bytes:
    """What a host says; ConnectionError where one of them has failed meanwhile."""
    client = _client()
    while True:
        try:
            return client.blocking_key_value_get_bytes(key, POLL_MS)
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        for name, message in client.key_value_dir_get("spade/failed/"):
            k = name.rpartition("/")[2]
            raise ConnectionError(f"host {k} failed: {message}; see what it printed")
