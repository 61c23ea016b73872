"""Ten thousand episodes, one in twenty hostile: nothing grows."""

import os
from pathlib import Path

import pytest

from spade_jax.envs.sandbox import Reset, Sandbox, Step
from spade_jax.types import Failure, FailureKind, Kind, StepResult
from tests.envs.programs import game
from tests.envs.witness import descendants

EPISODES, AT_ONCE, HOSTILE = 10_000, 20, 20
WARM = 1_000  # episodes after which everything has its size
GROWTH = 4 << 20  # bytes that may come and go
PAGE = os.sysconf("SC_PAGE_SIZE")
HOSTILES = {
    game(step="exec('while 1: pass')"): FailureKind.TIMEOUT,
    game(step="bytes(1 << 33)"): FailureKind.MEMORY,
    game(step="1 / 0"): FailureKind.ERROR,
    game(step="return None"): FailureKind.CONTRACT,
    game(step="import os; os._exit(0)"): FailureKind.CRASH,
    game(step="import os; os.write(3, b'garbage' * 9)"): FailureKind.PROTOCOL,
    game(
        step="import os; os.write(3, b'half')\n[print('x' * 9999) for _ in range(999)]\nos._exit(1)"
    ): FailureKind.CRASH,
    game(top="import os", reset="[os.close(n) for n in range(4)]"): FailureKind.CRASH,
}


def sizes(processes: set[int]) -> dict[int, int]:
    """Resident bytes of this process and of the fork server's."""
    return {
        pid: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
        for pid in (os.getpid(), *processes)
    }


@pytest.mark.slow
def test_nothing_grows() -> None:
    hostile = list(HOSTILES.items())
    good = game()
    before = descendants(os.getpid())
    with Sandbox(step_seconds=1.0, memory_mb=64) as box:
        seen = []
        for n in range(0, EPISODES, AT_ONCE):
            code, kind = hostile[n // AT_ONCE % len(hostile)]
            codes = [code] * (AT_ONCE // HOSTILE) + [good] * (AT_ONCE - AT_ONCE // HOSTILE)
            instances = [box.open(code, Kind.GAME) for code in codes]
            box.exchange([(instance, Reset(n)) for instance in instances])
            answers = box.exchange([(instance, Step("x")) for instance in instances])
            assert isinstance(answers[0], Failure) and answers[0].kind is kind, answers[0]
            assert answers[1:] == [StepResult(observation="got x")] * (AT_ONCE - 1)
            box.close_instances(instances)
            if n in (WARM, EPISODES - AT_ONCE):
                processes = descendants(os.getpid()) - before
                seen.append((len(os.listdir("/proc/self/fd")), processes, sizes(processes)))
    (files, processes, warm), (*last, full) = seen
    assert last == [files, processes]
    assert {pid for pid, size in full.items() if size > warm[pid] + GROWTH} == set()
    assert descendants(os.getpid()) == before
