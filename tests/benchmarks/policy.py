"""The policy beside PyTorch, transformers and TRL on the same cores, as ratios in one run.

    python -m tests.benchmarks.policy

A model of 4.7 million parameters in Qwen3's form, with the same random weights on both sides, in
float32. Each figure is the median of alternating repeats. TRL is measured where it is installed.
What both sides do in a step of policy gradients: 32 completions of 128 tokens, their
log-probabilities under the weights that sampled them, and one update of all weights.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from spade_jax.benchmark import machine
from spade_jax.learn import batching, step
from spade_jax.learn.batching import Row
from spade_jax.learn.learner import Learner, Settings
from spade_jax.learn.step import Hyper
from spade_jax.policy import hub, model
from spade_jax.policy.model import ModelConfig, Params
from spade_jax.policy.sampler import Sampler, Work
from spade_jax.policy.sampling import Sampling
from spade_jax.policy.tokenizer import save_tokenizer, train_tokenizer
from spade_jax.types import Role, Sample, TokenRecord

VOCAB, PROMPT, REPLY, BATCH = 1024, 64, 128, 32
ROWS, LENGTH = 16, 512
TURNS, TURN_PROMPT, TURN_REPLY = 5, 32, 24
PAD, STOP = 0, 1
REPLIES = (32, 256)  # shortest and longest in self-play
MEAN_REPLY = sum(REPLIES) // 2


def reference(folder: Path) -> transformers.Qwen3ForCausalLM:
    """Random weights, saved where both sides read them."""
    torch.manual_seed(0)
    c = transformers.Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=704,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        pad_token_id=PAD,
        eos_token_id=STOP,
    )
    made = transformers.Qwen3ForCausalLM(c).float().eval()
    made.save_pretrained(folder)
    return made


def medians(works: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Median seconds of each, taking turns, after one call that is not counted."""
    for work in works:
        work()
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for taken, work in zip(times, works, strict=True):
            began = time.perf_counter()
            work()
            taken.append(time.perf_counter() - began)
    return [statistics.median(taken) for taken in times]


# -- the other side ---------------------------------------------------------------------------


class Torch:
    """transformers' model, with AdamW."""

    def __init__(self, net: transformers.Qwen3ForCausalLM) -> None:
        self.net = net
        self.adamw = torch.optim.AdamW(net.parameters(), lr=1e-6)

    def logps(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.net(tokens).logits[:, :-1].log_softmax(-1)
        return logits.gather(-1, tokens[:, 1:, None])[..., 0]

    def forward(self, tokens: torch.Tensor) -> None:
        with torch.no_grad():
            self.logps(tokens)

    def train(self, tokens: torch.Tensor) -> None:
        self.adamw.zero_grad()
        (-self.logps(tokens).mean()).backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.adamw.step()

    def generate(self, prompts: torch.Tensor, tokens: int) -> torch.Tensor:
        with torch.no_grad():
            return self.net.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                top_k=0,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
            )

    def gradient_step(self, prompts: torch.Tensor, turns: int, reply: int) -> None:
        """Sample all turns, each from the whole conversation, and take one step."""
        tokens = prompts
        for turn in range(turns):
            tokens = self.generate(tokens, reply)
            if turn + 1 < turns:
                tokens = torch.cat([tokens, prompts], dim=1)
        with torch.no_grad():
            old = self.logps(tokens)
        advantages = torch.randn(len(tokens), 1)
        self.adamw.zero_grad()
        ratio = (self.logps(tokens) - old).exp()
        clipped = ratio.clamp(0.8, 1.28)
        (-torch.minimum(ratio * advantages, clipped * advantages).mean()).backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.adamw.step()


def trl_step(folder: Path) -> float | None:
    """Seconds of one GRPO step of TRL on 32 completions; None where it is not installed."""
    if importlib.util.find_spec("trl") is None:
        return None
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    save_tokenizer(train_tokenizer(["a b c " * 50], entries=300), folder, context=2048)
    times: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: object, **__: object) -> None:
            times.append(time.perf_counter() - self.began)

    prompt = "a b c " * (PROMPT // 6)
    with tempfile.TemporaryDirectory() as out:
        trainer = GRPOTrainer(
            model=str(folder),
            reward_funcs=lambda completions, **_: np.random.default_rng(0).random(len(completions)),
            args=GRPOConfig(
                output_dir=out,
                per_device_train_batch_size=BATCH,
                num_generations=8,
                max_completion_length=REPLY,
                max_steps=4,
                learning_rate=1e-6,
                beta=0.0,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                dataloader_pin_memory=False,
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list([{"prompt": prompt}] * 64),
            processing_class=transformers.AutoTokenizer.from_pretrained(folder),
            callbacks=[Clock()],
        )
        trainer.train()
    return statistics.median(times[1:])


# -- this side --------------------------------------------------------------------------------


class Ours:
    """The sampler and the learner, with the settings a laptop run has."""

    def __init__(self, c: ModelConfig, params: Params) -> None:
        self.c = c
        self.tx = step.optimizer(1e-6, beta1=0.9, beta2=0.999, weight_decay=0.01, clip_norm=1.0)
        self.state = step.create(jax.tree.map(jnp.copy, params), self.tx)
        self.sampler = Sampler(
            self.state.params, c, slots=BATCH, context=1024, stop_ids=(-1,), dtype=jnp.float32
        )
        settings = Settings(
            passes=1,
            minibatches=1,
            row_tokens=(PROMPT + REPLY, TURNS * (TURN_PROMPT + TURN_REPLY)),
            rows=(8, 4),
            aggregation="token_mean",
            temperature={Role.AGENT: 1.0, Role.DESIGNER: 1.0},
            max_gap=1e-4,
            max_lag={Role.AGENT: 0, Role.DESIGNER: 0},
        )
        self.learner = Learner(c, Hyper(), self.tx, settings, None)

    def forward(self, tokens_BT: np.ndarray) -> None:
        jax.block_until_ready(logps(self.state.params, tokens_BT, self.c))

    def train(self, rows: tuple[batching.Rows, ...], counts: np.ndarray) -> None:
        h = Hyper(objective="supervised")
        self.state, _ = step.train_step(self.state, rows, counts, c=self.c, h=h, tx=self.tx)
        jax.block_until_ready(self.state)

    def generate(self, prompts: np.ndarray, turns: int, reply: int) -> list[TokenRecord]:
        """Records of conversations of some turns; each reads the prompt again at every turn."""
        self.sampler.load(self.state.params)
        slots = [self.sampler.open() for _ in prompts]
        records = [TokenRecord()] * len(slots)
        for turn in range(turns):
            for slot, ids in zip(slots, prompts.tolist(), strict=True):
                records[slot] = records[slot].read(tuple(ids))
                self.sampler.submit(
                    slot, ids, stream=(slot, turn), budget=reply, sampling=Sampling()
                )
            while self.sampler.busy:
                for slot, s in self.sampler.advance().items():
                    records[slot] = records[slot].wrote(s.ids, s.logp, s.behaviour)
        return records

    def gradient_step(self, prompts: np.ndarray, turns: int, reply: int) -> dict[str, float | None]:
        records = self.generate(prompts, turns, reply)
        version = int(self.state.step)
        samples = [
            Sample(role=Role.AGENT, records=(record,), advantage=(-1.0) ** n, version=version)
            for n, record in enumerate(records)
        ]
        self.state, stats = self.learner.update(self.state, samples, random.Random(0))
        jax.block_until_ready(self.state)
        return stats


def logps(params: Params, tokens_BT: np.ndarray, c: ModelConfig) -> jax.Array:
    return _logps(params, jnp.asarray(tokens_BT), c)


def _logps_of(params: Params, tokens_BT: jax.Array, c: ModelConfig) -> jax.Array:
    shape = tokens_BT.shape
    positions_BT = jnp.broadcast_to(jnp.arange(shape[1]), shape)
    x_BTD = model.hidden(params, tokens_BT, positions_BT, jnp.ones(shape, jnp.int32), c)
    targets_BT, ones_BT = jnp.roll(tokens_BT, -1, axis=1), jnp.ones(shape)
    return model.token_logps(params, x_BTD, targets_BT, ones_BT, c)[0]


_logps = jax.jit(_logps_of, static_argnames=("c",))


def packed(tokens_BT: np.ndarray) -> tuple[tuple[batching.Rows, ...], np.ndarray]:
    """Rows of one conversation each, all of whose tokens are learned, four to a micro-batch."""
    rows = [
        Row(TokenRecord().wrote(tuple(ids), (0.0,) * len(ids)), Role.AGENT, 0.0, 1.0)
        for ids in tokens_BT.tolist()
    ]
    weights = batching.token_weights(rows, "token_mean")
    batch, counts, _ = batching.pack(rows, weights, buckets=(LENGTH,), micro_rows=(4,))
    return batch, counts


class SelfPlay:
    """Conversations of three turns, replies of 32 to 256 tokens; one begins where one has ended."""

    def __init__(self, ours: Ours, seed: int) -> None:
        self.ours, self.rng = ours, np.random.default_rng(seed)
        self.new_tokens = 0  # that have to be read

    def ask(self, slot: int, turn: int, budget: int) -> None:
        ids = self.rng.integers(2, VOCAB, TURN_PROMPT).tolist()
        self.new_tokens += len(ids) + (turn % 3 > 0)  # a reply's last token comes with the next
        self.ours.sampler.submit(slot, ids, stream=(slot, turn), budget=budget, sampling=Sampling())

    def budget(self) -> int:
        return int(self.rng.integers(*REPLIES, endpoint=True))

    def begin(self) -> list[int]:
        """All slots, open and empty, and the counters at zero."""
        self.ours.sampler.load(self.ours.state.params)
        self.ours.sampler.work, self.new_tokens = Work(), 0
        return [self.ours.sampler.open() for _ in range(BATCH)]

    def play(self, replies: int) -> Work:
        """What it took to sample so many replies."""
        sampler, turns = self.ours.sampler, dict.fromkeys(self.begin(), 0)
        for slot in turns:
            self.ask(slot, 0, self.budget())
        done = 0
        while done < replies:
            for slot in sampler.advance():
                done += 1
                turns[slot] += 1
                if turns[slot] % 3 == 0:
                    sampler.close(slot)
                    sampler.open()
                self.ask(slot, turns[slot], self.budget())
        return sampler.work

    def full(self) -> Work:
        """What it takes where all slots decode from the first step to the last, in step.

        The replies are as long as those of play are on average, after as much context.
        """
        for slot in self.begin():
            ids = self.rng.integers(2, VOCAB, 2 * TURN_PROMPT + MEAN_REPLY).tolist()
            self.ours.sampler.submit(
                slot, ids, stream=(slot, 0), budget=MEAN_REPLY, sampling=Sampling()
            )
        while self.ours.sampler.busy:
            self.ours.sampler.advance()
        return self.ours.sampler.work


def show_self_play(ours: Ours, repeats: int) -> None:
    """Decoding in play beside decoding with all slots full, taking turns; what is read;
    log-probabilities."""
    game = SelfPlay(ours, seed=1)
    rates: list[tuple[float, float]] = []
    for _ in range(repeats + 1):
        playing = game.play(replies=160)
        read = playing.tokens_read / game.new_tokens
        works = playing, game.full()
        rates.append(tuple(work.tokens_decoded / work.decoding_s for work in works))
    rates = rates[1:]  # the first time compiles
    play, full = map(statistics.median, zip(*rates, strict=True))
    shares = [a / b for a, b in rates]
    print(
        f"decoding in play {play:,.0f} tokens/s, with all slots full {full:,.0f}: "
        f"{play / full:.2f} ({min(shares):.2f} to {max(shares):.2f})"
    )
    print(f"tokens read for each new one, over turns of a conversation: {read:.3f}")
    turn = game.rng.integers(2, VOCAB, (BATCH, TURN_PROMPT))
    stats = ours.gradient_step(turn, TURNS, TURN_REPLY)
    print(
        "gap of sampler's and learner's log-probabilities: mean "
        f"{stats['learn/logprob_gap_mean']:.1e}, largest {stats['learn/logprob_gap_max']:.1e}"
    )


def comparisons(
    theirs: Torch, ours: Ours
) -> list[tuple[str, Callable[[], object], Callable[[], object]]]:
    """Title, their work and the same work here."""
    rng = np.random.default_rng(0)
    rows = rng.integers(2, VOCAB, (ROWS, LENGTH))
    prompts = rng.integers(2, VOCAB, (BATCH, PROMPT))
    turn = rng.integers(2, VOCAB, (BATCH, TURN_PROMPT))
    torch_rows, torch_prompts, torch_turn = map(torch.tensor, (rows, prompts, turn))
    batch, counts = packed(rows)
    return [
        (
            f"forward, {ROWS} x {LENGTH}",
            lambda: theirs.forward(torch_rows),
            lambda: ours.forward(rows),
        ),
        (
            f"forward, backward, update, {ROWS} x {LENGTH}",
            lambda: theirs.train(torch_rows),
            lambda: ours.train(batch, counts),
        ),
        (
            f"generate, {BATCH} x ({PROMPT} + {REPLY})",
            lambda: theirs.generate(torch_prompts, REPLY),
            lambda: ours.generate(prompts, 1, REPLY),
        ),
        (
            f"policy-gradient step, {BATCH} x ({PROMPT} + {REPLY})",
            lambda: theirs.gradient_step(torch_prompts, 1, REPLY),
            lambda: ours.gradient_step(prompts, 1, REPLY),
        ),
        (
            f"the same, {TURNS} turns of {TURN_PROMPT} + {TURN_REPLY}",
            lambda: theirs.gradient_step(torch_turn, TURNS, TURN_REPLY),
            lambda: ours.gradient_step(turn, TURNS, TURN_REPLY),
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        theirs = Torch(reference(Path(name)))
        c, params = hub.load(name)
        ours = Ours(c, params)
        print(
            f"{machine()}, PyTorch {torch.__version__}, transformers {transformers.__version__}\n"
            f"{model.count(c):,} parameters, float32; medians of {repeats}\n"
            f"{'':<52}{'PyTorch':>9}{'here':>9}{'ratio':>7}",
            flush=True,
        )

        def line(name: str, theirs: float, here: float) -> None:
            print(f"{name:<52}{theirs:>7.3g} s{here:>7.3g} s{theirs / here:>6.2f}x", flush=True)

        for title, other, own in comparisons(theirs, ours):
            line(title, *medians((other, own), repeats))
        if (seconds := trl_step(Path(name))) is not None:
            prompts = np.random.default_rng(1).integers(2, VOCAB, (BATCH, PROMPT))
            [own] = medians([lambda: ours.gradient_step(prompts, 1, REPLY)], repeats)
            line(f"GRPO step of TRL, {BATCH} x ({PROMPT} + {REPLY})", seconds, own)
        show_self_play(ours, repeats)


if __name__ == "__main__":
    main()
