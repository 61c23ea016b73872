"""Warm start: supervised training on conversations, by the learner that self-play uses.

    python -m spade_jax.warmstart --config=warmstart --workdir=runs/warmstart

Conversations come from a JSONL of {"messages": [{"role": ..., "content": ...}, ...]}, whose
assistant messages are learned, or from the bundled families of small environments and scripted
players. The result is a folder of Hugging Face files, WORKDIR/model. The program resumes from its
checkpoints, is reproducible from its seed, and ends with a table of what the policy can do.
"""

from __future__ import annotations

from absl import flags

from spade_jax.program import run_program

if __name__ == "__main__":  # before all else, so that --help needs no JAX
    flags.DEFINE_string("workdir", "runs/warmstart", "Folder of everything this program writes.")
    run_program("spade_jax.warmstart", config="warmstart", check=None)

import dataclasses
import json
import pathlib
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import config_dict
from optax.contrib import MuonDimensionNumbers, muon

from spade_jax import config as configs
from spade_jax import weights
from spade_jax.checkpoint import Checkpoints
from spade_jax.design.corpus import Corpus
from spade_jax.envs import fingerprint
from spade_jax.envs.sandbox import Sandbox
from spade_jax.envs.validation import Settings
from spade_jax.evals import warmstart_table
from spade_jax.learn import batching, step, supervised
from spade_jax.play import lessons
from spade_jax.play.episodes import Rules
from spade_jax.policy import hub, model, tokenizer
from spade_jax.policy.conversation import Budget, Policy
from spade_jax.policy.model import ModelConfig
from spade_jax.policy.sampler import Sampler
from spade_jax.types import HostState, Message, Role, TokenRecord, UsageError

FLAGS = flags.FLAGS


def make_lessons(c: config_dict.ConfigDict, path: pathlib.Path) -> None:
    """Write the bundled lessons as JSONL, in one rename."""
    rules = play_rules(c)
    draft = path.with_suffix(".draft")
    with (
        Corpus("", seed=c.seed, max_words=c.data.max_words) as corpus,
        draft.open("w") as file,
        Sandbox() as sandbox,
    ):
        programs = [lessons.draw_program(c.seed, n, corpus)[0] for n in range(c.data.programs)]

        def write(lesson: lessons.Lesson) -> None:
            file.write(json.dumps(dataclasses.asdict(lesson)) + "\n")

        for n in range(c.data.programs):
            write(
                lessons.design_lesson(
                    c.seed,
                    n,
                    corpus,
                    prompt_set=c.prompts,
                    code_characters=c.data.code_characters,
                )
            )
        chunk = 500
        for start in range(0, len(programs), chunk):
            for lesson in lessons.play_lessons(
                sandbox,
                programs[start : start + chunk],
                rules,
                seed=c.seed + start,
                episodes=c.data.episodes,
                single_turn_episodes=c.data.single_turn_episodes,
            ):
                write(lesson)
            done = min(start + chunk, len(programs))
            print(f"played lessons in {done} of {len(programs)} programs", flush=True)
    marks = sorted({fingerprint.fingerprint(p.code) for p in programs})
    (path.parent / hub.PROGRAMS_FILE).write_text("\n".join(marks) + "\n")
    draft.replace(path)


def play_rules(c: config_dict.ConfigDict) -> Rules:
    """Rules of scripted and of measured play."""
    return Rules(
        prompts=c.prompts,
        max_turns=c.data.max_turns,
        budget=Budget(reply=48, context=c.model.context),
        return_mode="final",
        discount=1.0,
    )


def read_conversations(path: pathlib.Path) -> list[list[Message]]:
    """The conversations of a JSONL; a line of another form is an error that names it."""
    conversations = []
    with path.open() as file:
        for number, line in enumerate(file, 1):
            try:
                said = [
                    Message(role=m["role"], content=m["content"])
                    for m in json.loads(line)["messages"]
                ]
            except (ValueError, KeyError, TypeError):
                raise UsageError(
                    f'{path}, line {number}, is not {{"messages": [{{"role", "content"}}, ...]}}; '
                    "mend or remove the line"
                ) from None
            conversations.append(said)
    if not any(m.role == "assistant" for said in conversations for m in said):
        raise UsageError(f"{path} holds no assistant message to learn; give another data.path")
    return conversations


def starting_point(
    c: config_dict.ConfigDict, conversations: Sequence[Sequence[Message]], folder: pathlib.Path
) -> tuple[ModelConfig, model.Params, tokenizer.ChatTokenizer]:
    """The model folder to start from, or a new tokenizer and random weights."""
    if c.model.path:
        source = weights.find(c.model.path)
        tokenizer.copy_tokenizer(source.folder, folder)
        return source.model, source.load(), tokenizer.ChatTokenizer(folder)
    if not (folder / "tokenizer.json").exists():
        texts = ("\n".join(m.content for m in said) for said in conversations)
        trained = tokenizer.train_tokenizer(texts, c.model.vocabulary)
        tokenizer.save_tokenizer(trained, folder, c.model.context)
    chat = tokenizer.ChatTokenizer(folder)
    config = ModelConfig(
        vocab=chat.vocab,
        width=c.model.width,
        layers=c.model.layers,
        heads=c.model.heads,
        kv_heads=c.model.kv_heads,
        head_size=c.model.head_size,
        ffn=c.model.ffn,
        rope_theta=c.model.rope_theta,
        norm_eps=1e-6,
        tied=True,
        max_positions=c.model.context,
    )
    params = model.init(config, jax.random.key(c.seed))
    params["embed"] *= c.model.embed_std / model.declare(config)["embed"].init_std
    return config, params, chat


def schedule(c: config_dict.ConfigDict, peak: float) -> optax.Schedule:
    """Linear rise to the peak, then a cosine down to its final share at the last step."""
    return optax.warmup_cosine_decay_schedule(
        0.0, peak, c.train.warmup, c.train.steps, c.train.final_share * peak
    )


def optimizer(c: config_dict.ConfigDict, config: ModelConfig) -> optax.GradientTransformation:
    """Muon for the layers' matrices, AdamW for all else, after clipping the global norm.

    Muon is scaled as in arXiv 2502.16982. After 400 steps of an earlier config it had 0.47 nats a
    token on play lessons left out, AdamW alone 0.52.
    """
    axes = jax.tree.map(
        lambda p: MuonDimensionNumbers(*p.matrix_axes) if p.matrix_axes else None,
        model.declare(config),
        is_leaf=model.is_parameter,
    )
    muon_tx = muon(
        schedule(c, c.train.lr),
        adam_learning_rate=schedule(c, c.train.adam_lr),
        adam_b1=c.train.beta1,
        adam_b2=c.train.beta2,
        weight_decay=c.train.weight_decay,
        adam_weight_decay=c.train.weight_decay,
        muon_weight_dimension_numbers=axes,
        consistent_rms=0.2,
    )
    return optax.chain(optax.clip_by_global_norm(c.train.clip_norm), muon_tx)


def train(
    c: config_dict.ConfigDict,
    records: Sequence[TokenRecord],
    config: ModelConfig,
    params: model.Params,
    workdir: pathlib.Path,
) -> model.Params:
    """Minimise the mean negative log-probability of the replies; resumes from WORKDIR."""
    tx = optimizer(c, config)
    h = step.Hyper(objective="supervised", compute_dtype=c.model.compute_dtype, remat=c.model.remat)
    state = step.create(params, tx)
    rows = [batching.Row(r, Role.AGENT, advantage=0.0, temperature=1.0) for r in records]
    lengths = [len(r.ids) for r in records]
    groups = supervised.groups(lengths, c.train.row_tokens, c.train.rows, c.seed)
    with Checkpoints(workdir / "checkpoints", keep=1) as checkpoints:
        found = checkpoints.restore(jax.eval_shape(lambda: state))
        start = 0
        if found:
            start, state, _ = found
            for _ in range(start):
                next(groups)
        began = time.monotonic()
        for n in range(start, c.train.steps):
            chosen = [rows[i] for i in next(groups)]
            weights = batching.token_weights(chosen, c.train.aggregation)
            batch, counts, _ = batching.pack(
                chosen,
                weights,
                buckets=c.train.row_tokens,
                micro_rows=c.train.rows,
                capacity=(1,) * len(c.train.rows),
            )
            state, metrics = step.train_step(state, batch, counts, c=config, h=h, tx=tx)
            if (n + 1) % 100 == 0:
                loss = float(metrics["loss"])
                if not np.isfinite(loss):
                    raise FloatingPointError(f"the loss is {loss} at step {n + 1}; lower train.lr")
                rate = (n + 1 - start) / (time.monotonic() - began)
                left = (c.train.steps - n - 1) / rate
                print(
                    f"step {n + 1}/{c.train.steps}  loss {loss:.4f}  {rate:.1f} steps/s  "
                    f"left {left / 60:.1f} min",
                    flush=True,
                )
            if (n + 1) % c.train.checkpoint_every == 0 or n + 1 == c.train.steps:
                checkpoints.save(n + 1, state, HostState())
    return state.params


def evaluate(c: config_dict.ConfigDict, policy: Policy, workdir: pathlib.Path) -> str:
    """The table of designs and of play, also written to WORKDIR/table.txt."""
    training = set((workdir / hub.PROGRAMS_FILE).read_text().split())
    with (
        Corpus("", seed=c.seed + 1, max_words=c.data.max_words) as corpus,
        Sandbox() as sandbox,
    ):
        table, _, _ = warmstart_table.measure_designs(
            policy,
            sandbox,
            corpus,
            Budget(reply=512, context=c.model.context),
            Settings(),
            count=c.evaluate.designs,
            seed=c.seed + 1,
            prompt_set=c.prompts,
            code_characters=c.data.code_characters,
            training=training,
        )
        items, episodes = warmstart_table.measure_play(
            policy,
            sandbox,
            corpus,
            play_rules(c),
            seed=c.seed + 1,
            per_level=c.evaluate.per_level,
            seats=c.evaluate.slots,
        )
    text = warmstart_table.render(table, items, episodes)
    (workdir / "table.txt").write_text(text + "\n")
    return text


def check(c: config_dict.ConfigDict) -> None:
    """Fields must be those of `configs/warmstart.py`, and the sizes must fit together."""
    configs.check_fields(c, configs.load("warmstart"))
    if len(c.train.row_tokens) != len(c.train.rows):
        raise configs.ConfigError(
            f"train.row_tokens {c.train.row_tokens} and train.rows {c.train.rows} must name as "
            "many lengths as counts; correct one of them"
        )
    if list(c.train.row_tokens) != sorted(set(c.train.row_tokens)):
        raise configs.ConfigError(
            f"train.row_tokens is {c.train.row_tokens} but lengths must ascend; sort them, and "
            "train.rows with them"
        )
    if not 0 <= c.train.warmup < c.train.steps:
        raise configs.ConfigError(
            f"train.warmup is {c.train.warmup} but must be below train.steps ({c.train.steps}); "
            "lower it"
        )


def main() -> None:
    c = FLAGS.config
    check(c)
    workdir = pathlib.Path(FLAGS.workdir)
    folder = workdir / "model"
    path = pathlib.Path(c.data.path) if c.data.path else workdir / "lessons.jsonl"
    if c.data.path and not path.is_file():
        raise UsageError(f"data.path {path} is no file; give a JSONL of conversations")
    configs.compare(c, workdir)
    configs.save(c, workdir)
    folder.mkdir(exist_ok=True)
    began = time.monotonic()
    if not path.exists():
        make_lessons(c, path)
    conversations = read_conversations(path)
    config, params, chat = starting_point(c, conversations, folder)
    records = [chat.supervised(said) for said in conversations]
    print(
        f"{len(records)} conversations, {sum(len(r.ids) for r in records)} tokens, "
        f"{model.count(config)} parameters, {time.monotonic() - began:.0f} s so far",
        flush=True,
    )
    params = train(c, records, config, params, workdir)
    hub.save(folder, config, params, eos_id=chat.end_id, pad_id=chat.pad_id)
    if not c.data.path:
        (folder / hub.PROGRAMS_FILE).write_text((workdir / hub.PROGRAMS_FILE).read_text())
        sampler = Sampler(
            params,
            config,
            slots=c.evaluate.slots,
            context=c.model.context,
            stop_ids=chat.stop_ids,
            dtype=jnp.dtype(c.model.compute_dtype),
        )
        print(evaluate(c, Policy(sampler, chat), workdir))
    print(f"wrote {folder} after {(time.monotonic() - began) / 60:.1f} minutes")
