"""Corpus: which lines count, in which order they come, and what is refused."""

import json
import re
from pathlib import Path

import pytest

from spade_jax.design import corpus


def _write(path: Path, lines: list[str | bytes]) -> str:
    path.write_bytes(b"".join((x.encode() if isinstance(x, str) else x) + b"\n" for x in lines))
    return str(path)


def _numbered(path: Path, count: int) -> str:
    return _write(path, [json.dumps({"text": f"doc {i}"}) for i in range(count)])


def test_reads_text_or_orig_doc_and_skips_the_rest(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "c.jsonl",
        [
            '{"text": "one"}',  # 1
            "",  # 2: blank
            '{"text": "torn',  # 3: broken
            '{"text": "  "}',  # 4: empty
            '{"orig_doc": "f\u00fcnf", "url": "x", "id": "v"}',  # 5
            '{"title": "no text"}',  # 6
            '["text"]',  # 7
            b'{"text": "\xff"}',  # 8: no UTF-8
            '{"text": 9}',  # 9
            '{"text": "", "orig_doc": "ten"}',  # 10
        ],
    )
    with corpus.Corpus(path, seed=0, max_words=10) as read:
        found = {read.document(i).id: read.document(i).text for i in range(len(read))}
        warning = read.warning()
    assert found == {"1": "one", "5:v": "f\u00fcnf", "10": "ten"}
    assert read.skipped == 7
    assert read.skipped_lines == (2, 3, 4, 6, 7)
    assert "skipped 7" in warning and "line 2, 3, 4, 6, 7, ..." in warning and path in warning


def test_clean_file_without_final_newline_has_no_warning(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}')
    with corpus.Corpus(str(path), seed=0, max_words=10) as read:
        assert {read.document(i).text for i in (0, 1)} == {"one", "two"}
        assert read.warning() is None


def test_each_document_once_an_epoch_in_new_order(tmp_path: Path) -> None:
    path = _numbered(tmp_path / "c.jsonl", 50)
    with corpus.Corpus(path, seed=3, max_words=10) as read:
        epochs = [[read.document(50 * e + i).text for i in range(50)] for e in range(3)]
    everything = {f"doc {i}" for i in range(50)}
    assert all(set(epoch) == everything for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[0] != sorted(epochs[0], key=lambda text: int(text.split()[1]))


def test_document_depends_on_file_seed_and_position_only(tmp_path: Path) -> None:
    path = _numbered(tmp_path / "c.jsonl", 40)
    with (
        corpus.Corpus(path, seed=7, max_words=10) as first,
        corpus.Corpus(path, seed=7, max_words=10) as again,
        corpus.Corpus(path, seed=8, max_words=10) as other,
    ):
        forward = [first.document(i) for i in range(100)]
        assert [again.document(i) for i in reversed(range(100))] == forward[::-1]
        assert [other.document(i) for i in range(40)] != forward[:40]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, ""), (1, "one"), (2, "one\ntwo"), (3, "one\ntwo  three"), (9, "one\ntwo  three")],
)
def test_first_words_keeps_what_is_between(count: int, expected: str) -> None:
    assert corpus.first_words("one\ntwo  three", count) == expected


def test_documents_are_cut(tmp_path: Path) -> None:
    path = _write(tmp_path / "c.jsonl", ['{"text": "a b c d"}'])
    with corpus.Corpus(path, seed=0, max_words=3) as read:
        assert read.document(5).text == "a b c"


@pytest.mark.parametrize("lines", [[], ["", "{}", "no"]])
def test_empty_corpus_is_refused(tmp_path: Path, lines: list[str]) -> None:
    path = _write(tmp_path / "c.jsonl", lines)
    message = re.escape(f"the corpus {path} holds no document: give config.corpus.path a JSONL")
    with pytest.raises(ValueError, match=message):
        corpus.Corpus(path, seed=0, max_words=3)


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
def test_missing_corpus_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(ValueError, match=re.escape(f"cannot open the corpus {path}")):
        corpus.Corpus(str(path), seed=0, max_words=3)


def test_file_changed_during_a_run_is_an_error(tmp_path: Path) -> None:
    path = _numbered(tmp_path / "c.jsonl", 1)
    with corpus.Corpus(path, seed=0, max_words=3) as read:
        Path(path).write_text('{"nothing": 0}\n')
        with pytest.raises(ValueError, match=r"line 1 of the corpus .* has changed"):
            read.document(0)


def test_bundled_corpus_is_as_its_readme_says() -> None:
    records = [json.loads(line) for line in corpus.BUNDLED.read_text("ascii").splitlines()]
    assert len(records) == 300
    assert len({each["id"] for each in records}) == 300
    assert len({each["title"].lower() for each in records}) == 300
    for each in records:
        assert set(each) == {"id", "title", "text"}
        assert re.fullmatch(r"[A-Z][a-z]+( [A-Z][a-z]+)?", each["title"]), each["title"]
        assert each["text"].startswith(each["title"] + ". ")
        assert 40 <= len(each["text"].split()) <= 70, each["title"]
    with corpus.Corpus("", seed=42, max_words=50) as read:
        assert len(read) == 300
        assert read.skipped == 0
