"""What a user can get wrong: one sentence that names it and the remedy, code 2, nothing lost."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from absl import flags

from spade_jax import program, train
from spade_jax.types import UsageError
from tests import small_run

ROOT = Path(__file__).parents[1]


def refusal(workdir: Path, model: Path, **fields: object) -> str:
    """The sentence with which the trainer refuses; the workdir must be as it was."""
    before = contents(workdir)
    values = flags.FlagValues()
    flags.DEFINE_string("workdir", "", "Where.", flag_values=values)
    arguments = small_run.arguments(small_run.run_config(model, **fields), workdir)
    with pytest.raises(UsageError) as caught:
        program.parse_flags(["train", *arguments], "tiny", values)
        train.train(values.config, Path(values.workdir))
    assert contents(workdir) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def contents(folder: Path) -> dict[Path, bytes] | None:
    if not folder.is_dir():
        return None
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        (
            {"play__context": 40, "play__reply_tokens": 48},
            ("play.context is 40", "play.reply_tokens (48)", "raise play.context"),
        ),
        (
            {"play__context": 2000, "learn__row_tokens": (2000,)},
            ("play.context is 2000", "the model has 640 positions", "lower --config.play.context"),
        ),
        (
            {"evaluation__suites": ("aime",)},
            ("evaluation.suites: no suite is called 'aime' (near: aime2", "choose from"),
        ),
        (
            {"learn__minibatches": 13},
            ("learn.minibatches is 13", "= 12 episodes", "lower learn.minibatches"),
        ),
        (
            {"sampling__slots": 300},
            ("sampling.slots is 300", "sandbox.max_instances allows 256", "lower sampling.slots"),
        ),
        (
            {
                **{"play__context": 80, "design__max_tokens": 60, "learn__row_tokens": (90,)},
                **{"corpus__max_words": 200},
            },
            ("a design prompt has ", "learn.row_tokens (90,) hold 90", "lower corpus.max_words"),
        ),
        (
            {"hint__source": "self", "hint__max_tokens": 400},
            ("a hint takes ", "design.max_tokens = 448, and 400 for", "lower hint.max_tokens"),
        ),
        (
            {"judge__source": "self", "judge__max_tokens": 8},
            ("a judgement takes ", "a conversation holds 640", "raise play.context"),
        ),
        (
            {"design__repair_turns": 1},
            ("a repair takes ", "a design of design.max_tokens = 448", "lower design.max_tokens"),
        ),
        (
            {
                **{"skills": ("Strategic Planning",), "skills_per_epoch": 1},
                **{"environments__source": "fixed", "environments__size": 9},
            },
            ("no bundled environment is of the skills Strategic Planning", "choose skills among"),
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_impossible_sizes(
    model_folder: Path, tmp_path: Path, fields: dict[str, object], parts: tuple[str, ...]
) -> None:
    sentence = refusal(tmp_path / "run", model_folder, **fields)
    assert all(part in sentence for part in parts), sentence


def test_a_context_shorter_than_the_first_prompts(model_folder: Path, tmp_path: Path) -> None:
    c = small_run.run_config(model_folder, play__context=20, play__reply_tokens=16)
    with pytest.raises(UsageError, match=r"play\.context is 20, but 50 of the 50 .* raise"):
        train.train(c, tmp_path)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (None, ("cannot open the corpus", "give as corpus (config.corpus.path)")),
        ("", ("holds no document", "give as corpus (config.corpus.path)")),
        ('\n{"text": " "}\n{"tex\n', ("holds no document", "give as corpus (config.corpus.path)")),
    ],
    ids=["missing", "empty", "blank"],
)
def test_corpus(
    model_folder: Path, tmp_path: Path, text: str | None, parts: tuple[str, ...]
) -> None:
    path = tmp_path / "corpus.jsonl"
    if text is not None:
        path.write_text(text)
    sentence = refusal(tmp_path / "run", model_folder, corpus__path=str(path))
    assert all(part in sentence for part in (str(path), *parts)), sentence


# -- model folders ----------------------------------------------------------------------------


def edit_config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    kept = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in kept.items() if value is not None}))


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def tear(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:200])


@pytest.mark.parametrize(
    ("break_it", "parts"),
    [
        (shutil.rmtree, ("config.json is missing", "point model.path at a folder")),
        (drop("tokenizer.json"), ("tokenizer.json is missing", "copy the model's")),
        (drop("config.json"), ("config.json is missing", "point model.path at a folder")),
        (drop("model.safetensors"), ("has no .safetensors file", "put the model's weights there")),
        (tear("tokenizer.json"), ("tokenizer.json is damaged", "take it from the model again")),
        (tear("config.json"), ("config.json is no valid JSON", "take it from the model again")),
        (tear("model.safetensors"), ("model.safetensors is damaged", "take it from the model")),
        (
            lambda folder: edit_config(folder, model_type="llama"),
            ("config.json says model_type 'llama'", "only 'qwen3'"),
        ),
        (
            lambda folder: edit_config(folder, hidden_size=None),
            ("config.json has no hidden_size", "take the model's own"),
        ),
        (
            lambda folder: edit_config(folder, num_hidden_layers=3),
            ("has no tensor model.layers.2", "the weights are incomplete"),
        ),
        (
            lambda folder: edit_config(folder, hidden_size=16),
            ("has shape (512, 32), config.json asks for (512, 16)",),
        ),
    ],
    ids=range(11),
)
def test_model_folder(
    model_folder: Path, tmp_path: Path, break_it: Callable[[Path], None], parts: tuple[str, ...]
) -> None:
    broken = tmp_path / "model"
    shutil.copytree(model_folder, broken)
    break_it(broken)
    sentence = refusal(tmp_path / "run", broken)
    assert all(part in sentence for part in (str(broken), *parts)), sentence


def test_a_tokenizer_of_another_model(model_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "model"
    shutil.copytree(model_folder, other)
    vocabulary = json.loads((other / "tokenizer.json").read_text())
    vocabulary["added_tokens"].append(
        dict(vocabulary["added_tokens"][-1], id=512, content="<one_more>")
    )
    (other / "tokenizer.json").write_text(json.dumps(vocabulary))
    sentence = refusal(tmp_path / "run", other)
    assert "a tokenizer of 513 entries for a model of 512" in sentence


# -- workdirs ---------------------------------------------------------------------------------


def test_a_workdir_that_cannot_be_written(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for workdir in (tmp_path / "file", tmp_path / "file" / "run"):
        sentence = refusal(workdir, model_folder)
        assert f"the workdir {workdir} cannot be written" in sentence
        assert "choose another --workdir" in sentence
    assert (tmp_path / "file").read_text() == "in the way"


def test_the_workdir_of_another_config(model_folder: Path, finished_run: Path) -> None:
    sentence = refusal(finished_run, model_folder, play__plays=3)
    assert f"the workdir {finished_run} belongs to another config (play.plays is 2" in sentence


def test_a_damaged_checkpoint(model_folder: Path, finished_run: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    saved = tmp_path / "run" / "checkpoints" / "2"
    (saved / "host" / "metadata").write_text("{")
    sentence = refusal(tmp_path / "run", model_folder)
    assert f"checkpoint {saved} is damaged" in sentence and "move it away" in sentence


def program_run(workdir: Path, model: Path, *more: str) -> subprocess.CompletedProcess[str]:
    arguments = small_run.arguments(small_run.run_config(model), workdir)
    command = [sys.executable, "-m", "spade_jax.train", *arguments, *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_program_says_it_in_one_line_and_exits_with_2(
    model_folder: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "run"
    unknown = program_run(workdir, model_folder, "--config.learn.rate=1")
    assert unknown.returncode == 2 and not unknown.stdout
    assert unknown.stderr.startswith("error: the config has no field 'learn.rate'")
    nothing = program_run(workdir, tmp_path)
    assert nothing.returncode == 2 and not nothing.stdout
    assert nothing.stderr.startswith(f"error: {tmp_path}/config.json is missing; point")
    assert unknown.stderr.count("\n") == nothing.stderr.count("\n") == 1
    assert not workdir.exists()


def test_a_half_written_checkpoint_is_skipped_by_name(
    model_folder: Path, finished_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    half = tmp_path / "run" / "checkpoints" / "3"
    (half / "learner").mkdir(parents=True)
    done = program_run(tmp_path / "run", model_folder)
    assert done.returncode == 0
    assert f"Skipping the half-written checkpoint {half}" in done.stderr
    assert done.stdout == f"{tmp_path / 'run'} is finished: 2 iterations are done\n"
