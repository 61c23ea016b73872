"""How fast the loop is on this machine, stage by stage, beside what its parts reach alone.

    python -m spade_jax.benchmark --config=tiny

Times are medians, taken when two epochs have compiled what they need. Nothing is kept on disk.
"""

from __future__ import annotations

from absl import flags

from spade_jax.program import run_program

if __name__ == "__main__":  # before all else, so that --help needs no JAX
    flags.DEFINE_integer("epochs", 3, "Epochs of environments to measure.", lower_bound=1)
    flags.DEFINE_bool("json", False, "Print one JSON object in place of the table.")
    run_program("spade_jax.benchmark", config="tiny")

import collections
import dataclasses
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from ml_collections import config_dict

import spade_jax
from spade_jax import health, measures, record, train
from spade_jax import run as run_setup
from spade_jax.checkpoint import Checkpoints
from spade_jax.design.fixed_pool import bundled_pool
from spade_jax.envs import validation
from spade_jax.envs.sandbox import Reset, Step
from spade_jax.learn import batching, step
from spade_jax.learn.step import LearnerState
from spade_jax.measures import Made
from spade_jax.policy.sampler import Sampler, Work
from spade_jax.policy.sampling import Sampling
from spade_jax.run import Run
from spade_jax.types import Environment, HostState, Role, TokenRecord

FLAGS = flags.FLAGS

WARM_UP = 2  # epochs that are not measured
REPEATS = 5  # of the measurement of a part alone


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured number; `alone` is what the same part reaches by itself in this run."""

    name: str
    value: float
    unit: str
    alone: float | None = None


@dataclasses.dataclass(frozen=True)
class Pass:
    """One measured iteration: seconds by stage, what it made, what sampler and learner did."""

    seconds: dict[str, float]
    made: Made
    work: Work
    learning_s: float  # of the device in updates


def process_start() -> float:
    """When this process began, on the clock of `time.perf_counter`."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.perf_counter() - age


def median_seconds(work: Callable[[], object]) -> float:
    """Median time of a call that has been made before."""
    work()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


# -- the loop ---------------------------------------------------------------------------------


def measure(c: config_dict.ConfigDict, epochs: int, began: float) -> list[Figure]:
    """Every figure, in the order of the table; `began` is when the user started to wait."""
    # More than are met: the last iteration is another.
    c.iterations = (WARM_UP + epochs + 1) * c.design.regenerate_every
    with run_setup.set_up(c) as (run, state), tempfile.TemporaryDirectory() as name:
        evaluating = time.perf_counter()
        train.evaluate(run, state, Path(name), 0)
        evaluated = time.perf_counter() - evaluating
        state, host, first = iterate(run, state, HostState())
        if host.pool:
            started = time.perf_counter() - began
            return [
                Figure("start to first iteration finished", started, "s"),
                Figure("of which held-out evaluation", evaluated, "s"),
                *measure_loop(run, state, host, epochs, Path(name)),
            ]
    note = "no design was valid, so a fixed pool of bundled environments is played"
    print(note, file=sys.stderr)
    c.environments.source, c.environments.size = "fixed", 4 * c.design.num_envs
    return measure(c, epochs, began + first.seconds["iteration"])


def iterate(run: Run, state: LearnerState, host: HostState) -> tuple[LearnerState, HostState, Pass]:
    """One iteration of training with its times."""
    run.sampler.work, learning = Work(), run.learner.device_s
    with run.timer.stage("iteration"):
        state, host, made = train.iterate(run, state, host)
        jax.block_until_ready(state)
    seconds = {k.removeprefix("time/").removesuffix("_s"): v for k, v in run.timer.take().items()}
    learning = run.learner.device_s - learning
    return state, host, Pass(seconds, made, run.sampler.work, learning)


def measure_loop(
    run: Run, state: LearnerState, host: HostState, epochs: int, folder: Path
) -> list[Figure]:
    """Figures of whole epochs, after those of the warm-up, and of their parts."""
    c, every = run.config, run.config.design.regenerate_every
    for _ in range(WARM_UP * every - 1):
        state, host, _ = iterate(run, state, host)
    compiled, passes = run_setup.compiles(), []
    for _ in range(epochs * every):
        state, host, one = iterate(run, state, host)
        passes.append(one)
    compiled = run_setup.compiles() - compiled

    def rate(stage: str, count: Callable[[Made], float]) -> float:
        return statistics.median(count(p.made) / p.seconds[stage] for p in passes)

    played = [e for p in passes for e in p.made.episodes if e.records]
    prompt = round(statistics.median(e.records[0].action.index(True) for e in played))
    decoding, prefill = sampling_rates(run, state, prompt)
    with run_setup.bundled_corpus(c) as documents:
        environments = bundled_pool(c.seed, c.design.num_envs, c.skills, documents)
    processes, resets, steps = sandbox_rates(run, environments)
    playing = [p for n, p in enumerate(passes) if n % every]  # without designing
    actions = rate("play", lambda m: sum(t.action is not None for e in m.episodes for t in e.turns))
    learned = rate(
        "learn", lambda m: sum(len(r.ids) for s in m.samples if s.advantage for r in s.records)
    )
    return [
        *stage_figures(passes, every),
        *play_figures(playing, decoding, prefill),
        *host_figures(run, state, host, passes, folder),
        Figure("programs compiled in these iterations", compiled, ""),
        Figure("a checkpoint, committed", checkpoint_seconds(state, host, folder), "s"),
        Figure("learning", c.learn.passes * learned, "tokens/s", training_rate(run, state)),
        Figure("environment steps in play", actions, "1/s", steps),
        Figure("sandbox: processes started and reset", processes, "1/s"),
        Figure("sandbox: resets of running ones", resets, "1/s"),
        Figure("validation of sound designs", validation_rate(run, environments), "1/s"),
    ]


def stage_figures(passes: Sequence[Pass], every: int) -> list[Figure]:
    """Seconds of each stage, by whether the iteration opens an epoch of environments."""
    figures = []
    for title, chosen in (
        ("iteration that opens an epoch", passes[::every]),
        ("other iteration", [p for n, p in enumerate(passes) if n % every]),
    ):
        for stage in ("design", "validate", "play", "learn", "iteration"):
            times = [p.seconds[stage] for p in chosen if stage in p.seconds]
            if times:
                name = "in all" if stage == "iteration" else stage
                figures.append(Figure(f"{title}: {name}", statistics.median(times), "s"))
    return figures


def play_figures(passes: Sequence[Pass], decoding: float, prefill: float) -> list[Figure]:
    """What play spends its time on; tokens a second while the sampler is at it, and over all."""

    def median(value: Callable[[Pass], float]) -> float:
        return statistics.median(value(p) for p in passes)

    def rest(p: Pass) -> float:
        return p.seconds["play"] - p.work.reading_s - p.work.decoding_s

    def sampled(p: Pass) -> float:
        return sum(e.tokens_sampled for e in p.made.episodes) / p.seconds["play"]

    return [
        Figure("of play: reading", median(lambda p: p.work.reading_s), "s"),
        Figure("of play: decoding", median(lambda p: p.work.decoding_s), "s"),
        Figure("of play: environments and the rest", median(rest), "s"),
        Figure(
            "reading in play",
            median(lambda p: p.work.tokens_read / p.work.reading_s),
            "tokens/s",
            prefill,
        ),
        Figure(
            "decoding in play",
            median(lambda p: p.work.tokens_decoded / p.work.decoding_s),
            "tokens/s",
            decoding,
        ),
        Figure("sampling over all of play", median(sampled), "tokens/s"),
    ]


def host_figures(
    run: Run, state: LearnerState, host: HostState, passes: Sequence[Pass], folder: Path
) -> list[Figure]:
    """What the host itself works in an iteration that opens an epoch, and its share of that.

    Sampling, environments and updates are not in it. A checkpoint counts until training may go on.
    """
    c = run.config
    passes = passes[:: c.design.regenerate_every]
    made = passes[-1].made

    def measure_and_watch() -> None:
        measured = measures.of_iteration(made, host, run.training)
        health.watch(c, host.iteration, measured, host)

    with record.open_journal(folder / "journal", 0, c.log.episodes) as journal:
        recording = median_seconds(lambda: journal.write(host.iteration, made, host, ()))
    times = []
    with Checkpoints(folder / "dispatched", keep=1) as checkpoints:
        for number in range(REPEATS + 1):
            began = time.perf_counter()
            checkpoints.save(number, state, host)
            times.append(time.perf_counter() - began)
            checkpoints.wait()
    seconds = {
        "scores, advantages and memory": statistics.median(p.seconds["score"] for p in passes),
        "batches": statistics.median(p.seconds["learn"] - p.learning_s for p in passes),
        "measures and alarms": median_seconds(measure_and_watch),
        "records": recording,
        "a checkpoint's dispatch": statistics.median(times[1:]),
    }
    total = sum(seconds.values())
    whole = statistics.median(p.seconds["iteration"] for p in passes)
    episodes = collections.Counter(e.arm for e in made.episodes)
    played = ", ".join(f"{count} {arm}" for arm, count in episodes.items())
    return [
        *(Figure(f"host: {name}", value, "s") for name, value in seconds.items()),
        Figure(f"host in all ({played} episodes)", total, "s"),
        Figure("host, share of the iteration", 100 * total / whole, "%"),
    ]


def checkpoint_seconds(state: LearnerState, host: HostState, folder: Path) -> float:
    """Seconds until a checkpoint is committed; training goes on earlier."""
    with Checkpoints(folder / "checkpoints", keep=1) as checkpoints:
        began = time.perf_counter()
        checkpoints.save(1, state, host)
        checkpoints.wait()
        return time.perf_counter() - began


# -- parts alone ------------------------------------------------------------------------------


def sampling_rates(run: Run, state: LearnerState, prompt: int) -> tuple[float, float]:
    """Tokens a second of decoding and of prefill, all rows busy from the first step to the last."""
    c = run.config
    rows, steps = c.sampling.slots, c.play.reply_tokens
    sampler = Sampler(
        state.params,
        run.model,
        slots=rows,
        context=run.sampler.context,
        stop_ids=(-1,),
        dtype=jnp.dtype(c.model.compute_dtype),
        block=c.sampling.block,
    )

    def turn(steps: int) -> None:
        sampler.load(state.params)
        for i in range(rows):
            ids = [1 + i % 2, *[1] * (prompt - 1)]
            sampler.submit(sampler.open(), ids, stream=(0, i), budget=steps, sampling=Sampling())
        while sampler.busy:
            sampler.advance()

    prefill, both = median_seconds(lambda: turn(1)), median_seconds(lambda: turn(steps))
    return rows * (steps - 1) / (both - prefill), rows * prompt / prefill


def training_rate(run: Run, state: LearnerState) -> float:
    """Tokens a second of optimizer steps on rows without padding."""
    settings, learner = run.learner.settings, run.learner
    sizes = zip(settings.row_tokens, settings.rows, strict=True)
    lengths = [size for size, count in sizes for _ in range(count)]
    records = [TokenRecord().wrote((1,) * n, (-1.0,) * n) for n in lengths]
    rows = [batching.Row(r, Role.AGENT, advantage=1.0, temperature=1.0) for r in records]
    weights = batching.token_weights(rows, settings.aggregation)
    batch, counts, _ = batching.pack(
        rows, weights, buckets=settings.row_tokens, micro_rows=settings.rows
    )
    held = [jax.tree.map(jnp.copy, state)]  # the step consumes the state it is given

    def work() -> None:
        held[0], _ = step.train_step(
            held[0],
            batch,
            counts,
            c=run.model,
            h=learner.hyper,
            tx=learner.tx,
            frozen=learner.frozen,
            assemble=learner.assemble,
        )
        jax.block_until_ready(held[0])

    return sum(lengths) / median_seconds(work)


def sandbox_rates(run: Run, environments: Sequence[Environment]) -> tuple[float, float, float]:
    """Processes started, episodes begun and steps taken a second, no policy in between."""
    count = run.config.sampling.slots
    chosen = [environments[n % len(environments)] for n in range(count)]
    times: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for _ in range(REPEATS):
        instances = [run.sandbox.open(e.code, e.kind, trusted=True) for e in chosen]
        for part, call in enumerate((Reset(0), Reset(1), Step("1"))):
            began = time.perf_counter()
            run.sandbox.exchange([(instance, call) for instance in instances])
            times[part].append(time.perf_counter() - began)
        run.sandbox.close_instances(instances)
    processes, resets, steps = (count / statistics.median(each) for each in times.values())
    return processes, resets, steps


def validation_rate(run: Run, environments: Sequence[Environment]) -> float:
    """Sound designs validated a second, by all checks."""
    items = [(e.code, e.kind) for e in environments]
    settings = validation.Settings(**run.config.validation)
    return len(items) / median_seconds(
        lambda: validation.validate(run.sandbox, items, seen=(), settings=settings)
    )


# -- showing ----------------------------------------------------------------------------------


def machine() -> str:
    """Processor, cores this process may use, and versions."""
    known = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    processor = known[0].partition(":")[2].strip() if known else platform.machine()
    return (
        f"{processor}, {len(os.sched_getaffinity(0))} cores, {jax.default_backend()}; Python "
        f"{platform.python_version()}, jax {jax.__version__}, spade_jax {spade_jax.__version__}"
    )


def table(figures: Sequence[Figure]) -> str:
    """The figures as text; the last columns are the part alone, and the share reached of it."""
    lines = [f"{'':<44}{'measured':>10} {'':<9}{'alone':>10}{'share':>7}"]
    for f in figures:
        line = f"{f.name:<44}{_number(f.value):>10} {f.unit:<9}"
        if f.alone is not None:
            line += f"{_number(f.alone):>10}{f.value / f.alone:>7.0%}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def main() -> None:
    figures = measure(FLAGS.config, FLAGS.epochs, process_start())
    if FLAGS.json:
        values = [dataclasses.asdict(figure) for figure in figures]
        print(json.dumps({"machine": machine(), "figures": values}))
    else:
        print(f"{machine()}\n{table(figures)}")
