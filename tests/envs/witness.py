"""What attacks aim at, with checks that nothing of it was touched."""

from __future__ import annotations

import dataclasses
import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.envs.attacks import World

PATIENCE = 30.0  # seconds that a test waits for what must happen, before it fails
SECRET = "SPADE_SECRET"  # environment variable
_ELSEWHERE = ("/", "/tmp", "/dev/shm", os.path.dirname(os.__file__))


def descendants(root: int) -> set[int]:
    """Every live process below `root`."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/stat", "rb", buffering=0) as file:
                    state, parent = file.read().rpartition(b")")[2].split(maxsplit=2)[:2]
            except OSError:
                continue
            if state != b"Z":
                parents[int(entry)] = int(parent)
    found, frontier = set(), {root}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found


def wait_for_end(pid: int) -> bool:
    """Whether a process that is no child of ours ends."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], PATIENCE)[0])
    finally:
        os.close(descriptor)


def furnish(folder: Path, secret: str) -> None:
    """Fill a folder with files for everybody to read, change and remove."""
    folder.mkdir()
    (folder / "canary").write_text(secret)
    (folder / "module.py").write_text(f"x = {secret!r}\n")
    (folder / "link").symlink_to(folder / "canary")
    (folder / "empty").mkdir()
    for path in (folder, folder / "empty", folder / "canary", folder / "module.py"):
        path.chmod(0o777 if path.is_dir() else 0o666)


def contents(folder: Path) -> dict[str, tuple]:
    """All that can be seen of a folder."""
    seen = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        seen[path.name] = (status.st_mode, status.st_uid, status.st_mtime_ns, data)
    return seen


@dataclasses.dataclass
class Witness:
    """A canary, listeners, another process of the same user, and a secret that all of them hold."""

    world: World
    secret: str
    _listeners: list[socket.socket]
    _neighbour: subprocess.Popen
    _before: dict[str, tuple] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._before = contents(Path(self.world.folder))

    def check(self, *texts: object) -> None:
        """That nothing was touched, and that no text holds the secret."""
        assert contents(Path(self.world.folder)) == self._before, "the canary's folder has changed"
        for folder in (*_ELSEWHERE, os.getcwd()):
            made = [name for name in os.listdir(folder) if self.world.name in name]
            assert not made, f"{made} appeared in {folder}"
        assert not select.select(self._listeners, [], [], 0)[0], "a listener was called"
        assert self._neighbour.poll() is None, "another process of the user has ended"
        assert not [text for text in texts if self.secret in str(text)], "the secret came out"


@contextmanager
def witness() -> Iterator[Witness]:
    """Set everything up, where no right of the file system stands before it."""
    secret = f"spade-secret-{secrets.token_hex(16)}"
    with ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spade-jax-host-")))
        top.chmod(0o755)
        folder = top / "folder"
        furnish(folder, secret)
        abstract, unix = secrets.token_hex(8), str(folder / "socket")
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = tcp.getsockname()[1]
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", port))
        listeners = [tcp, udp]
        for address in (unix, f"\0{abstract}"):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen()
            if address == unix:
                os.chmod(unix, 0o777)
            listeners.append(listener)
        neighbour = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", "import time; time.sleep(1e6)"],
                env={**os.environ, SECRET: secret},
                start_new_session=True,
            )
        )
        stack.callback(neighbour.kill)
        source = sys.modules["spade_jax.envs.sandbox"].__file__
        name = f"made-{secrets.token_hex(8)}"
        world = World(str(folder), source, name, neighbour.pid, port, unix, abstract)
        yield Witness(world, secret, listeners, neighbour)
