"""Where a corpus may lie: several files, Parquet tables, tensorflow-datasets; what is refused."""

import builtins
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow_datasets as tfds

from spade_jax.design import sources
from spade_jax.design.corpus import Corpus
from spade_jax.types import UsageError


def opened(path: Path | str, **options: str) -> Corpus:
    return Corpus(str(path), seed=3, max_words=100, **options)


def texts(corpus: Corpus) -> dict[str, str]:
    """Text by id of the documents of the first epoch."""
    found = {d.id: d.text for d in map(corpus.document, range(len(corpus)))}
    assert found == {d.id: d.text for d in corpus.in_order()}
    return found


def refusal(path: Path | str, **options: str) -> str:
    with pytest.raises(UsageError) as caught:
        opened(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_lines(path: Path, *records: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


# -- several files ----------------------------------------------------------------------------


def test_a_folder_and_a_pattern_are_their_files_in_order(tmp_path: Path) -> None:
    write_lines(tmp_path / "c" / "b.jsonl", {"text": "three"}, {"text": " "})
    write_lines(tmp_path / "c" / "a.jsonl", {"text": "one", "id": 7}, {}, {"orig_doc": "two"})
    write_lines(tmp_path / "c" / ".hidden.jsonl", {"text": "hidden"})
    write_lines(tmp_path / "c" / "deeper" / "d.jsonl", {"text": "four"})
    (tmp_path / "c" / "README.md").write_text("no records")
    pq.write_table(pa.table({"text": ["five"]}), tmp_path / "c" / "e.parquet")
    flat = {"a.jsonl:1:7": "one", "a.jsonl:3": "two", "b.jsonl:1": "three", "e.parquet:1": "five"}
    with opened(tmp_path / "c") as folder:
        assert list(texts(folder)) != list(flat), "they are shuffled"
        assert texts(folder) == flat
        assert [d.id for d in folder.in_order()] == list(flat)
        assert folder.skipped_places == ("a.jsonl line 2", "b.jsonl line 2")
        assert "(a.jsonl line 2, b.jsonl line 2): each" in folder.warning()
    with opened(tmp_path / "c" / "**" / "*.jsonl") as pattern:
        assert set(texts(pattern).values()) == {"one", "two", "three", "four"}
        assert "deeper/d.jsonl:1" in texts(pattern)
    with opened(tmp_path / "c" / "b.js*") as single:
        assert texts(single) == {"1": "three"}


def test_links_in_a_ring_give_no_file_twice(tmp_path: Path) -> None:
    write_lines(tmp_path / "b" / "c.jsonl", {"text": "one"}, {"text": "two"})
    (tmp_path / "b" / "up").symlink_to(tmp_path)
    with opened(tmp_path / "**" / "*.jsonl") as corpus:
        assert texts(corpus) == {"1": "one", "2": "two"}


def test_brackets_may_be_in_a_name(tmp_path: Path) -> None:
    write_lines(tmp_path / "c[1]" / "d[0].jsonl", {"text": "one"})
    with opened(tmp_path / "c[1]") as folder, opened(tmp_path / "c[1]" / "d[0].jsonl") as file:
        assert texts(folder) == texts(file) == {"1": "one"}


# -- Parquet ----------------------------------------------------------------------------------

LONG = "word " * 300


@pytest.mark.parametrize("group", [1, 3, 1000])
def test_parquet_is_read_by_row(tmp_path: Path, group: int) -> None:
    """The form of published tables: ids, documents and more; in any row groups."""
    rows = 700
    table = pa.table(
        {
            "url": [f"https://example.org/{n}" for n in range(rows)],
            "orig_doc": [None if n % 5 == 0 else f" doc {n} {LONG}" for n in range(rows)],
            "id": pa.array(range(rows), pa.int64()),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=group)
    with opened(tmp_path / "t.parquet") as corpus:
        assert (len(corpus), corpus.skipped) == (560, 140)
        assert corpus.skipped_places == ("row 1", "row 6", "row 11", "row 16", "row 21")
        documents = [corpus.document(p) for p in range(0, 560, 7)]
        assert len({d.id for d in documents}) == 80
        for document in documents:
            row, number = map(int, document.id.split(":"))
            assert row == number + 1 and number % 5
            assert document.text.startswith(f"doc {number} word")
        assert [d.id for d in corpus.in_order()] == [f"{n + 1}:{n}" for n in range(rows) if n % 5]


def test_parquet_columns_of_other_types(tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": pa.array(["one", "", "\u2003", None, "five"], pa.large_string()),
            "orig_doc": pa.array(["no", "two", " ", None, None]).dictionary_encode(),
            "id": pa.array([[0]] * 5),  # neither a number nor text
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    with opened(tmp_path / "t.parquet") as corpus:
        assert texts(corpus) == {"1": "one", "2": "two", "5": "five"}
        assert corpus.skipped_places == ("row 3", "row 4")


def test_parquet_text_that_is_no_utf8_is_skipped(tmp_path: Path) -> None:
    broken = pa.array([b"one", b"\xff", b"three"]).view(pa.string())
    pq.write_table(pa.table({"text": broken}), tmp_path / "t.parquet")
    with opened(tmp_path / "t.parquet") as corpus:
        assert texts(corpus) == {"1": "one", "3": "three"}
        assert corpus.skipped_places == ("row 2",)


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "removed"])
def test_parquet_changed_during_a_run_is_an_error(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": ["one"]}), path)
    with opened(path) as corpus:
        path.unlink()
        if replaced:
            pq.write_table(pa.table({"text": ["zero", "one"]}), path)
        with pytest.raises(UsageError, match=r"row 1 of the corpus .* has changed"):
            corpus.document(0)


# -- tensorflow-datasets ----------------------------------------------------------------------


class Elsewhere(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A set as others make them: a config, splits, more features, records without text."""

    name = "elsewhere"
    VERSION = tfds.core.Version("2.1.0")
    url_infos = None
    BUILDER_CONFIGS = (tfds.core.BuilderConfig(name="en"),)

    def __init__(self, kind: Any, **options: Any) -> None:
        self.kind = kind
        super().__init__(config="en", file_format="array_record", **options)

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "orig_doc": self.kind,
            "id": tfds.features.Text(),
            "size": tfds.features.Scalar(np.int32),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
        )

    def _split_generators(self, _: object) -> dict[str, Iterable[tuple[int, dict[str, object]]]]:
        return {"train": self._generate_examples(range(5)), "test": self._generate_examples([7])}

    def _generate_examples(self, numbers: Iterable[int]) -> Iterable[tuple[int, dict]]:
        for n in numbers:
            text = "" if n in (1, 2) else f"fünf {n}\n"
            document = text if isinstance(self.kind, tfds.features.Text) else [text]
            yield n, {"orig_doc": document, "id": f"id-{n}", "size": n}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tfds")
    Elsewhere(tfds.features.Text(), data_dir=str(folder)).download_and_prepare()
    return str(folder)


def test_any_set_of_array_records_is_read(data_dir: str) -> None:
    with opened("tfds:elsewhere/en:2.1.0", data_dir=data_dir) as corpus:
        assert texts(corpus) == {"1:id-0": "fünf 0", "4:id-3": "fünf 3", "5:id-4": "fünf 4"}
        assert corpus.skipped_places == ("record 2", "record 3")
    with opened("tfds:elsewhere/en", data_dir=data_dir, split="test+train[3:]") as corpus:
        assert texts(corpus) == {"1:id-7": "fünf 7", "2:id-3": "fünf 3", "3:id-4": "fünf 4"}
    assert "tensorflow" not in sys.modules


def test_a_set_without_any_text_is_refused(data_dir: str) -> None:
    sentence = refusal("tfds:elsewhere/en", data_dir=data_dir, split="train[1:3]")
    assert sentence.startswith("the corpus tfds:elsewhere/en holds no document: give as corpus")


def test_a_set_without_a_text_feature_is_refused(tmp_path: Path) -> None:
    kind = tfds.features.Sequence(tfds.features.Text())
    Elsewhere(kind, data_dir=str(tmp_path)).download_and_prepare()
    sentence = refusal("tfds:elsewhere/en", data_dir=str(tmp_path))
    assert "has no string `text` or `orig_doc`, but id, orig_doc, size" in sentence


@pytest.mark.parametrize(
    ("name", "split", "parts"),
    [
        (
            "nowhere",
            "train",
            ("there is no tensorflow-datasets set nowhere in ", "corpus.data_dir"),
        ),
        ("elsewhere/en:9.0.0", "train", ("no tensorflow-datasets set elsewhere/en:9.0.0 in ",)),
        ("elsewhere/en", "dev", ("(Unknown split 'dev'", "the split config.corpus.split")),
        ("mnist", "train", ("set mnist in ", "it must be prepared in array_record form")),
        ("", "train", ("the corpus tfds: is no name", "tfds:NAME[/CONFIG][:VERSION]")),
        ("huggingface:c4", "train", ("tfds:huggingface:c4 is no name",)),
    ],
)
def test_sets_that_are_not_there(
    data_dir: str, name: str, split: str, parts: tuple[str, ...]
) -> None:
    sentence = refusal(f"tfds:{name}", data_dir=data_dir, split=split)
    assert all(part in sentence for part in parts), sentence


@pytest.mark.parametrize("file", ["dataset_info.json", "metadata.json", "features.json"])
def test_a_set_with_a_torn_file_is_refused(data_dir: str, tmp_path: Path, file: str) -> None:
    shutil.copytree(data_dir, tmp_path / "torn")
    (tmp_path / "torn" / "elsewhere" / "en" / "2.1.0" / file).write_text("{")
    sentence = refusal("tfds:elsewhere/en", data_dir=str(tmp_path / "torn"))
    assert "set elsewhere/en in " in sentence and "cannot be read (" in sentence


def test_a_set_whose_records_are_gone(data_dir: str, tmp_path: Path) -> None:
    shutil.copytree(data_dir, tmp_path / "gone")
    [train] = (tmp_path / "gone").rglob("*train*")
    train.write_bytes(b"")
    sentence = refusal("tfds:elsewhere/en", data_dir=str(tmp_path / "gone"))
    assert sentence.startswith("record 1 of the tensorflow-datasets set elsewhere/en, or")
    assert sentence.endswith("; prepare the set anew")


# -- what is refused --------------------------------------------------------------------------


def test_json_nested_without_end_is_a_broken_line(tmp_path: Path) -> None:
    nested = '{"text": "one", "more": ' + "[" * 100_000 + "]" * 100_000 + "}\n"
    (tmp_path / "c.jsonl").write_text(nested + '{"text": "two"}\n')
    with opened(tmp_path / "c.jsonl") as corpus:
        assert texts(corpus) == {"2": "two"} and corpus.skipped_places == ("line 1",)


def test_parquet_with_a_column_twice(tmp_path: Path) -> None:
    column = pa.array(["one"])
    pq.write_table(pa.table([column, column], names=["text", "text"]), tmp_path / "t.parquet")
    assert "has more than one column `text`: rename" in refusal(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent.jsonl", "cannot open the corpus {path} (No such file or directory)"),
        ("absent.parquet", "cannot open the corpus {path} ("),
        ("absent", "cannot open the corpus {path} (No such file or directory)"),
        ("words.txt", "the corpus {path} ends neither in .jsonl nor in .parquet"),
        ("empty", "the corpus {path} names no .jsonl or .parquet file"),
        ("*.jsonl", "the corpus {path} names no .jsonl or .parquet file"),
        ("torn.parquet", "the corpus {path} is no sound Parquet file ("),
        ("blank.parquet", "the corpus {path} holds no document"),
    ],
)
def test_what_is_no_corpus(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "words.txt").write_text("words")
    (tmp_path / "torn.parquet").write_text("PAR1 and no more")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "blank.parquet")
    sentence = refusal(tmp_path / name)
    assert sentence.startswith(reason.format(path=tmp_path / name)), sentence
    assert sentence.endswith(f": {sources.REMEDY}")


def test_parquet_without_a_column_of_text(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": [1], "content": ["one"]}), path)
    assert refusal(path) == (
        f"the corpus {path} has no column `text` or `orig_doc` of strings, but text, content: "
        "rename the one that holds the text"
    )


@pytest.mark.parametrize(
    ("path", "package"), [("t.parquet", "pyarrow"), ("tfds:set", "tensorflow_datasets")]
)
def test_missing_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, path: str, package: str
) -> None:
    really = builtins.__import__

    def lacking(name: str, *arguments: object, **options: object) -> object:
        if name.split(".")[0] == package:
            raise ImportError(name)
        return really(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", lacking)
    assert "run pip install -e '.[corpus]' in the repository" in refusal(path)
