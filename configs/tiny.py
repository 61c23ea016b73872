"""Self-play of the small policy shipped in the package, on a laptop's CPU.

Command: bash launch/local.sh   (or python -m spade_jax.train --config=tiny --workdir=runs/tiny)
Hardware: two CPU cores. The README says what to expect and in what time.
Ablations: words after a colon, such as tiny:no_corpus,two_skills; ablations.py has them all.
"""

from ml_collections import config_dict

from spade_jax.configs import ablations, default


def get_config(words: str = "") -> config_dict.ConfigDict:
    c = default.get_config()
    c.iterations = 60

    c.model.compute_dtype = "float32"

    c.skills = (
        "Mathematical Reasoning",
        "Logical Deduction",
        "Spatial Reasoning",
        "Pattern Recognition",
        "Optimization",
        "Causal Inference",
        "Data Retrieval",
        "Multi-Step Workflows",
    )
    c.skills_per_epoch = 8

    c.corpus.max_words = 16

    c.memory.positives = 1
    c.memory.negatives = 1
    c.memory.code_characters = 200

    c.design.prompts = "tiny"
    c.design.max_tokens = 448
    c.design.temperature = 1.0

    c.novelty.threshold = 1.0  # the families it writes resemble one another

    c.hint.source = "method"

    c.play.hint_plays = 8
    c.play.max_turns = 8
    c.play.reply_tokens = 48
    c.play.context = 384
    c.play.temperature = 1.0

    # Failures among the raw rewards: what is pushed away from them is drawn to valid designs.
    c.reward.penalties = "centred"
    c.reward.max_role_scale = 0.5

    # The gradients of two batches of 192 plays have a cosine of 0.13 with this aggregation and of
    # 0.06 with token_mean, where episodes of many turns drown the others.
    c.learn.aggregation = "sequence_mean"
    c.learn.row_tokens = (192, 640)
    c.learn.rows = (8, 2)

    # Noise in the matrices is what harms the designer: at 3e-4 hardly a design was valid after 28
    # iterations.
    # The final norm's gradient is the one that agrees from batch to batch (cosine 0.4), and says
    # that the policy should be more decided; at lr itself it would take thousands of updates.
    c.optimizer.lr = 1.5e-4
    c.optimizer.final_norm_rate = 400.0
    c.optimizer.warmup = 5
    c.optimizer.eps = 1e-5
    c.optimizer.weight_decay = 0.0

    c.evaluation.every = 20
    return ablations.vary(c, words)
