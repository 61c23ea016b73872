"""Games: the published recipes for Qwen3 of three sizes (arXiv 2608.19197), and a small one.

Command: python -m spade_jax.train --config=games:qwen3_4b --workdir=runs/games-qwen3_4b
Variants: qwen3_4b (if none is named), qwen3_8b, qwen3_30b_a3b; qwen3_4b_long goes on from a
finished qwen3_4b with a longer context and harder games. qwen3_0_6b is no published recipe, but
the smallest real run: one TPU VM of eight 16 GB chips, or one GPU of 80 GB. Ablations: further
words, such as games:qwen3_30b_a3b,no_memory; ablations.py has them all.
Weights: in models/ of the current folder, as `hf download Qwen/Qwen3-4B-Instruct-2507 --local-dir
models/Qwen3-4B-Instruct-2507` puts them; elsewhere with --config.model.path.
Documents: data/corpus.jsonl, one of which grounds each of 2,400 designs; or --config.corpus.path.
Hardware: by arithmetic, not yet by trial, eight accelerators of 80 GB, and 32 for 30B-A3B.
Parameters, their two moments and the gradient take 64 GB (4B), 131 GB (8B) and 489 GB (30B-A3B) in
all; tests/test_recipes.py adds up what each device holds. A checkpoint has parameters and moments:
7 GB (0.6B), 48 GB (4B), 98 GB (8B), 366 GB (30B-A3B); a disk needs room for three.
Time and results: not measured here; the paper reports eight held-out benchmarks 5.3 points above
the best fixed environments, on average.
"""

from ml_collections import config_dict

from spade_jax.configs import ablations, default


def get_config(words: str = "") -> config_dict.ConfigDict:
    c = default.get_config()
    c.schedule = "overlap"  # replies of thousands of tokens: nobody waits for a round to end
    c.corpus.path = "data/corpus.jsonl"  # the bundled documents are few and short

    c.design.top_p = 0.95
    c.design.top_k = 20

    c.play.top_p = 0.95
    c.play.top_k = 20

    # A slot's cache holds 32,768 tokens in bfloat16: 4.8 GB (3.2 GB for 30B-A3B), so that a device
    # has room for six beside the 4B. The pool's 192 episodes, 576 with the hinted, take turns.
    c.sampling.slots = 48

    # A long row, or four short ones that hold nearly all episodes, for each of eight devices: what
    # is kept of every layer is 6 GB.
    c.learn.row_tokens = (8192, 32768)
    c.learn.rows = (32, 8)

    # Far more than a sound run takes: what waits for a host that is gone ends some day.
    c.watchdog.start = c.watchdog.checkpoint = 3600.0
    c.watchdog.iteration = c.watchdog.evaluate = 6 * 3600.0
    return ablations.vary(c, words, VARIANTS)


def qwen3_0_6b(c: config_dict.ConfigDict) -> None:
    """Qwen3-0.6B, not thinking: shorter documents, designs and plays, fewer iterations."""
    c.model.path = "models/Qwen3-0.6B"
    c.iterations = 100
    c.corpus.max_words = 3000
    c.design.thinking = c.play.thinking = "off"
    c.design.max_tokens = 4096
    c.hint.max_tokens = 1024
    c.play.reply_tokens = 2048
    c.play.context = 16384
    c.sampling.slots = 16  # 1.9 GB each: two on each of eight chips
    c.learn.row_tokens = (4096, 16384)
    c.learn.rows = (32, 8)


def qwen3_4b(c: config_dict.ConfigDict) -> None:
    """Qwen3-4B-Instruct-2507, which does not think."""
    c.model.path = "models/Qwen3-4B-Instruct-2507"


def qwen3_4b_long(c: config_dict.ConfigDict) -> None:
    """The later phase of qwen3_4b, whose run it starts from."""
    c.model.path = "runs/games-qwen3_4b"
    c.play.context = 49152
    c.sampling.slots = 32  # as many tokens in all
    c.reward.plateau_low = 0.2
    c.reward.plateau_high = 0.4
    c.reward.plateau_ramp = 0.2
    c.learn.row_tokens = (8192, 49152)


def qwen3_8b(c: config_dict.ConfigDict) -> None:
    """Qwen3-8B, thinking in both roles."""
    c.model.path = "models/Qwen3-8B"
    c.design.thinking = c.play.thinking = "on"
    c.mesh = (1, -1, 2, 1)  # whole, the copy that samples would take 33 GB of each device
    c.design.max_tokens = 20000
    c.sampling.slots = 32
    c.learn.kl = 0.005
    c.learn.rows = (16, 4)


def qwen3_30b_a3b(c: config_dict.ConfigDict) -> None:
    """Qwen3-30B-A3B-Instruct-2507, a mixture of experts which does not think."""
    c.model.path = "models/Qwen3-30B-A3B-Instruct-2507"
    c.mesh = (1, -1, 4, 1)  # of those the TPU's compiler was asked about the fastest, docs/tpu.md
    c.model.remat = "attention"  # 2 GB a chip more than with "layer", and 7 to 15% faster
    # A checkpoint of 366 GB, three at once before the oldest goes: 1.1 TB of disk or bucket. With
    # optimizer.first_moment_dtype=bfloat16 it is 305 GB; checkpoint.every says how much is lost.
    c.sampling.slots = 64
    c.learn.rows = (64, 16)


VARIANTS: dict[str, ablations.Change] = {
    variant.__name__: variant
    for variant in (qwen3_4b, qwen3_4b_long, qwen3_8b, qwen3_30b_a3b, qwen3_0_6b)
}
