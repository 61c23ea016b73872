"""Tool use: the published recipes for Qwen3 of three sizes (arXiv 2608.19197).

Command: python -m spade_jax.train --config=tool_use:qwen3_8b --workdir=runs/tool_use-qwen3_8b
Variants: qwen3_4b (if none is named), qwen3_8b, qwen3_30b_a3b. Ablations: further words, such as
tool_use:qwen3_8b,no_memory; ablations.py has them all.
Weights, documents and hardware: as games.py says; the frozen weights of the KL term take another
16 GB (4B), 33 GB (8B) and 122 GB (30B-A3B).
Time and results: not measured here; the paper reports 5.7 points more on BFCL v4 multi-turn and
13.9 on ACEBench agent than the best fixed environments.
"""

from ml_collections import config_dict

from spade_jax.configs import ablations, default
from spade_jax.design.skills import TOOL_USE_SKILLS


def get_config(words: str = "") -> config_dict.ConfigDict:
    c = default.get_config()
    c.schedule = "overlap"  # replies of thousands of tokens: nobody waits for a round to end
    c.skills = TOOL_USE_SKILLS
    c.skills_per_epoch = 6

    c.corpus.path = "data/corpus.jsonl"
    c.corpus.max_words = 4000

    c.design.regenerate_every = 8
    c.design.top_p = 0.95
    c.design.top_k = 20

    c.hint.max_tokens = 2048
    c.judge.source = "self"

    c.play.top_p = 0.95
    c.play.top_k = 20
    c.play.mask_truncated = True

    c.sampling.slots = 48  # games.py says why, and why these rows

    c.learn.designer_delay = 8
    c.learn.row_tokens = (8192, 32768)
    c.learn.rows = (32, 8)
    c.learn.kl = 0.005

    c.watchdog.start = c.watchdog.checkpoint = 3600.0
    c.watchdog.iteration = c.watchdog.evaluate = 6 * 3600.0
    return ablations.vary(c, words, VARIANTS)


def qwen3_4b(c: config_dict.ConfigDict) -> None:
    """Qwen3-4B-Instruct-2507, which does not think: fewer environments, played longer."""
    c.model.path = "models/Qwen3-4B-Instruct-2507"
    c.iterations = 500
    c.design.num_envs = 16
    c.design.regenerate_every = 32
    c.hint.max_tokens = 512
    c.play.plays = 16
    c.play.hint_plays = 4
    c.reward.designer = "regret"
    c.reward.w_variance = 1.0
    c.learn.designer_delay = 32


def qwen3_8b(c: config_dict.ConfigDict) -> None:
    """Qwen3-8B, thinking in both roles."""
    c.model.path = "models/Qwen3-8B"
    c.design.thinking = c.play.thinking = "on"
    c.mesh = (1, -1, 2, 1)
    c.design.max_tokens = 20000
    c.sampling.slots = 32
    c.learn.rows = (16, 4)


def qwen3_30b_a3b(c: config_dict.ConfigDict) -> None:
    """Qwen3-30B-A3B-Instruct-2507, a mixture of experts which does not think."""
    c.model.path = "models/Qwen3-30B-A3B-Instruct-2507"
    c.mesh = (1, -1, 4, 1)
    c.sampling.slots = 64
    c.learn.rows = (64, 16)


VARIANTS: dict[str, ablations.Change] = {
    variant.__name__: variant for variant in (qwen3_4b, qwen3_8b, qwen3_30b_a3b)
}
