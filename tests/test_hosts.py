"""What hosts tell one another, without processes: each host is a thread here."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

import jax
import pytest

from spade_jax import hosts
from spade_jax.hosts import Line, Place
from spade_jax.policy.lockstep import OutOfStep
from spade_jax.types import (
    Arm,
    Design,
    DesignTask,
    Document,
    Episode,
    EpisodeEnd,
    Failure,
    FailureKind,
    Kind,
    Measures,
    Reason,
    StopReason,
    TokenRecord,
    UsageError,
    Verdict,
)
from tests import small_run

Fleet = Callable[[int, Callable[[int], object]], list[object]]


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Runs a function on each of so many hosts; what it returns or raises there, in their order."""
    own = threading.local()

    def run(count: int, work: Callable[[int], object]) -> list[object]:
        meeting, told = threading.Barrier(count, timeout=10), [b""] * count

        def exchange(payload: bytes) -> list[bytes]:
            told[own.index] = payload
            meeting.wait()
            heard = list(told)
            meeting.wait()
            return heard

        monkeypatch.setattr(hosts, "count", lambda: count)
        monkeypatch.setattr(hosts, "index", lambda: own.index)
        monkeypatch.setattr(hosts, "_exchange", exchange)

        def on_host(k: int) -> object:
            own.index = k
            try:
                return work(k)
            except Exception as error:
                return error

        with futures.ThreadPoolExecutor(count) as pool:
            return list(pool.map(on_host, range(count)))

    return run


def test_shares_are_dealt_in_turn_and_keys_stay_together() -> None:
    assert hosts.share(["a", "b", "a", "c", "b", "d"], 2) == [0, 1, 0, 0, 1, 1]
    assert hosts.share(range(5), 3) == [0, 1, 2, 0, 1]
    assert hosts.share([], 3) == []


def test_what_hosts_make_is_in_the_items_order_on_all(fleet: Fleet) -> None:
    """Environments e0 to e2 of two plays in each arm, as play orders them: by arm first."""
    plays = [(arm, e, k) for arm in "ph" for e in ("e0", "e1", "e2") for k in range(2)]
    done: dict[int, list] = {}

    def on_host(k: int) -> list[str]:
        def work(own: list) -> list[str]:
            done[k] = own
            return ["/".join(map(str, each)) for each in own]

        return hosts.divide(plays, work, str, by=lambda each: each[1])

    expected = ["/".join(map(str, each)) for each in plays]
    assert fleet(2, on_host) == [expected, expected]
    assert [each for each in plays if each[1] != "e1"] == done[0]
    assert [each for each in plays if each[1] == "e1"] == done[1]


def test_there_may_be_more_hosts_than_items(fleet: Fleet) -> None:
    assert fleet(3, lambda k: hosts.divide([7], lambda own: [-n for n in own], int)) == [[-7]] * 3
    assert fleet(2, lambda k: hosts.divide([], lambda own: list(own), int)) == [[], []]


def test_the_first_host_of_a_replica_does_its_share(fleet: Fleet) -> None:
    """Five items, four hosts, two of them a replica."""
    done: dict[int, list[int]] = {}

    def on_host(k: int) -> list[int]:
        def work(own: list[int]) -> list[int]:
            done[k] = own
            return [-n for n in own]

        return hosts.divide(range(5), work, int, every=2)

    assert fleet(4, on_host) == [[0, -1, -2, -3, -4]] * 4
    assert done == {0: [0, 2, 4], 1: [], 2: [1, 3], 3: []}


def test_records_arrive_as_they_were(fleet: Fleet) -> None:
    tokens = TokenRecord().read((1, 2)).wrote((3,), (-0.1,), (-1 / 3,))
    task = DesignTask(
        iteration=1,
        slot=2,
        skill="s",
        kind=Kind.GAME,
        document=Document(id="d", text="Bees \N{HONEYBEE} \x00"),
    )
    design = Design(
        task=task, reply="r", stop=StopReason.LENGTH, record=tokens, code=None, first=Reason.PARSE
    )
    measures = Measures(null=0.0, constant=0.1, random=0.2, solution=1.0, changes=1.0)
    verdict = Verdict(reason=Reason.LEAK, message="m", measures=measures, resemblance=0.25)
    episode = Episode(
        environment_id="e",
        arm=Arm.HINTED,
        play=0,
        seed=2**31 - 1,
        turns=(),
        end=EpisodeEnd.FAILED,
        records=(tokens,),
        episode_return=None,
        failure=Failure(phase="step", kind=FailureKind.TIMEOUT, message="slow"),
    )
    for kind, item in ((Design, design), (Verdict, verdict), (Episode, episode)):
        assert fleet(2, lambda k, i=item, t=kind: hosts.divide([i, i], list, t)) == [[item] * 2] * 2
    found = fleet(2, lambda k: hosts.divide([None, "h"], list, str | None))
    assert found == [[None, "h"], [None, "h"]]


def test_where_one_host_raises_all_raise(fleet: Fleet) -> None:
    def fails(error: Exception) -> list[object]:
        def work(own: list[int]) -> list[int]:
            if 1 in own:
                raise error
            return own

        return fleet(3, lambda k: hosts.divide([0, 1, 2], work, int))

    first, own, third = fails(UsageError("lower it"))
    assert type(first) is type(own) is type(third) is UsageError
    assert str(own) == "lower it" and str(first) == str(third) == "host 1: lower it"
    first, own, third = fails(ZeroDivisionError("by zero"))
    assert type(own) is ZeroDivisionError
    assert type(first) is type(third) is ConnectionError
    assert "host 1 failed: by zero" in str(first)


def test_a_host_out_of_step_tells_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has to end: they do not wait for what it says, but in a program of their devices."""

    def fails(own: list[int]) -> list[int]:
        raise OutOfStep("no room")

    monkeypatch.setattr(hosts, "count", lambda: 2)
    monkeypatch.setattr(hosts, "_exchange", lambda payload: pytest.fail("it has told them"))
    with pytest.raises(OutOfStep):
        hosts.divide([1], fails, int)


class Coordinator:
    """The coordinator's store of keys."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def key_value_set_bytes(self, key: str, value: bytes) -> None:
        assert key not in self.held
        self.held[key] = value

    def blocking_key_value_get_bytes(self, key: str, milliseconds: int) -> bytes:
        if key not in self.held:
            time.sleep(0.01)
            raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")
        return self.held[key]

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        return [(key, text.decode()) for key, text in self.held.items() if key.startswith(folder)]

    def key_value_delete(self, folder: str) -> None:
        for key in [key for key in self.held if key.startswith(folder + "/")]:
            del self.held[key]


def test_a_line_of_messages(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """All arrive at both readers, and at most two chapters of them lie with the coordinator."""
    coordinator, held = Coordinator(), []
    monkeypatch.setattr(hosts, "_client", lambda: coordinator)
    messages = [str(n).encode() for n in range(5 * Line.CHAPTER)]

    def on_host(k: int) -> list[bytes]:
        line = Line(0, (1, 2))
        if k:
            return [line.receive() for _ in messages]
        for message in messages:
            line.send(message)
            held.append(len(coordinator.held))
        return messages

    assert fleet(3, on_host) == [messages] * 3
    assert max(held) <= 2 * (Line.CHAPTER + 2)


def test_a_line_ends_where_a_host_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator()
    monkeypatch.setattr(hosts, "_client", lambda: coordinator)
    coordinator.key_value_set_bytes("spade/failed/2", b"no room")
    with pytest.raises(ConnectionError, match="host 2 failed: no room; see what it printed"):
        Line(0, (1,)).receive()


def test_host_0_leads(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "file"

    def write() -> str:
        with path.open("a") as file:
            file.write("x")
        return "written"

    assert fleet(3, lambda k: hosts.lead(write)) == ["written"] * 3
    assert path.read_text() == "x"
    assert [str(e) for e in fleet(2, lambda k: hosts.lead((tmp_path / "none").read_text))][1] == (
        f"host 0 failed: [Errno 2] No such file or directory: '{tmp_path / 'none'}'; see what it "
        "printed"
    )
    assert fleet(2, lambda k: hosts.gather(k * 10, int)) == [[0, 10], [0, 10]]


def test_one_writes_and_the_others_do_as_if(fleet: Fleet, tmp_path: Path) -> None:
    def on_host(k: int) -> bool:
        with hosts.only_first(open, tmp_path / "out", "a") as file:
            file.write("line\n")
            return file.writable() is None

    assert fleet(3, on_host) == [False, True, True]
    assert (tmp_path / "out").read_text() == "line\n"


def test_hosts_that_differ_are_refused(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [1e-5, 1e-5, 2e-5]
    errors = fleet(3, lambda k: hosts.check_alike({"optimizer.lr": rates[k], "seed": 1}))
    assert {str(e) for e in errors} == {
        "host 2 differs from host 0 (optimizer.lr is 2e-05 there and 1e-05 on host 0): start all "
        "hosts with the same command and the same version of the package"
    }
    assert all(isinstance(e, UsageError) for e in errors)
    assert fleet(2, lambda k: hosts.check_alike({"seed": 1})) == [None, None]
    own = iter(("0", "1"))
    monkeypatch.setattr(hosts, "_source", lambda: next(own))
    errors = fleet(2, lambda k: hosts.check_alike({}))
    assert all("differs from host 0 (source is" in str(e) for e in errors)


def test_what_must_be_the_same_is(fleet: Fleet, tmp_path: Path) -> None:
    errors = fleet(2, lambda k: hosts.check_same("the state", {"n": k}))
    assert all("the state is not the same on hosts 1 as on host 0" in str(e) for e in errors)
    assert fleet(2, lambda k: hosts.check_same("the state", {"n": 1})) == [None, None]
    paths = [tmp_path, tmp_path / "elsewhere"]
    errors = fleet(2, lambda k: hosts.check_shared(paths[k]))
    assert all(isinstance(e, UsageError) and "host 1 does not see" in str(e) for e in errors)


def test_one_host_is_told_nothing(tmp_path: Path) -> None:
    items = [3, 1, 2]
    assert hosts.divide(items, lambda own: [own.copy()] * 3, list) == [items] * 3
    assert hosts.gather(5, int) == [5] and hosts.lead(lambda: "done") == "done"
    hosts.check_alike({"seed": 1})
    hosts.check_same("the state", object())
    alone = hosts.joined(None, connect_seconds=1, heartbeat_seconds=1)
    with pytest.raises(ZeroDivisionError), alone:
        hosts.divide([0], lambda own: [1 / n for n in own], float)


JAX = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


@pytest.mark.parametrize(
    ("given", "variables", "expected"),
    [
        (("", -1, -1), (), None),
        (("10.0.0.1:99", 2, 1), (), Place("10.0.0.1:99", 2, 1)),
        (("", -1, -1), ("[::1]:99", "4", "3"), Place("[::1]:99", 4, 3)),
        (("a:99", -1, 0), ("b:1", "4", "3"), Place("a:99", 4, 0)),
        (("auto", -1, -1), (), Place("auto")),
        (("a", 2, 1), (), "the coordinator is 'a' where 2 hosts"),
        (("", 2, 1), (), "the coordinator is '' where 2 hosts"),
        (("a:99", 2, 2), (), "host 2 of 2"),
        (("a:99", -1, -1), (), "host -1 of -1"),
        (("a:99", -1, 0), ("", "four"), "JAX_NUM_PROCESSES is 'four'"),
    ],
)
def test_where_a_host_finds_its_place(
    given: tuple[str, int, int],
    variables: tuple[str, ...],
    expected: Place | str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in JAX:
        monkeypatch.delenv(name, raising=False)
    for name, value in zip(JAX, variables, strict=False):
        monkeypatch.setenv(name, value)
    if isinstance(expected, str):
        with pytest.raises(UsageError) as caught:
            hosts.find_place(*given)
        assert expected in str(caught.value)
    else:
        assert hosts.find_place(*given) == expected


@pytest.mark.parametrize("host", [0, 1])
def test_hosts_that_do_not_meet_say_where(host: int) -> None:
    """Nobody is at the coordinator's address or, on host 0, nobody comes."""
    address = f"127.0.0.1:{small_run.free_port()}"
    code = (
        "from spade_jax import hosts\n"
        f"place = hosts.Place({address!r}, 2, {host})\n"
        "with hosts.joined(place, connect_seconds=1, heartbeat_seconds=10): pass"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1
    host_and_port = address.replace(":", ", port ")
    assert f"host {host} of 2 could not meet all others at the coordinator, {host_and_port}, " in (
        done.stderr
    )
