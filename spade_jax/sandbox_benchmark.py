"""Speed of the sandbox beside threads of one process, on this machine, in one run.

    python -m spade_jax.sandbox_benchmark --seconds=3

Steps are those of a game that does next to nothing, so that what is measured is the way there and
back. Threads hold no program to anything: they are what isolation is compared with.
"""

from __future__ import annotations

import importlib.util
import queue
import statistics
import threading
import time
from collections.abc import Sequence

from absl import flags

from spade_jax.envs.sandbox import Instance, Reset, Sandbox, Step
from spade_jax.program import run_program
from spade_jax.types import Failure, FailureKind, Kind

FLAGS = flags.FLAGS
GAME = """
class EchoEnv:
    def reset(self, seed=None):
        return "go", {}

    def step(self, action):
        return "got " + action, 0.0, False, False, {}
"""
SPIN = GAME.replace('return "got "', 'while True: pass\n        return "got "')
FLAVOURS = {  # what each program's fork server has imported
    "light": GAME,
    "numpy": "import numpy\n" + GAME,
    "math": "import numpy, sympy\n" + GAME,
}
KILLS = 50


def main() -> None:
    seconds = FLAGS.seconds
    with Sandbox(max_instances=512) as box:
        print(f"tier {box.confinement.tier}")
        for n in (1, 16, 128):
            show(f"steps, {n} instances", *stepping(box, [GAME] * n, seconds))
        for n in (1, 16, 128):
            show(f"steps, {n} threads of one process", *threads(n, seconds))
        for name, code in FLAVOURS.items():
            if name != "math" or importlib.util.find_spec("sympy"):
                print(f"{f'new instances, {name}':<40}{fresh(box, code, seconds):>10,.0f} /s")
    late = kills()
    print(
        f"{'a hung step: answered after deadline':<40}{statistics.median(late) * 1e3:>10.2f} ms"
        f"   p99 {percentile(late, 99) * 1e3:.2f} ms"
    )
    with Sandbox(step_seconds=seconds + 30, max_instances=512) as box:
        show("steps, 16 instances beside 32 spinning", *beside(box, seconds))


def stepping(box: Sandbox, codes: Sequence[str], seconds: float) -> tuple[float, list[float]]:
    """Steps per second with one call of each instance always under way, and each call's wait."""
    instances = [box.open(code, Kind.GAME, trusted=True) for code in codes]
    box.exchange([(instance, Reset(1)) for instance in instances])
    rate, waits = drive(box, instances, seconds)
    box.close_instances(instances)
    return rate, waits


def drive(box: Sandbox, instances: Sequence[Instance], seconds: float) -> tuple[float, list[float]]:
    waits: list[float] = []
    began = time.perf_counter()
    end = began + seconds

    def call(instance: Instance) -> None:
        sent = time.perf_counter()

        def done(answer: object) -> None:
            now = time.perf_counter()
            waits.append(now - sent)
            if isinstance(answer, Failure):
                raise RuntimeError(f"a step of the benchmark failed: {answer.message}")
            if now < end:
                call(instance)

        box.submit(instance, Step("x"), done)

    for instance in instances:
        call(instance)
    while any(instance.busy for instance in instances):
        box.poll()
    return len(waits) / (time.perf_counter() - began), waits


def threads(n: int, seconds: float) -> tuple[float, list[float]]:
    """The same with one thread and two queues for each instance, all in this process."""
    namespace: dict = {}
    exec(compile(GAME, "<game>", "exec"), namespace)
    answers: queue.SimpleQueue = queue.SimpleQueue()
    inboxes = [queue.SimpleQueue() for _ in range(n)]

    def work(i: int) -> None:
        game = namespace["EchoEnv"]()
        game.reset(seed=1)
        while (action := inboxes[i].get()) is not None:
            answers.put((i, game.step(action)))

    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(n)]
    for worker in workers:
        worker.start()
    waits, sent = [], [0.0] * n
    began = time.perf_counter()
    for i in range(n):
        sent[i] = time.perf_counter()
        inboxes[i].put("x")
    while time.perf_counter() < began + seconds:
        i, _ = answers.get()
        now = time.perf_counter()
        waits.append(now - sent[i])
        sent[i] = now
        inboxes[i].put("x")
    rate = len(waits) / (time.perf_counter() - began)
    for inbox in inboxes:
        inbox.put(None)
    for worker in workers:
        worker.join()
    return rate, waits


def fresh(box: Sandbox, code: str, seconds: float) -> float:
    """Instances per second from fork to kill: compile, construct, reset."""
    batch = 16
    made, began = -batch, 0.0
    while made <= 0 or time.perf_counter() < began + seconds:
        instances = [box.open(code, Kind.GAME, trusted=True) for _ in range(batch)]
        box.exchange([(instance, Reset(1)) for instance in instances])
        box.close_instances(instances)
        made += batch
        if made == 0:  # the first batch starts the fork server
            began = time.perf_counter()
    return made / (time.perf_counter() - began)


def kills() -> list[float]:
    """Seconds from the deadline of a hung step to its answer, when the process is gone."""
    limit = 0.05
    late = []
    with Sandbox(step_seconds=limit) as box:
        for _ in range(KILLS):
            one = box.open(SPIN, Kind.GAME)
            box.exchange([(one, Reset(1))])
            began = time.perf_counter()
            [failure] = box.exchange([(one, Step("x"))])
            late.append(time.perf_counter() - began - limit)
            assert failure.kind is FailureKind.TIMEOUT
    return late


def beside(box: Sandbox, seconds: float) -> tuple[float, list[float]]:
    """Steps of good instances while instances that were not validated spin."""
    good = [box.open(GAME, Kind.GAME, trusted=True) for _ in range(16)]
    spinning = [box.open(SPIN, Kind.GAME) for _ in range(32)]
    box.exchange([(instance, Reset(1)) for instance in (*good, *spinning)])
    for instance in spinning:
        box.submit(instance, Step("x"), lambda answer: None)
    rate, waits = drive(box, good, seconds)
    box.close_instances([*good, *spinning])
    return rate, waits


def show(what: str, rate: float, waits: Sequence[float]) -> None:
    print(
        f"{what:<40}{rate:>10,.0f} /s   p50 {percentile(waits, 50) * 1e6:,.0f} us"
        f"   p99 {percentile(waits, 99) * 1e6:,.0f} us"
    )


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))]


if __name__ == "__main__":
    flags.DEFINE_float("seconds", 3.0, "Seconds of each measurement.", lower_bound=0.1)
    run_program(main)
