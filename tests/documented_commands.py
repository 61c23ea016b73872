"""How each command of the docs is tested: a row for every one, and no row without its command.

A new command takes a row here, in the part of its page; what two pages have needs one. Lines of
`export` need none: they hold for the rest of their block. A page is run in a folder that has
runs/tiny (a finished run of two iterations, also as runs/seed42, and in runs/tiny-ablations with
two seeds), the scripts of launch/, the files that the page itself gives names to, and stand-ins for
gcloud and the like.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Run:
    """The command is run, or in its place `instead`: shortened, with names of what is there.

    Each of `says` must be in what it prints. With `shown`, so must each line of the text blocks
    that follow it in the page. A `slow` one is left out of the fast tier.
    """

    instead: str = ""
    says: tuple[str, ...] = ()
    shown: bool = False
    slow: bool = False


@dataclasses.dataclass(frozen=True)
class Read:
    """Its programs read their flags and configs, and stop; `test` is one of what they do then."""

    test: str
    instead: str = ""


@dataclasses.dataclass(frozen=True)
class Covered:
    """It is not run: `test` tests what it does, with other arguments or stand-ins."""

    test: str


Row = Run | Read | Covered

TRAIN = Read("tests/test_flow.py::test_sigterm_saves_and_the_same_command_goes_on")
WORDS = Read("tests/test_ablations.py::test_each_word_is_one_change")
EVALUATE = Read("tests/evals/test_evaluate.py::test_the_held_out_suite_is_what_training_plays")
WARM_START = Read("tests/test_warmstart.py::test_bundled_lessons_end_to_end")
SWEEP = Read("tests/test_sweep.py::test_dry_run_prints_each_command")
LOCAL = "tests/test_launch.py::test_local_passes_arguments_on"
EXTRAS = Covered("tests/test_docs.py::test_extras_that_pages_install_exist")
TORCH = Covered("tests/test_docs.py::test_one_release_of_torch")
SETTINGS = "--config.evaluation.per_level=1 --limit=2 --config.sampling.slots=2"

README = {
    # The run of the fixture: what is finished is not run again.
    "bash launch/local.sh": Run("bash launch/local.sh $SMALL", says=("tiny is finished: 2 it",)),
    "bash launch/local.sh --workdir=runs/try --config.iterations=20": Read(LOCAL),
    "bash launch/test.sh": Run(),
    "python -m spade_jax.play runs/tiny/environments/000000-001.py": Run(says=("/solution",)),
    "python -m spade_jax.evaluate --config=tiny --workdir=runs/tiny": EVALUATE,
    "python -m spade_jax.evaluate --suite=reasoning_gym,humaneval --model=PATH": Read(
        "tests/evals/test_reasoning_gym.py::test_items_and_settings"
    ),
    "python -m spade_jax.evaluate compare A/results.json B/results.json": Read(
        "tests/evals/test_evaluate.py::test_comparing_from_the_command_line"
    ),
    "python -m spade_jax.preflight --config=games:qwen3_30b_a3b --topology=v5p:4x4x4": Read(
        "tests/preflight/test_preflight.py::test_a_run_that_fits"
    ),
    "bash launch/pod.sh create": Run(),
    "bash launch/pod.sh setup": Run(),
    "bash launch/restart.sh bash launch/pod.sh run --config=games:qwen3_30b_a3b "
    "--workdir=gs://BUCKET/runs/big": Run(),
}

CONTRIBUTING = {
    "bash launch/test.sh -k regret": Run(),
    "bash launch/test.sh --all": Run(),
    ".venv/bin/python -m ruff format .": Run(),
}

LAUNCH = {
    "bash launch/local.sh --config.play.plays=4 --config.iterations=20": Read(LOCAL),
    "bash launch/local.sh --config=configs/tiny.py --workdir=/data/run1": Read(LOCAL),
    "bash launch/local.sh [flags of spade_jax.train]": Covered(LOCAL),
    "bash launch/test.sh [--all] [arguments of pytest]": Covered(
        "tests/test_launch.py::test_tests_are_linted_first_and_tiered"
    ),
    "bash launch/restart.sh COMMAND...": Covered("tests/launch/test_restart.py::test_restarts"),
    "bash launch/tpu_vm.sh --config=games:qwen3_0_6b --workdir=gs://BUCKET/runs/small": Run(),
    "bash launch/pod.sh stop": Covered("tests/launch/test_pod.py::test_commands_to_workers"),
    "bash launch/pod.sh delete": Covered("tests/launch/test_pod.py::test_delete"),
    "bash launch/gke.sh manifest --config=games:qwen3_30b_a3b --workdir=gs://BUCKET/runs/big": (
        Run(says=("kind: JobSet", "--config=games:qwen3_30b_a3b"))
    ),
    "bash launch/gke.sh submit --config=games:qwen3_30b_a3b --workdir=gs://BUCKET/runs/big": Run(),
    "bash launch/gke.sh logs 0 0": Run(),
    "bash launch/gke.sh xpk [flags]": Covered("tests/launch/test_gke.py::test_xpk"),
    "pip install xpk": Covered("tests/launch/test_gke.py::test_xpk"),
    "bash launch/slurm.sh --config=games:qwen3_30b_a3b --workdir=runs/big": Run(),
    "scancel --signal=INT JOB": Covered(
        "tests/launch/test_slurm.py::test_a_cancelled_job_is_not_queued_again"
    ),
    ".venv/bin/python launch/sweep.py plays.py --dry-run": Run(
        says=("--config=tiny:no_memory --config.play.plays=16",)
    ),
    ".venv/bin/python launch/sweep.py learning_rate --config=games:qwen3_4b "
    "--config.iterations=100 --dry-run": SWEEP,
    ".venv/bin/python launch/sweep.py ablations --config=games:qwen3_4b --on=slurm --jobs=4 "
    "--dry-run": Read("tests/test_sweep.py::test_commands_on_slurm"),
    ".venv/bin/python launch/sweep.py ablations --config=games:qwen3_4b --on=tpu --jobs=4 "
    "--workdir=gs://BUCKET/ablations --dry-run": Read("tests/test_sweep.py::test_commands_on_tpus"),
    "pip install torch": TORCH,
    "python3 -m venv .venv && . .venv/bin/activate": TORCH,
    'pip install --extra-index-url https://download.pytorch.org/whl/cpu "torch==2.13.0+cpu"': TORCH,
    'pip install "torch==2.13.0"': TORCH,
    'pip install -e ".[test]"': EXTRAS,
}

CONFIGS = {
    "python -m spade_jax.train --config=tiny --config.play.plays=4 --workdir=runs/four": TRAIN,
    "python -m spade_jax.train --config=runs/four/config.json --config.seed=43 "
    "--workdir=runs/four43": Read(
        "tests/test_config.py::test_saved_config_is_found_again",
        "python -m spade_jax.train --config=runs/tiny/config.json --config.seed=43 "
        "--workdir=runs/four43",
    ),
    "python -m spade_jax.train --config=mine.py:no_memory --workdir=runs/mine": WORDS,
    ".venv/bin/python launch/sweep.py ablations --jobs=2 --dry-run": SWEEP,
    "python -m spade_jax.report runs/tiny-ablations --out=ablations.html": Run(
        says=("| seed=43 |", "| base | 2 |", "wrote ablations.html")
    ),
}

CORPUS = {
    "python -m spade_jax.train --config=tiny --config.corpus.path=corpus.jsonl "
    "--workdir=runs/my_corpus": TRAIN,
    "python -m spade_jax.prepare_corpus corpus.jsonl --data_dir=sets --name=my_documents": Read(
        "tests/test_prepare_corpus.py::test_the_set_is_the_corpus"
    ),
    "python -m spade_jax.train --config=tiny --config.corpus.path=tfds:my_documents "
    "--config.corpus.data_dir=sets --workdir=runs/my_set": TRAIN,
}

ENVIRONMENTS = {
    "python -m spade_jax.validate parcels.py": Run(shown=True),
    r"printf '/hint\nA B\nC\n' | python -m spade_jax.play parcels.py --seed=1": Run(shown=True),
    "python -m spade_jax.validate stock.py": Run(says=("1 of 1 accepted",)),
    "mkdir -p my_pool/optimization && cp parcels.py my_pool/optimization/": Run(),
    "python -m spade_jax.train --config=tiny:fixed_pool --config.environments.path=my_pool "
    "--config.design.num_envs=1 --workdir=runs/my_pool": Run(
        "python -m spade_jax.train --config=tiny:fixed_pool $SMALL "
        "--config.environments.path=my_pool --config.design.num_envs=1 --config.iterations=1 "
        "--workdir=runs/my_pool",
        says=("1 environments of 1 in my_pool every 2 iterations", "iteration 1/1"),
        slow=True,
    ),
}

EVALUATION = {
    "bash launch/install_eval.sh": Covered(
        "tests/test_launch.py::test_evaluation_packages_come_without_their_dependencies"
    ),
    "python -m spade_jax.evaluate --suite=bfcl_multi_turn --endpoint=URL --served_model=NAME": Read(
        "tests/evals/test_evaluate.py::test_an_endpoint_that_fails_half_way"
    ),
    "hf download --repo-type dataset math-ai/aime25": Covered(
        "tests/evals/test_questions.py::test_where_items_are_found"
    ),
    "python -m tests.benchmarks.suites": Run("python -m tests.benchmarks.suites --help", slow=True),
}

MODEL = {
    "python -m spade_jax.convert inspect my_model": Run(says=("my_model: hugging face", "205,184")),
    "python -m spade_jax.convert import my_model imported": Run(says=("wrote imported",)),
    "python -m spade_jax.evaluate --model=imported --config.evaluation.per_level=1 --limit=5": Run(
        f"python -m spade_jax.evaluate --model=imported {SETTINGS}", says=("imported:",), slow=True
    ),
    "python -m spade_jax.train --config=tiny --config.model.path=imported "
    "--config.model.max_loss=0 --workdir=runs/my_model": TRAIN,
    "python -m spade_jax.convert inspect runs/seed42": Run(says=("checkpoint of iteration 2",)),
    "python -m spade_jax.convert export runs/seed42 exported": Read(
        "tests/test_convert.py::test_a_run_is_exported"
    ),
    "python -m spade_jax.convert import FOLDER imported": Read(
        "tests/test_convert.py::test_there_and_back_is_bitwise"
    ),
    "python -m spade_jax.warmstart --config=warmstart --workdir=runs/warmstart": WARM_START,
}

REPORT = {
    "python -m spade_jax.report runs/tiny": Run(says=("wrote report.html",)),
    "python -m spade_jax.report runs/tiny --watch": Read(
        "tests/report/test_page.py::test_watching_ends_with_the_last_run"
    ),
    "python -m spade_jax.report runs/tiny-ablations": Read(
        "tests/report/test_runs.py::test_a_sweep_stands_for_its_runs"
    ),
    "python -m spade_jax.status runs/tiny": Run(says=("2 of 2",)),
}

RESULTS = {
    "for seed in 42 43 44; do python -m spade_jax.train --config=tiny --config.seed=$seed "
    "--workdir=runs/study/full$seed; for word in fixed_pool no_corpus no_memory "
    "no_designer_training; do python -m spade_jax.train --config=tiny:$word --config.seed=$seed "
    "--workdir=runs/study/$word$seed; done; done": WORDS,
    "python -m spade_jax.report runs/study --out=study.html --plot=colabs/self_play.png": Run(
        "python -m spade_jax.report runs/tiny-ablations --out=study.html --plot=self_play.png",
        says=("wrote self_play.png",),
    ),
    "python -m spade_jax.warmstart --config=warmstart --workdir=runs/imitation --config.seed=2 "
    "--config.data.path=runs/warmstart/lessons.jsonl "
    "--config.model.path=spade_jax/assets/tiny --config.train.steps=1925 "
    "--config.train.lr=1e-3 --config.train.adam_lr=2e-3": Read(
        "tests/test_warmstart.py::test_a_folder_to_start_from_gives_its_tokenizer_and_weights"
    ),
    "python -m spade_jax.evaluate --config=tiny --config.model.path=runs/imitation/model": EVALUATE,
}

REWARD = {"python -m spade_jax.reward_table": Run(says=("learning_potential", "|win - mu_slow|"))}

SANDBOX = {
    "python -m spade_jax.validate FILE...": Covered(
        "tests/test_validate.py::test_good_files_are_accepted_with_their_numbers"
    ),
    "python -m spade_jax.play FILE": Covered(
        "tests/play/test_program.py::test_an_episode_with_hint_and_solution"
    ),
    "python -m spade_jax.sandbox_benchmark": Read(
        "tests/test_sandbox_benchmark.py::test_every_line_has_a_figure"
    ),
}

SERVING = {
    ".venv/bin/pip install -e '.[serve]'": EXTRAS,
    "python -m spade_jax.serve --model=runs/seed42 --port=8000": Read(
        "tests/serve/test_program.py::test_what_runs_is_finished_at_a_signal"
    ),
    "curl -s http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d "
    '\'{"model": "seed42", "messages": [{"role": "user", "content": "Bees: add 41 and 86."}]}\'': (
        Covered("tests/serve/test_app.py::test_a_reply_comes_whole_and_in_pieces")
    ),
    "python -m spade_jax.train --config=tiny --config.hint.source=endpoint "
    "--config.hint.endpoint_url=http://127.0.0.1:8000/v1 --config.hint.endpoint_model=seed42 "
    "--workdir=runs/told": Read(
        "tests/design/test_hints.py::test_an_endpoint_writes_hints_and_its_failures_are_unknown"
    ),
    "python -m spade_jax.evaluate --endpoint=http://127.0.0.1:8000/v1 --served_model=seed42": Read(
        "tests/evals/test_evaluate.py::test_greedy_is_the_same_here_and_at_a_server"
    ),
}

BENCHMARK = Read("tests/test_benchmark.py::test_every_stage_is_measured")
SPEED = {
    "python -m spade_jax.benchmark --config=tiny --epochs=2": BENCHMARK,
    "python -m spade_jax.benchmark --config=tiny --config.play.hint_plays=16 --epochs=1": BENCHMARK,
    "python -m tests.benchmarks.policy": Run("python -m tests.benchmarks.policy --help", slow=True),
}

FITS = "tests/preflight/test_preflight.py::test_a_run_that_fits"
TPU = {
    ".venv/bin/pip install -e '.[tpu]'": EXTRAS,
    "python -m spade_jax.preflight": Read(FITS),
    "python -m spade_jax.preflight --config=games:qwen3_30b_a3b --topology=v6e:8x8 "
    "--config.hosts.per_replica=2 --config.sampling.slots=32": Read(FITS),
    "python -m spade_jax.preflight --config=games:qwen3_30b_a3b --topology=v5e:16x16 "
    "--config.hosts.per_replica=4 --config.sampling.slots=24 --config.learn.rows='(64,64)'": Read(
        FITS
    ),
}

TABLES = (
    *(README, CONTRIBUTING, LAUNCH, CONFIGS, CORPUS, ENVIRONMENTS, EVALUATION, MODEL, REPORT),
    *(RESULTS, REWARD, SANDBOX, SERVING, SPEED, TPU),
)
COMMANDS: dict[str, Row] = {command: row for table in TABLES for command, row in table.items()}
