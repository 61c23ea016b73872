"""Evaluate a model on benchmarks, or compare two evaluations.

    python -m spade_jax.evaluate --suite=reasoning_gym,aime25 --model=PATH
    python -m spade_jax.evaluate --suite=gpqa_diamond --endpoint=URL --served_model=NAME
    python -m spade_jax.evaluate --config=tiny --workdir=runs/tiny
    python -m spade_jax.evaluate compare A/results.json B/results.json [--csv]

Without --suite the held-out set is played that training with the same config is judged on. The
model is that of --model, else the newest checkpoint in --workdir, else the config's model.path. A
run's --workdir is played as in its own evaluations, with the running mean of its weights where it
keeps one (learn.ema_decay), and --model=RUN with the weights themselves; the table says which. An
evaluation that was stopped goes on where it was when the same command is given again. It runs on
one host; docs/evaluation.md has the suites, their data, and how to add one.
"""

from __future__ import annotations

import functools

from absl import flags

from spade_jax.program import run_program
from spade_jax.types import Arm

if __name__ == "__main__":  # before all else, so that --help needs no JAX
    whole = functools.partial(flags.DEFINE_integer, lower_bound=0)
    flags.DEFINE_list("suite", [], "Suites to run, by name; none: heldout.")
    flags.DEFINE_string("model", "", "Model folder or run, like model.path.")
    flags.DEFINE_string("workdir", "", "A run: the newest mean of its weights, if it keeps one.")
    flags.DEFINE_string("endpoint", "", "Address of an OpenAI-compatible server, up to /v1.")
    flags.DEFINE_string("served_model", "", "Name of the model there.")
    flags.DEFINE_string("key_variable", "", "Environment variable with the endpoints' API key.")
    flags.DEFINE_string("user_endpoint", "", "Server of a model that acts users; else our own.")
    flags.DEFINE_string("user_model", "", "Name of that model.")
    flags.DEFINE_string("data", "", "File of a suite's items, or a folder with such files.")
    flags.DEFINE_string("output", "", "Folder of the results; by default under runs/evaluations.")
    whole("limit", 0, "Items of each group; 0: all.")
    whole("k", 0, "Plays of each item; 0: as many as the suite says.")
    whole("concurrency", 0, "Plays at once; 0: sampling.slots of the config.")
    whole("reply_tokens", 0, "Most tokens of a reply; 0: as the suite says.")
    whole("context", 0, "Most tokens of a conversation; 0: as the suite says.")
    flags.DEFINE_float("temperature", None, "Instead of the suite's; 0 is greedy.")
    flags.DEFINE_float("top_p", None, "Instead of the suite's.")
    flags.DEFINE_integer("top_k", None, "Instead of the suite's; 0: all tokens.")
    flags.DEFINE_float("min_p", None, "Instead of the suite's.")
    flags.DEFINE_enum("arm", "plain", [str(arm) for arm in Arm], "Of heldout: with hints or not.")
    flags.DEFINE_bool("csv", False, "Of compare: print CSV.")
    run_program("spade_jax.evaluate", config="tiny", files=True)

import contextlib
import dataclasses
import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from ml_collections import config_dict

from spade_jax import hosts, limits, weights
from spade_jax import run as run_setup
from spade_jax.design.families import LEVELS
from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals import catalog, compare, evaluation, heldout, intervals, results
from spade_jax.evals.catalog import Opener, Options
from spade_jax.evals.evaluation import Configured
from spade_jax.evals.results import Plays
from spade_jax.evals.runner import Result
from spade_jax.evals.suites import MODEL, USER, Settings
from spade_jax.policy import endpoint as endpoints
from spade_jax.policy import sharding
from spade_jax.policy.conversation import Policy, Speaker
from spade_jax.policy.endpoint import Endpoint
from spade_jax.policy.model import declare, in_compute_dtype
from spade_jax.policy.sampler import Sampler
from spade_jax.types import Role, UsageError

FLAGS = flags.FLAGS
SAMPLING = ("temperature", "top_p", "top_k", "min_p")
SHORTEST = 64  # tokens of the cache where the model is too short for every suite


# -- suites -----------------------------------------------------------------------------------


@contextlib.contextmanager
def open_heldout(c: config_dict.ConfigDict, arm: Arm) -> Iterator[heldout.HeldOut]:
    """The held-out set of the config as a suite."""
    with run_setup.bundled_corpus(c) as documents:
        items = heldout.held_out_set(c.evaluation.seed, c.evaluation.per_level, documents)
    with Sandbox(**c.sandbox) as sandbox:
        yield heldout.HeldOut(sandbox, items, limits.play_rules(c), arm, c.evaluation.seed)


def openers(c: config_dict.ConfigDict, names: Sequence[str], arm: Arm) -> dict[str, Opener]:
    """How the suites of these names are opened."""
    held_out: Mapping[str, Opener] = {"heldout": lambda options: open_heldout(c, arm)}
    return catalog.find(names, held_out | catalog.SUITES)


def overridden(settings: Settings) -> Settings:
    """A suite's settings with those that flags give in their place."""
    given = {name: getattr(FLAGS, name) for name in SAMPLING}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        sampling = dataclasses.replace(settings.sampling, **given)
    except ValueError as error:
        raise UsageError(f"{error}; correct the flag of that name") from None
    reply = FLAGS.reply_tokens or settings.reply
    return Settings(
        plays=FLAGS.k or settings.plays,
        sampling=sampling,
        reply=reply,
        context=FLAGS.context or settings.context - settings.reply + reply,
    )


# -- who is evaluated -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Partner:
    """A speaker, the most tokens of a conversation with it (None: not known), and its name.

    `weights` changes where those do; a server is taken to show tools.
    """

    speaker: Speaker
    context: int | None
    name: str
    weights: str = ""
    shows_tools: bool = True


@contextlib.contextmanager
def open_model(c: config_dict.ConfigDict, contexts: Sequence[int]) -> Iterator[Partner]:
    """A model in this process, with room for the longest of these lengths it can have."""
    path = FLAGS.model or FLAGS.workdir or c.model.path
    with jax.set_mesh(sharding.make_mesh(c.mesh)):
        source = weights.find(path, mean=bool(FLAGS.workdir))
        positions = source.model.max_positions
        tokenizer = run_setup.new_tokenizers(c, source.folder)[Role.AGENT]
        places = sharding.parameters(declare(source.model), jax.sharding.get_mesh(), "sample")
        dtype = jnp.dtype(c.model.compute_dtype)
        sampler = Sampler(
            in_compute_dtype(source.load(shardings=places), source.model, dtype),
            source.model,
            slots=seats(c),
            context=max([n for n in contexts if n <= positions], default=SHORTEST),
            stop_ids=tokenizer.stop_ids,
            dtype=dtype,
            block=c.sampling.block,
        )
        step = "" if source.step is None else f" at iteration {source.step}"
        mean = ", the running mean of its weights" if source.mean else ""
        name = f"{path or 'the bundled model'}{step}{mean}"
        policy, stamp = Policy(sampler, tokenizer), _stamp(source.path)
        yield Partner(policy, positions, name, stamp, tokenizer.shows_tools)


def _stamp(folder: Path) -> str:
    """A hash of the names, sizes and times of a folder's files."""
    stats = [(str(p.relative_to(folder)), p.stat()) for p in folder.rglob("*") if p.is_file()]
    told = sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


@contextlib.contextmanager
def open_endpoint(c: config_dict.ConfigDict, url: str, model: str) -> Iterator[Partner]:
    """A served model."""
    if not model:
        raise UsageError("an endpoint needs the name of a model; pass --served_model=NAME")
    settings = endpoints.Settings(
        url=url, model=model, key_variable=FLAGS.key_variable, concurrency=seats(c)
    )
    with Endpoint(settings) as endpoint:
        yield Partner(endpoint, endpoint.longest(), f"{model} at {url}")


def seats(c: config_dict.ConfigDict) -> int:
    """How many plays go on at once."""
    return FLAGS.concurrency or c.sampling.slots


# -- one evaluation ---------------------------------------------------------------------------


def evaluate(c: config_dict.ConfigDict, names: Sequence[str], folder: Path) -> int:
    """Run suites and write and print what comes of them; the exit code."""
    began, arm = time.monotonic(), Arm[FLAGS.arm.upper()]
    options = Options(data=Path(FLAGS.data) if FLAGS.data else None)
    with contextlib.ExitStack() as stack:
        suites: list[Configured] = []
        for opener in openers(c, names, arm).values():
            suite = stack.enter_context(opener(options))
            suites.append(Configured(suite, overridden(suite.settings)))
        items = {suite.name: evaluation.chosen(suite.items(), FLAGS.limit) for suite in suites}
        if FLAGS.endpoint:
            opened = open_endpoint(c, FLAGS.endpoint, FLAGS.served_model)
        else:
            opened = open_model(c, [suite.settings.context for suite in suites])
        partner = stack.enter_context(opened)
        speakers = {MODEL: partner.speaker, USER: partner.speaker}
        if FLAGS.user_endpoint:
            user = open_endpoint(c, FLAGS.user_endpoint, FLAGS.user_model)
            speakers[USER] = stack.enter_context(user).speaker
        about = {
            "model": partner.name,
            "weights": partner.weights,
            "user": FLAGS.user_endpoint and f"{FLAGS.user_model} at {FLAGS.user_endpoint}",
            "seed": c.evaluation.seed,
            "suites": {suite.name: results.about_suite(suite.settings) for suite in suites},
        }
        if "heldout" in names:
            about["heldout"] = {"arm": str(arm), "per_level": c.evaluation.per_level}
            about["heldout"] |= c.play.to_dict() | {"prompts": c.design.prompts}
        has = partner.context, partner.shows_tools, partner.name
        skipped = [each for suite in suites if (each := evaluation.unfit(suite, *has))]
        left_out = [each.suite for each in skipped]
        suites = [suite for suite in suites if suite.name not in left_out]
        with Plays(folder, about) as plays:
            keys = evaluation.keys(suites, items)
            evaluation.run_suites(
                suites,
                items,
                [key for key in keys if plays.missing(*key)],
                speakers,
                plays.add,
                seed=c.evaluation.seed,
                seats=seats(c),
                patient=not FLAGS.endpoint and c.schedule != "overlap",
            )
            ended = [plays.done[key] for key in keys if key in plays.done]
    columns = results.write(folder, about, ended, skipped)
    print("\n".join([f"{partner.name}:", *results.table(columns, skipped)]))
    if any(result.suite == "heldout" for result in ended):
        print("\n".join(families([r for r in ended if r.suite == "heldout"], str(arm))))
    print(f"{folder / results.FILE} has every play; {time.monotonic() - began:.0f} s")
    return 0


def families(ended: Sequence[Result], arm: str) -> list[str]:
    """The lines that tell success on the held-out set by family and level."""
    wins = [float(result.won) for result in ended]
    lines = [f"held-out success {intervals.mean(wins)} (95%), {len(wins)} plays, {arm} arm"]
    lines.append(f"{'':<12}" + "".join(f"{f'level {v}':>10}" for v in LEVELS) + f"{'all':>10}")
    for family in dict.fromkeys(result.details.get("family", "") for result in ended):
        mine = [result for result in ended if result.details.get("family", "") == family]
        levels = [[r for r in mine if r.details.get("level") == level] for level in LEVELS]
        cells = [intervals.mean([r.won for r in g]).value if g else None for g in [*levels, mine]]
        shown = ("-" if cell is None else f"{cell:.0%}" for cell in cells)
        lines.append(f"{family:<12}" + "".join(f"{cell:>10}" for cell in shown))
    return lines


# -- the program ------------------------------------------------------------------------------


def default_output(c: config_dict.ConfigDict) -> Path:
    """runs/evaluations/ and what is evaluated."""
    name = FLAGS.served_model or FLAGS.model or FLAGS.workdir or c.model.path or "bundled"
    return Path("runs/evaluations") / (re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model")


def main(words: list[str]) -> int:
    if words and words[0] == "compare":
        return compare_files(words[1:])
    if words:
        raise UsageError(
            f"unexpected argument {words[0]!r}; only `compare A B` takes names of files"
        )
    given = [f"--{name}" for name in ("model", "workdir", "endpoint") if getattr(FLAGS, name)]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} name several models; give one of them")
    place = hosts.find_place("", -1, -1)
    if place is not None and place.hosts > 1:
        raise UsageError(
            f"an evaluation runs on one host, and JAX's variables say {place.hosts}; unset "
            "JAX_COORDINATOR_ADDRESS and its like, or serve the model and give --endpoint=URL"
        )
    names = [name for name in FLAGS.suite if name] or ["heldout"]
    folder = Path(FLAGS.output) if FLAGS.output else default_output(FLAGS.config)
    return evaluate(FLAGS.config, list(dict.fromkeys(names)), folder)


def compare_files(files: Sequence[str]) -> int:
    """Print how the second evaluation differs from the first."""
    if len(files) != 2:
        raise UsageError("compare takes two files; give A/results.json B/results.json")
    found = compare.compare(*(results.read(Path(file)) for file in files))
    if FLAGS.csv:
        print(compare.as_csv(found))
    else:
        print(compare.table(found))
        print(compare.row(found))
    return 0
