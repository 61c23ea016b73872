"""Workdirs and corpora that lie in no folder of this machine."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from spade_jax import storage
from spade_jax.checkpoint import Checkpoints
from spade_jax.design.corpus import Corpus
from spade_jax.types import UsageError


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def test_file_paths_are_plain_ones() -> None:
    for path in ("file:///a/b", "/a/b"):
        assert storage.local(path) == "/a/b"
    assert [storage.local(p) for p in ("a/b", "gs://a/b", "")] == ["a/b", "gs://a/b", ""]
    found = [storage.is_remote(p) for p in ("gs://a", "memory://a", "tfds:a/b:1.0.0", "a:b//c")]
    assert found == [True, True, False, False]
    assert str(storage.absolute("gs://a/b")) == "gs://a/b"
    assert storage.absolute("b") == Path.cwd() / "b"


def test_a_mirror_fetches_all_but_checkpoints_and_copies_what_changed(
    memory: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = ("checkpoints/3/host/metadata", ".writable-of-another-host")
    for name in ("metrics.jsonl", "episodes/000000.jsonl", *others):
        memory.pipe_file(f"/run/{name}", name.encode())
    mirror = storage.Mirror("memory://run/", tmp_path)
    mirror.fetch()
    files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert files == {"metrics.jsonl", "episodes/000000.jsonl"}
    assert (tmp_path / "metrics.jsonl").read_text() == "metrics.jsonl"
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(" and more")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "one").write_text("1")
    put, copied = MemoryFileSystem.put_file, []
    monkeypatch.setattr(
        MemoryFileSystem, "put_file", lambda s, a, b, **k: (copied.append(b), put(s, a, b, **k))
    )
    mirror.copy()
    mirror.copy()  # nothing has changed since
    assert copied == ["/run/metrics.jsonl", "/run/new/one"]
    assert memory.cat_file("/run/metrics.jsonl") == b"metrics.jsonl and more"
    assert memory.cat_file("/run/new/one") == b"1"
    assert memory.exists("/run/checkpoints/3/host/metadata")
    probes = [path for path in memory.find("/run") if "writable" in path]
    assert probes == ["/run/.writable-of-another-host"]


class Closed(MemoryFileSystem):
    """A store in which this user may not write."""

    protocol = "closed"

    def pipe_file(self, path: str, value: bytes, **_: object) -> None:
        raise PermissionError(f"403: no storage.objects.create in {path}\nand a long trace")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "closed://bucket/run",
            r"cannot be read and written \(PermissionError: 403: no storage.* right to write",
        ),
        ("nowhere://bucket/run", r"is of no kind that fsspec opens .* give a folder .* or a gs://"),
    ],
)
def test_a_workdir_that_cannot_be_used_is_one_sentence(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fsspec.register_implementation("closed", Closed, clobber=True)
    monkeypatch.setattr(storage, "checkpoint_folder", lambda _: tmp_path)
    with pytest.raises(UsageError, match=message) as caught, storage.open_workdir(name):
        pass
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(name: str) -> None:
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec.core, "url_to_fs", lacks)
    with pytest.raises(UsageError, match=r"gs://b/run needs a package .*install -e '\.\[gcs\]'"):
        with storage.open_workdir("gs://b/run"):
            pass


def test_checkpoints_have_no_place_in_memory() -> None:
    with pytest.raises(UsageError, match=r"memory://run cannot hold checkpoints, which Orbax"):
        with storage.open_workdir("memory://run"):
            pass


def test_what_goes_wrong_in_a_copied_workdir_names_the_place(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(storage, "checkpoint_folder", lambda _: tmp_path)
    with pytest.raises(UsageError, match=r"^memory://run/config\.json is torn$"):
        with storage.open_workdir("memory://run") as place:
            raise UsageError(f"{place.folder / 'config.json'} is torn")
    with storage.open_workdir("memory://run") as place:
        (place.folder / "a").write_text("a")
        monkeypatch.setattr(MemoryFileSystem, "put_file", lambda *_: 1 / 0)
        with pytest.raises(OSError, match=r"cannot copy a to memory://run \(ZeroDivisionError: "):
            place.keep()


def test_a_finished_checkpoint_of_an_object_store_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """There nothing is renamed: a folder that lacks the file is a part of a checkpoint."""
    from spade_jax import checkpoint

    for step in ("1", "2"):
        for part in ("_CHECKPOINT_METADATA", "learner/_METADATA", "host/metadata"):
            (tmp_path / step / part).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / step / part).touch()
    (tmp_path / "1" / "commit_success.txt").touch()
    assert checkpoint.steps(tmp_path) == ([1, 2], [])
    monkeypatch.setattr(storage, "is_remote", lambda _: True)
    assert checkpoint.steps(tmp_path) == ([1], [tmp_path / "2"])
    assert checkpoint.steps(tmp_path / "none") == ([], [])


# -- corpora ----------------------------------------------------------------------------------

FILES = {"b.jsonl": "one", "a.jsonl": "two", "notes.txt": "no", "deep/c.jsonl": "three"}


@pytest.mark.parametrize("path", ["docs", "docs/a.jsonl", "docs/*.jsonl", "docs/**/*.jsonl"])
def test_a_remote_corpus_is_the_local_one(
    memory: MemoryFileSystem, tmp_path: Path, path: str
) -> None:
    for name, text in FILES.items():
        line = f'{{"text": "{text}"}}\n{{"id": "x", "text": "{text} more"}}\n\n'
        memory.pipe_file(f"/docs/{name}", line.encode())
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_text(line)
    found = []
    for root in (f"{tmp_path}/", f"file://{tmp_path}/", "memory://"):
        with Corpus(root + path, seed=3, max_words=9) as corpus:
            documents = [corpus.document(i) for i in range(2 * len(corpus))]
            found.append((documents, corpus.skipped_places, list(corpus.in_order())))
    assert found[0] == found[1] == found[2]
    assert len(found[0][0]) >= 4


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("memory://docs/none.jsonl", r"the corpus memory://docs/none\.jsonl cannot be read"),
        ("memory://docs/*/*.parquet", r"the corpus memory://docs/\*/\*\.parquet names no \.jsonl"),
        ("memory://docs/notes.txt", r"the corpus memory://docs/notes\.txt ends neither in"),
        ("memory://docs/bad.parquet", r"memory://docs/bad\.parquet is no sound Parquet file"),
        ("nowhere://docs", r"the corpus nowhere://docs is of no kind that fsspec opens"),
    ],
)
def test_a_remote_corpus_that_is_none(memory: MemoryFileSystem, path: str, message: str) -> None:
    for name in ("notes.txt", "bad.parquet"):
        memory.pipe_file(f"/docs/{name}", b"nothing")
    with pytest.raises(UsageError, match=message) as caught:
        Corpus(path, seed=0, max_words=9)
    assert "spade-jax-" not in str(caught.value), "the copy is nobody's business"


def test_a_remote_folder_of_checkpoints_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an object store that would make a bucket."""
    monkeypatch.setattr("orbax.checkpoint.CheckpointManager", lambda directory, **_: str(directory))
    assert Checkpoints("gs://bucket/run/checkpoints", keep=1)._manager == (
        "gs://bucket/run/checkpoints"
    )
