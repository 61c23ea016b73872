"""Small runs of the whole program: a small model, configs of seconds, scripted policies."""

from __future__ import annotations

import json
import math
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from ml_collections import config_dict

from spade_jax import config, epoch, warmstart
from spade_jax.design.families import FAMILIES, sample_program
from spade_jax.design.skills import KINDS
from spade_jax.policy.conversation import Budget, Policy
from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.run import Run
from spade_jax.types import Design, DesignTask, Generation, Message, StopReason, TokenRecord

Answer = Callable[[Sequence[Message], tuple[int, ...]], str]

WARM_START = {
    "model.width": 32,
    "model.layers": 2,
    "model.head_size": 8,
    "model.ffn": 64,
    "model.context": 640,
    "model.vocabulary": 512,
    "data.programs": 20,
    "data.episodes": 2,
    "data.single_turn_episodes": 2,
    "data.max_turns": 3,
    "train.steps": 30,
    "train.warmup": 3,
    "train.lr": 1e-2,
    "train.adam_lr": 1e-2,
    "model.remat": "none",
    "train.row_tokens": (640,),
    "train.rows": (4,),
    "train.checkpoint_every": 20,
    "evaluate.designs": 6,
    "evaluate.per_level": 1,
    "evaluate.slots": 64,
}

TRAIN = {
    "iterations": 2,
    "model.max_loss": 0.0,  # it knows no plain text
    "model.remat": "none",
    "design.num_envs": 6,
    "design.regenerate_every": 2,
    "learn.designer_delay": 2,
    "validation.seeds": 8,
    "validation.solve_seeds": 2,
    "play.plays": 2,
    "play.hint_plays": 2,
    "play.max_turns": 3,
    "play.reply_tokens": 16,
    "sampling.slots": 64,
    "learn.passes": 1,
    "learn.minibatches": 1,
    "learn.row_tokens": (640,),
    "learn.rows": (2,),
    "checkpoint.every": 100,
    "evaluation.every": 0,
    "evaluation.per_level": 1,
    "log.episodes": -1,
}


def configured(name: str, *overrides: Mapping[str, object]) -> config_dict.ConfigDict:
    """A bundled config with fields set by dotted name."""
    c = config.load(name)
    for each in overrides:
        c.update_from_flattened_dict(each)
    return c


def with_field(config: config_dict.ConfigDict, field: str, value: object) -> config_dict.ConfigDict:
    """The config with one field set, whatever its type."""
    tree = config.to_dict()
    *groups, leaf = field.split(".")
    inner = tree
    for group in groups:
        inner = inner[group]
    inner[leaf] = value
    return config_dict.ConfigDict(tree).lock()


def run_config(model: Path, **overrides: object) -> config_dict.ConfigDict:
    """A run of a few seconds; a group's field is written with two underscores."""
    fields = {name.replace("__", "."): value for name, value in overrides.items()}
    return configured("tiny", TRAIN, {"model.path": str(model)}, fields)


def arguments(c: config_dict.ConfigDict, workdir: Path) -> list[str]:
    """The command line that gives the trainer this config."""
    default = config.flatten(config.load("tiny"))
    changed = {k: v for k, v in config.flatten(c).items() if v != default[k]}
    return [f"--workdir={workdir}", *(f"--config.{k}={v}" for k, v in changed.items())]


def free_port() -> int:
    """A port of this machine on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def warm_start(workdir: Path, *overrides: Mapping[str, object]) -> Path:
    """Run the warm start and return the folder of its model."""
    c = configured("warmstart", WARM_START, *overrides)
    warmstart.check(c)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warmstart, "FLAGS", SimpleNamespace(config=c, workdir=str(workdir)))
        warmstart.main()
    return workdir / "model"


def small_model(workdir: Path) -> Path:
    """Teach a small new model to box a digit, on a tokenizer that knows the bundled programs."""
    rng = random.Random(0)
    said = []
    for n in range(120):
        family = list(FAMILIES)[n % len(FAMILIES)]
        task = f"Bees: what is {rng.randrange(10)} + {rng.randrange(10)}?"
        said.append([("user", task), ("assistant", f"\\boxed{{{rng.randrange(1, 10)}}}")])
        said.append([("user", sample_program(rng, family, 1 + n % 5, "Bees").code)])
    path = workdir / "conversations.jsonl"
    lines = [{"messages": [{"role": r, "content": t} for r, t in each]} for each in said]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    # Rows of 64 tokens leave the programs out: they are there for the tokenizer.
    fields = {"data.path": str(path), "train.steps": 60, "train.row_tokens": (64,)}
    return warm_start(workdir / "run", {**fields, "train.rows": (8,)})


class Scripted:
    """A policy whose replies `answer` makes from the last messages and the reply's stream.

    Every token counts as drawn from a uniform distribution.
    """

    def __init__(self, tokenizer: ChatTokenizer, answer: Answer, version: int = 0) -> None:
        self.tokenizer, self.answer, self.version = tokenizer, answer, version
        self.tokens_sampled = 0

    def converse(self) -> ScriptedDialogues:
        return ScriptedDialogues(self)


class ScriptedDialogues:
    """Dialogues with a `Scripted` policy."""

    def __init__(self, policy: Scripted) -> None:
        self.policy = policy
        self.tokens: list[TokenRecord] = []
        self.replies: dict[int, Generation | None] = {}

    def open(self) -> int:
        self.tokens.append(TokenRecord())
        return len(self.tokens) - 1

    def ask(
        self, dialogue: int, messages: Sequence[Message], stream: tuple[int, ...], budget: Budget
    ) -> None:
        tokenizer, record = self.policy.tokenizer, self.tokens[dialogue]
        text = self.policy.answer(messages, stream)
        ids = (*tokenizer.encode(text), tokenizer.end_id)
        logp = (-math.log(tokenizer.vocab),) * len(ids)
        new = (
            tokenizer.continuation(StopReason.STOP, messages)
            if record.ids
            else tokenizer.prompt(messages)
        )
        self.tokens[dialogue] = record.read(new).wrote(ids, logp)
        self.replies[dialogue] = Generation(ids=ids, logp=logp, text=text, stop=StopReason.STOP)
        self.policy.tokens_sampled += len(ids)

    def answers(self) -> dict[int, Generation | None]:
        replies, self.replies = self.replies, {}
        return replies

    def failure(self, dialogue: int) -> None:
        """There is always an answer."""

    def records(self, dialogue: int) -> tuple[TokenRecord, ...]:
        return (self.tokens[dialogue],)

    def retire(self, dialogues: Sequence[int]) -> None:
        pass


def write_program(said: Sequence[Message], stream: tuple[int, ...]) -> str:
    """A program of a bundled family of the skill asked for; slot 0 gets a reply without one."""
    *_, slot = stream
    if slot == 0:
        return "I would rather not."
    skill = next(skill for skill in KINDS if skill in said[-1].content)
    rng = random.Random(repr(stream))
    family = rng.choice([f.name for f in FAMILIES.values() if f.skill == skill])
    return f"```python\n{sample_program(rng, family, rng.choice((1, 2)), 'Bees').code}```"


def script_the_designer(patch: pytest.MonkeyPatch) -> None:
    """Let `write_program` design in the policy's place; play stays the policy's."""
    write_designs = epoch.write_designs

    def scripted(
        run: Run, policy: Policy, tasks: Sequence[DesignTask], position: int
    ) -> list[Design]:
        return write_designs(run, Scripted(policy.tokenizer, write_program), tasks, position)

    patch.setattr(epoch, "write_designs", scripted)
