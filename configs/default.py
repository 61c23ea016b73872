"""Every field of a run, in the order of an iteration. Other configs start from this one.

Values are the published games recipe where the paper gives one. Lengths are in tokens, times in
seconds, memory in MiB. Not meant to be launched as it is: `tiny.py` is the config for a laptop.
"""

from ml_collections import config_dict


def get_config() -> config_dict.ConfigDict:
    c = config_dict.ConfigDict()
    c.seed = 42  # every random stream of the run is derived from it
    c.iterations = 400
    c.schedule = "deterministic"  # bit for bit reproducible | overlap: environments and sampler

    # Devices by what is divided among them: data (rows), fsdp (rows and parameters), tensor (heads
    # and feed-forward) and expert; -1: those that are left.
    c.mesh = (1, -1, 1, 1)

    c.hosts = config_dict.ConfigDict()
    c.hosts.connect_seconds = 300.0  # in which all hosts of a run must have met
    c.hosts.heartbeat_seconds = 100  # without a sign of life of one, after which the others end
    c.hosts.per_replica = 1  # neighbours that sample as one, where the chips of one hold no model

    c.model = config_dict.ConfigDict()
    c.model.path = ""  # a Hugging Face folder or a run's workdir; "" is the shipped policy
    c.model.compute_dtype = "bfloat16"  # of activations; parameters are float32
    # What the backward pass keeps of a layer, from most memory to least: none (nothing is computed
    # again) | products (with weights, and attention's output) | dots (with weights) | attention
    # (its output) | layer (only the input).
    c.model.remat = "layer"
    # auto: the platform's | einsum | dot_product | cudnn or flash on a GPU | splash on a TPU
    c.model.attention = "auto"
    c.model.think = "auto"  # auto | keep | strip earlier thinking; auto: as the chat template does
    c.model.template_options = "{}"  # JSON of switches: '{"enable_thinking": false}'

    # Largest loss on a bundled text before training starts, as a share of log(vocabulary), that of
    # a uniform guess: a failed conversion has more; 0: no check.
    c.model.max_loss = 0.5
    c.model.lora = config_dict.ConfigDict()
    c.model.lora.rank = 0  # of the adapters, which are trained alone; 0: the whole model is
    c.model.lora.alpha = 32.0  # alpha / rank is the weight of an adapter's product
    c.model.lora.targets = "layers/(q|k|v|o|gate|up|down)"  # regular expression of matrices

    c.skills = (
        "Mathematical Reasoning",
        "Logical Deduction",
        "Spatial Reasoning",
        "Pattern Recognition",
        "Optimization",
        "Causal Inference",
    )
    c.skills_per_epoch = 3  # skills active at once, round robin over regenerations

    c.corpus = config_dict.ConfigDict()
    # A .jsonl or .parquet file with `text` or `orig_doc`, a folder or pattern of such files, or
    # tfds:NAME[/CONFIG][:VERSION], a tensorflow-datasets set; "" is the bundled corpus.
    c.corpus.path = ""
    c.corpus.data_dir = ""  # where tfds:NAME lies; "" is tensorflow-datasets' own folder
    c.corpus.split = "train"  # of tfds:NAME; "train[:10%]" is a part of one
    c.corpus.enabled = True  # False: design without documents
    c.corpus.seed = 42  # of the shuffle
    c.corpus.max_words = 6000  # a document's length in the prompt

    c.memory = config_dict.ConfigDict()
    c.memory.enabled = True  # False: design without remembering
    c.memory.size = 200  # records kept, oldest out
    c.memory.positives = 2  # examples of good environments in a prompt
    c.memory.negatives = 1  # examples of too easy or too hard ones
    c.memory.code_characters = 2000  # length of an example in the prompt, cut at a line end

    c.design = config_dict.ConfigDict()
    c.design.prompts = "games"  # set of prompt texts in spade_jax/design/prompts
    c.design.num_envs = 24  # designs per regeneration
    c.design.per_prompt = 1  # designs that answer the same prompt; divides num_envs
    c.design.repair_turns = 0  # times a rejected design may be written anew; the first is trained
    c.design.regenerate_every = 4  # iterations an epoch of environments is played
    c.design.max_tokens = 16384  # of one design
    c.design.temperature = 0.6
    c.design.top_p = 1.0  # the most probable tokens that reach this share; 1: all
    c.design.top_k = 0  # so many of the most probable tokens; 0: all
    c.design.min_p = 0.0  # tokens at least so probable, relative to the most probable one
    c.design.thinking = "auto"  # on | off: the template's switch enable_thinking | auto: its own

    c.environments = config_dict.ConfigDict()
    c.environments.source = "designer"  # designer | fixed: a pool | procedural: tasks with levels
    c.environments.probe = False  # True: given ones that break at once are left out of an epoch
    c.environments.path = ""  # of a fixed pool: a folder, .jsonl or .parquet; "" is the bundled one
    c.environments.size = 0  # programs of the fixed pool; 0: all (480 bundled ones)
    c.environments.provider = "families"  # of procedural tasks: families | reasoning_gym | rlve_gym
    c.environments.tasks = ()  # names of procedural tasks; (): all of the provider
    c.environments.max_level = 16  # of a procedural task; families have 5
    c.environments.difficulty = (
        "window"  # window: levels up to a rising one | potential: by learning
    )
    c.environments.window = 4  # levels it spans
    c.environments.attempts = 128  # plays at its top level between looks at them ...
    c.environments.success = 0.9  # ... that raise it where this share was won
    c.environments.gamma_fast = 0.35  # decay of the trackers of learning potential
    c.environments.gamma_slow = 0.15
    c.environments.random_share = 0.5  # of the environments, chosen at random and not by potential

    c.hint = config_dict.ConfigDict()
    # method: hint() of the program, for the instance | one text for all instances, written by the
    # policy from the finished program: self | the designer beside the program: reply | a served
    # model from the finished program: endpoint
    c.hint.source = "self"
    c.hint.max_tokens = 4096  # of a hint that self or endpoint writes, thinking included
    c.hint.temperature = 0.3
    c.hint.top_p = 1.0
    c.hint.top_k = 0
    c.hint.min_p = 0.0
    c.hint.endpoint_url = ""  # of an OpenAI-compatible server, up to and with /v1
    c.hint.endpoint_model = ""  # the name the server knows it by
    c.hint.endpoint_key = ""  # environment variable that holds the API key; "" sends none

    c.judge = config_dict.ConfigDict()
    c.judge.source = "none"  # none | self: the policy | endpoint: a served model
    c.judge.play_characters = 4000  # of the play it is shown, cut at a line end
    c.judge.max_tokens = 4096  # of a judgement, thinking included
    c.judge.temperature = 0.3
    c.judge.top_p = 1.0
    c.judge.top_k = 0
    c.judge.min_p = 0.0
    c.judge.endpoint_url = ""
    c.judge.endpoint_model = ""
    c.judge.endpoint_key = ""

    c.validation = config_dict.ConfigDict()
    c.validation.seeds = 32  # instances tried for triviality
    c.validation.solve_seeds = 4  # instances on which solution() must succeed
    c.validation.max_trivial = 0.1  # share of instances a constant or null action may win
    c.validation.max_random = 0.25  # share random actions may win (or chance + 0.1)

    c.novelty = config_dict.ConfigDict()
    c.novelty.threshold = 0.9  # resemblance of code from which on it nearly repeats; 1: off
    c.novelty.quota = 4  # near-duplicates accepted at a regeneration

    c.pool = config_dict.ConfigDict()
    # Environments whose last iteration's win rate is above retire_easy or below retire_hard are
    # played no more; 1 and 0 retire none.
    c.pool.retire_easy = 1.0
    c.pool.retire_hard = 0.0
    c.pool.min_plays = 8  # plain plays before an environment may retire
    c.pool.keep = 0  # most environments within these bounds that go on into the next epoch

    c.sandbox = config_dict.ConfigDict()
    c.sandbox.step_seconds = 2.0  # wall limit of construct, reset and step, each
    c.sandbox.cpu_seconds = 20.0  # of one instance, in all
    c.sandbox.memory_mb = 256  # of one instance, beyond the interpreter
    c.sandbox.max_instances = 256  # processes at once
    c.sandbox.max_observation = 8192  # characters
    c.sandbox.unsafe = False  # run programs even where the kernel has no system-call filter

    c.play = config_dict.ConfigDict()
    c.play.plays = 8  # plain episodes of an environment per iteration, all trained
    c.play.hint_plays = 16  # hinted episodes at regeneration, never trained
    c.play.paired_plays = False  # True: plain partners for all of them, for regret alone
    c.play.max_turns = 25
    c.play.reply_tokens = 8192  # of one turn
    c.play.context = 32768  # tokens of a whole episode
    c.play.temperature = 0.6
    c.play.top_p = 1.0
    c.play.top_k = 0
    c.play.min_p = 0.0
    c.play.thinking = "auto"  # as design.thinking, for the agent
    c.play.mask_truncated = False  # True: truncated episodes leave the loss

    c.sampling = config_dict.ConfigDict()
    c.sampling.slots = 192  # conversations side by side on a replica, each with its own cache
    c.sampling.block = 16  # tokens of each that are decoded before others may join
    # Devices of a replica among which heads and experts are divided while it samples; both 0: on a
    # single host as in mesh, on several heads and then experts among as many as can be.
    c.sampling.tensor = 0
    c.sampling.expert = 0

    c.reward = config_dict.ConfigDict()
    c.reward.episode_return = "final"  # final | sum | discounted
    c.reward.discount = 0.99  # used by discounted
    c.reward.designer = "blend"  # blend | regret | solve_rate | learning_potential | micro_lp
    c.reward.w_regret = 0.4
    c.reward.w_plateau = 0.6
    c.reward.regret_scale = 0.15  # regret that earns the full term
    c.reward.plateau_low = 0.4  # win rates in [low, high] earn the full term ...
    c.reward.plateau_high = 0.6
    c.reward.plateau_ramp = 0.25  # ... falling to 0 over this distance
    c.reward.w_micro = 0.0  # of the blend: what the window's fitted line gains ...
    c.reward.micro_scale = 0.1  # ... in units of this
    c.reward.w_frontier = 0.0  # of the blend, taken off: (win rate - 0.5)^2 ...
    c.reward.frontier_scale = 0.08  # ... in units of this
    c.reward.w_variance = 0.0  # of any designer reward: a bonus where returns have variance 0.25
    c.reward.penalty = -0.5  # of a rejected design
    c.reward.penalty_by_reason = "{}"  # JSON of exceptions: '{"leak": -1.0}'
    c.reward.hang_penalty = -0.5  # of one that hung in play
    c.reward.leak_penalty = 0.0  # of one all of whose hints hold the answer, else its share
    c.reward.penalties = "outside"  # outside the centring by skill | centred: raw rewards in it
    c.reward.max_role_scale = 50.0  # cap on the weight of one designer sample
    c.reward.gamma_fast = 0.98  # decay of the trackers of learning potential
    c.reward.gamma_slow = 0.85

    c.advantage = config_dict.ConfigDict()
    c.advantage.agent = "grpo"  # grpo | centred | ema_baseline
    c.advantage.ema_decay = 0.5  # used by ema_baseline
    c.advantage.designer = "skill"  # designs compared by skill | prompt

    c.learn = config_dict.ConfigDict()
    c.learn.train_designer = True  # False: the designer is frozen
    c.learn.designer_delay = 4  # iterations a designer sample waits for its plays
    c.learn.passes = 1  # over an iteration's samples
    c.learn.minibatches = 1  # optimizer steps per pass
    c.learn.row_tokens = (8192, 32768)  # lengths of packed rows
    c.learn.rows = (4, 1)  # packed rows of each length in a micro-batch
    c.learn.clip_low = 0.2
    c.learn.clip_high = 0.28
    c.learn.aggregation = "token_mean"  # token_mean | sequence_mean
    c.learn.importance_cap = 2.0  # of the truncated importance weight; 0 turns it off
    c.learn.kl = 0.0  # coefficient of the k3 estimate to the starting weights
    c.learn.entropy = 0.0  # coefficient of the entropy bonus
    c.learn.logprob_gap = 1e-4  # sampler's serve as old ones of several updates under this gap
    c.learn.max_skipped = 5  # non-finite steps in a row that stop the run
    c.learn.role_norms = False  # True: norm of each role's share of the gradient, packed apart
    # Decay of the mean of what is trained, which starts as it does; in-loop evaluation plays with
    # the mean, episodes and `model.path` with the weights themselves; 0: no mean is kept.
    c.learn.ema_decay = 0.0

    c.optimizer = config_dict.ConfigDict()
    c.optimizer.lr = 1e-6
    c.optimizer.warmup = 0  # updates over which the rate rises to lr
    c.optimizer.final_norm_rate = 1.0  # rate of the final norm's scale, relative to lr
    c.optimizer.beta1 = 0.9
    c.optimizer.beta2 = 0.98
    c.optimizer.eps = 1e-8  # added to the root of the second moment
    c.optimizer.weight_decay = 0.1
    c.optimizer.clip_norm = 1.0
    # bfloat16 takes 2 of the 12 bytes a parameter off the state and every checkpoint.
    c.optimizer.first_moment_dtype = "float32"

    # Bounds of the alarms in spade_jax/health.py, where 0 turns one off; they change no update.
    c.health = config_dict.ConfigDict()
    c.health.valid_share = 0.2  # of the designs: alarm below it
    c.health.duplicate_share = 0.5  # of the designs: alarm from it up
    c.health.diversity = 0.05  # of the accepted designs: alarm below it
    c.health.zero_variance_share = 0.9  # of the environments, whose plays returned the same
    c.health.success_low = 0.02  # of the plain plays: alarm below it
    c.health.success_high = 0.98
    c.health.regret_ratio = -3.0  # mean regret over its standard error: alarm below it
    c.health.hint_leak_share = 0.2  # of the hinted plays
    c.health.hints_missing = 1  # environments for which no hint could be written
    c.health.judge_unknown_share = 0.5  # of the designs judged, without a readable answer
    c.health.failed_share = 0.1  # of the plays, whose environment broke
    c.health.entropy = 0.01  # nats a token, of either role: alarm below it
    c.health.truncated_share = 0.5  # of plays, and of designs, cut off by a budget
    c.health.clip_share = 0.3  # of the trained tokens
    c.health.logprob_gap = 2.0  # nats, the largest between sampler and learner
    c.health.sampler_kl = 0.05  # nats a token, from sampler to learner
    c.health.effective_sample_size = 0.5  # of the tokens: alarm below it
    c.health.skipped_in_row = 1  # updates left out for not being finite
    c.health.stop_valid_share = 0.0  # a lower share of valid designs, ...
    c.health.stop_after = 3  # ... at so many regenerations in a row, stops the run; 0.0: never

    c.checkpoint = config_dict.ConfigDict()
    c.checkpoint.every = 10  # iterations
    c.checkpoint.keep = 2  # newest checkpoints kept
    c.checkpoint.keep_every = 0  # those of iterations it divides are kept too; 0: none of them

    # Seconds after which a stage counts as hung: all stacks are printed and the run ends with exit
    # code 70; 0: never. The first iteration compiles.
    c.watchdog = config_dict.ConfigDict()
    c.watchdog.start = 0.0  # weights, corpus, newest checkpoint
    c.watchdog.iteration = 0.0  # a whole one, without evaluating and saving
    c.watchdog.design = 0.0
    c.watchdog.validate = 0.0
    c.watchdog.hint = 0.0
    c.watchdog.play = 0.0
    c.watchdog.learn = 0.0
    c.watchdog.evaluate = 0.0
    c.watchdog.checkpoint = 0.0

    c.evaluation = config_dict.ConfigDict()
    c.evaluation.every = 50  # iterations; 0: only before and after
    c.evaluation.per_level = 12  # held-out instances of each family and level
    c.evaluation.seed = 7
    # Benchmarks of spade_jax.evaluate that are run as well, by name (reasoning_gym, ...).
    c.evaluation.suites = ()
    c.evaluation.limit = 0  # items of each of their groups; 0: all
    c.evaluation.k = 0  # plays of an item; 0: as many as the suite says
    c.evaluation.reply_tokens = 0  # most of a reply in them; 0: as the suite says
    c.evaluation.data = ""  # file or folder of their items, where they need some

    c.log = config_dict.ConfigDict()
    c.log.episodes = 16  # transcripts kept per iteration; -1 keeps all
    c.log.tensorboard = True  # events for TensorBoard beside metrics.jsonl
    c.log.wandb = "off"  # off | online | offline: a run of Weights & Biases, too
    c.log.project = "spade_jax"  # of Weights & Biases

    return c
