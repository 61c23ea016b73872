"""Warm start of the tiny policy that ships in the package.

Command: python -m spade_jax.warmstart --config=warmstart --workdir=runs/warmstart
Hardware: a CPU with two cores. The program prints how long it takes and how it did.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    c = config_dict.ConfigDict()
    c.seed = 1
    c.prompts = "tiny"  # set of prompt texts in spade_jax/design/prompts

    c.model = config_dict.ConfigDict()
    c.model.path = ""  # folder of Hugging Face files to start from; "": a new model of these sizes
    c.model.width = 128
    c.model.layers = 5
    c.model.heads = 4
    c.model.kv_heads = 2
    c.model.head_size = 32
    c.model.ffn = 384
    c.model.rope_theta = 10000.0
    # Tokens far apart from the start, or copying is learned late: after 400 steps a lesson on
    # look-ups cost 0.7 nats at 0.2 (Muon at 2e-3) and 12 at the usual 0.02 (at 4e-3).
    c.model.embed_std = 0.2  # of a new model's embedding
    c.model.context = 1024  # positions
    c.model.vocabulary = 1024  # entries of a new tokenizer
    c.model.compute_dtype = "float32"
    c.model.remat = "none"  # as in default.py

    c.data = config_dict.ConfigDict()
    c.data.path = ""  # JSONL of {"messages": [{"role", "content"}, ...]}; "": the bundled generator
    c.data.programs = 9000  # design lessons of the bundled generator
    c.data.episodes = 10  # scripted episodes in each program, every second one hinted
    c.data.single_turn_episodes = 20  # the same where the first answer ends the episode
    c.data.max_words = 16  # of the document in a design prompt
    c.data.code_characters = 200  # of an example in a design prompt
    c.data.max_turns = 8  # of a scripted episode

    c.train = config_dict.ConfigDict()
    c.train.steps = 9000  # optimizer steps
    c.train.lr = 2e-3  # peak of Muon, which trains the layers' matrices
    c.train.adam_lr = 4e-3  # peak of AdamW, which trains the rest
    c.train.warmup = 100  # steps of linear rise
    c.train.final_share = 0.02  # of the peak, reached by a cosine at the last step
    c.train.row_tokens = (192, 832)  # lengths of packed rows
    c.train.rows = (9, 1)  # packed rows of each length in a step
    c.train.aggregation = "token_mean"  # token_mean | sequence_mean
    c.train.beta1 = 0.9
    c.train.beta2 = 0.98
    c.train.weight_decay = 0.1
    c.train.clip_norm = 1.0
    c.train.checkpoint_every = 500  # steps

    c.evaluate = config_dict.ConfigDict()
    c.evaluate.designs = 200  # sampled at temperature 1
    c.evaluate.per_level = 20  # held-out instances of each family and level, in each arm
    c.evaluate.slots = 192  # sequences side by side
    return c
