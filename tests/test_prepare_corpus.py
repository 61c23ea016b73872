"""A corpus written as a tensorflow-datasets set is the same corpus, and nothing is overwritten."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow_datasets as tfds

from spade_jax import prepare_corpus
from spade_jax.design.corpus import Corpus
from spade_jax.run import open_corpus
from spade_jax.types import UsageError
from tests import small_run

ROOT = Path(__file__).parents[1]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "c.jsonl"
    records = [{"text": f"d\u00f6c {n} " * 4} for n in range(40)]
    records[7], records[11] = {"text": " "}, {"orig_doc": "eleven", "id": "xi"}
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def test_the_set_is_the_corpus(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_corpus, "SHARD_BYTES", 300)
    name = "my_documents"
    with Corpus(str(source), seed=9, max_words=5) as files:
        sizes = prepare_corpus.prepare(files, tmp_path / "sets", name)
        path = f"tfds:{name}"
        with Corpus(path, seed=9, max_words=5, data_dir=str(tmp_path / "sets")) as prepared:
            assert len(prepared) == len(files) == 39
            assert prepared.skipped == 0
            for position in range(80):  # over two epochs
                here, there = prepared.document(position), files.document(position)
                assert here.text == there.text
                assert here.id.partition(":")[2] == there.id
    assert len(sizes) > 3 and sum(sizes) == 39
    assert len(list((tmp_path / "sets" / name / "1.0.0").glob("*.array_record-*"))) == len(sizes)
    records = tfds.data_source(name, split="train", data_dir=tmp_path / "sets")
    assert records[10] == {"id": b"12:xi", "text": b"eleven"}  # line 12, of which one was empty
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([5], [1]), ([6, 4, 1], [2, 1]), ([30, 1, 9, 1], [1, 2, 1]), ([4, 4, 4, 4, 4], [2, 2, 1])],
)
def test_shards_hold_ten_bytes(
    lengths: list[int], sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_corpus, "SHARD_BYTES", 10)
    assert prepare_corpus.shard_sizes(lengths) == sizes


def prepare(monkeypatch: pytest.MonkeyPatch, *arguments: object, **flags: object) -> int:
    chosen = {"data_dir": "", "name": ""} | flags
    monkeypatch.setattr(prepare_corpus, "FLAGS", SimpleNamespace(**chosen))
    return prepare_corpus.main([str(argument) for argument in arguments])


def test_what_it_refuses(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"data_dir": str(tmp_path / "sets"), "name": "docs"}
    with pytest.raises(UsageError, match=r"pass .* SRC --data_dir=DIR --name=NAME"):
        prepare(monkeypatch, source, name="docs")
    with pytest.raises(UsageError, match="--name=Docs is no name of a set; use lower-case"):
        prepare(monkeypatch, source, **(there | {"name": "Docs"}))
    with pytest.raises(UsageError, match="--name=mnist is a set of tensorflow-datasets itself"):
        prepare(monkeypatch, source, **(there | {"name": "mnist"}))
    with pytest.raises(UsageError, match="cannot open the corpus absent.jsonl"):
        prepare(monkeypatch, "absent.jsonl", **there)
    with pytest.raises(UsageError, match="c.jsonl/docs/1.0.0 cannot be written .* --data_dir"):
        prepare(monkeypatch, source, **(there | {"data_dir": str(source)}))
    assert not (tmp_path / "sets").exists()
    assert prepare(monkeypatch, source, **there) == 0
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "sets").rglob("*")}
    with pytest.raises(UsageError, match="sets/docs/1.0.0 exists already; give another --name"):
        prepare(monkeypatch, source, **there)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "sets").rglob("*")} == written


def test_it_says_how_to_read_the_set(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert prepare(monkeypatch, source, data_dir=str(tmp_path), name="docs") == 0
    warning, wrote = capsys.readouterr().out.splitlines()
    assert warning.startswith("warning: skipped 1 blank, broken or empty records of the corpus")
    assert wrote == (
        "wrote 39 documents in 1 shards; read them with --config.corpus.path=tfds:docs "
        f"--config.corpus.data_dir={tmp_path}"
    )
    fields = {"path": "tfds:docs", "data_dir": str(tmp_path), "split": "train[10:12]"}
    c = small_run.configured("tiny", {f"corpus.{name}": value for name, value in fields.items()})
    with open_corpus(c) as corpus:
        assert {corpus.document(p).id for p in (0, 1)} == {"1:12:xi", "2:13"}


@pytest.mark.slow
def test_the_program_takes_its_flags(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spade_jax.prepare_corpus", source, "--name=docs"]
    done = subprocess.run(
        [*command, f"--data_dir={tmp_path}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "wrote 39 documents" in done.stdout
    with Corpus("tfds:docs", seed=9, max_words=5, data_dir=str(tmp_path)) as corpus:
        assert len(corpus) == 39
