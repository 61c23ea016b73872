"""Corpus: which lines count, in which order they come, and what is refused."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from spade_jax.design import corpus
from spade_jax.types import UsageError


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
        assert read.skipped == 7
        assert read.skipped_places == ("line 2", "line 3", "line 4", "line 6", "line 7")
    assert found == {"1": "one", "5:v": "f\u00fcnf", "10": "ten"}
    assert f"skipped 7 blank, broken or empty records of the corpus {path} (line 2, " in warning
    assert ", line 7, ...): each should hold a `text` or `orig_doc` string" in warning


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_clean_file_without_final_newline_has_no_warning(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}', encoding=encoding)
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


@settings(max_examples=20, deadline=None)
@given(
    shards=st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=4),
    hosts=st.integers(1, 5),
    epoch=st.integers(0, 3),
)
@example(shards=[[False], [True], [False, False, True]], hosts=2, epoch=0)
def test_shares_of_hosts_are_an_epoch(
    shards: list[list[bool]], hosts: int, epoch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every host computes the same documents; skipped lines, wherever they are, cost no turn."""
    folder = tmp_path_factory.mktemp("shards")
    good = []
    for n, flags in enumerate(shards):
        _write(folder / f"{n}.jsonl", ['{"text": "x"}' if flag else "{}" for flag in flags])
        name = f"{n}.jsonl:" if len(shards) > 1 else ""
        good += [f"{name}{row + 1}" for row, flag in enumerate(flags) if flag]
    assume(good)
    positions = range(epoch * len(good), (epoch + 1) * len(good))
    drawn = []
    for host in range(hosts):
        with corpus.Corpus(str(folder), seed=5, max_words=3) as read:
            assert len(read) == len(good)
            assert [each.id for each in read.in_order()] == good
            drawn += [read.document(p).id for p in positions[host::hosts]]
    assert sorted(drawn) == sorted(good)


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
    message = re.escape(f"the corpus {path} holds no document: give as corpus (config.corpus.path)")
    with pytest.raises(UsageError, match=message):
        corpus.Corpus(path, seed=0, max_words=3)


@pytest.mark.parametrize("change", ['{"nothing": 0}\n', '{"text": "doc 0"}\n\n', None])
def test_file_changed_during_a_run_is_an_error(tmp_path: Path, change: str | None) -> None:
    path = _numbered(tmp_path / "c.jsonl", 1)
    with corpus.Corpus(path, seed=0, max_words=3) as read:
        Path(path).unlink()
        if change:
            Path(path).write_text(change)
        with pytest.raises(UsageError, match=r"line 1 of the corpus .* has changed"):
            read.document(0)


def test_bundled_order_is_fixed() -> None:
    """What the tiny default designs from; runs of earlier versions are repeated only so."""
    with corpus.Corpus("", seed=42, max_words=16) as read:
        first = [read.document(p).id for p in range(6)]
        second_epoch = [read.document(300 + p).id for p in range(3)]
        document = read.document(0)
    assert first == [
        *("217:semaphores", "232:wind-roses", "250:rugby"),
        *("261:jupiter", "89:cairo", "142:gears"),
    ]
    assert second_epoch == ["162:sunflowers", "125:aqueducts", "39:wheat"]
    assert document.text == (
        "Semaphores. In 1794 the French engineer Claude Chappe built a line of towers from Paris to"
    )


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
