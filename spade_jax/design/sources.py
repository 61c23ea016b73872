"""Where grounding documents lie: JSON lines, Parquet tables, tensorflow-datasets.

Opening a source goes through its records once, to know which of them hold text. What stays in
memory is 8 bytes for a line and 8 for a record without text, never the records.
"""

from __future__ import annotations

import array
import bisect
import codecs
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import msgspec
import numpy as np

from spade_jax.types import UsageError

SUFFIXES = (".jsonl", ".parquet")
TFDS = "tfds:"  # begins the name of a tensorflow-datasets set
NO_GAPS = "every_record_has_text"  # in such a set's metadata: it need not be gone through
REMEDY = (
    "give as corpus (config.corpus.path) a .jsonl or .parquet file whose records hold a `text` or "
    "`orig_doc` string, a folder or pattern of such files, or tfds:NAME"
)
_TEXTS = ("text", "orig_doc")
_READ_BYTES = 1 << 20  # of a file at once
_ROWS = 256  # of a table at once
_RECORDS = 1024  # of a dataset at once
_TFDS_NAME = re.compile(r"[A-Za-z_]\w*(/[\w.\-]+)?(:[\d*]+\.[\d*]+\.[\d*]+)?")


class Record(msgspec.Struct):
    """What is read of a record; other fields are ignored."""

    id: str | int | None = None
    text: str | None = None
    orig_doc: str | None = None

    @property
    def document(self) -> str:
        return (self.text or "").strip() or (self.orig_doc or "").strip()


class Source(Protocol):
    """Records by row, from 0; iterating gives all in order, None for one without a document.

    `skipped` lists the rows of those, ascending. `read` gives None for them too, and where the
    row is no longer what it was.
    """

    unit: str  # what a row is called
    skipped: array.array

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Record | None]: ...

    def read(self, row: int) -> Record | None: ...


def open_sources(path: str, *, data_dir: str, split: str) -> dict[str, Source]:
    """The sources of a corpus by name, in order; the name of a single one is "".

    `path` is a file, a folder or pattern of files, or `tfds:NAME[/CONFIG][:VERSION]`, of which
    `split` is read in `data_dir`. Raises UsageError where there is none, or it cannot be read.
    """
    if path.startswith(TFDS):
        return {"": Dataset(path.removeprefix(TFDS), split=split, data_dir=data_dir)}
    files = _files(path)
    if len(files) == 1:
        return {"": _open(files[0])}
    root = os.path.commonpath([file.parent for file in files])
    return {str(file.relative_to(root)): _open(file) for file in files}


def _files(path: str) -> list[Path]:
    """The files a path names, sorted."""
    given, pattern = Path(path), path
    if given.is_dir():
        pattern = os.path.join(glob.escape(path), "*")
    elif given.exists() or not glob.has_magic(path):
        if given.suffix not in SUFFIXES and given.exists():
            raise UsageError(f"the corpus {path} ends neither in .jsonl nor in .parquet: {REMEDY}")
        return [given]
    found = map(Path, glob.glob(pattern, recursive=True))
    files = sorted(file for file in found if file.suffix in SUFFIXES and file.is_file())
    # A link to a folder above would give every file many times over.
    files = sorted({file.resolve(): file for file in reversed(files)}.values())
    if not files:
        raise UsageError(f"the corpus {path} names no .jsonl or .parquet file: {REMEDY}")
    return files


def _open(path: Path) -> Source:
    try:
        return Table(path) if path.suffix == ".parquet" else JsonLines(path)
    except OSError as error:
        reason = error.strerror or _first_line(error)
        raise UsageError(f"cannot open the corpus {path} ({reason}): {REMEDY}") from None


def _without_text(records: Iterable[Record | None]) -> array.array:
    """Rows of the records that are None."""
    return array.array("Q", (row for row, record in enumerate(records) if record is None))


# -- JSON lines -------------------------------------------------------------------------------

_DECODER = msgspec.json.Decoder(Record)


class JsonLines:
    """A file with one JSON object a line."""

    unit = "line"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts, self.skipped = array.array("Q", [0]), array.array("Q")
        start = 0
        with path.open("rb", buffering=_READ_BYTES) as file:
            for row, line in enumerate(file):
                if _parse(line) is None:
                    self.skipped.append(row)
                start += len(line)
                self._starts.append(start)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __iter__(self) -> Iterator[Record | None]:
        with self._path.open("rb", buffering=_READ_BYTES) as file:
            yield from map(_parse, file)

    def read(self, row: int) -> Record | None:
        start, end = self._starts[row : row + 2]
        try:
            with self._path.open("rb") as file:
                same_size = os.fstat(file.fileno()).st_size == self._starts[-1]
                line = os.pread(file.fileno(), end - start, start)
        except OSError:
            return None
        return _parse(line) if same_size else None


def _parse(line: bytes) -> Record | None:
    """The record of a line, or None where it holds no document."""
    try:
        record = _DECODER.decode(line.removeprefix(codecs.BOM_UTF8))
    except (msgspec.DecodeError, RecursionError):
        return None
    return record if record.document else None


# -- Parquet ----------------------------------------------------------------------------------


class Table:
    """A Parquet file. A read goes through the row group up to the row, some rows at a time.

    So memory is bounded whatever the groups. Among groups of a thousand rows a row is found in some
    milliseconds, in a single group of a gigabyte in half a second.
    """

    unit = "row"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pyarrow = import_pyarrow()
        try:
            with self._file() as file:
                groups = (file.metadata.row_group(n) for n in range(file.num_row_groups))
                self._starts = [0]
                for group in groups:
                    self._starts.append(self._starts[-1] + group.num_rows)
                self._columns = self._choose(file.schema_arrow)
            self.skipped = _without_text(self)
        except self._pyarrow.ArrowException as error:
            raise UsageError(
                f"the corpus {path} is no sound Parquet file ({_first_line(error)}): {REMEDY}"
            ) from None

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[Record | None]:
        for batch in self._batches(range(len(self._starts) - 1)):
            yield from self._records(batch)

    def read(self, row: int) -> Record | None:
        group = bisect.bisect_right(self._starts, row) - 1
        row -= self._starts[group]
        try:
            for batch in self._batches([group]):
                if row < batch.num_rows:
                    return next(self._records(batch.slice(row, 1)))
                row -= batch.num_rows
        except (OSError, self._pyarrow.ArrowException):
            pass
        return None

    def _file(self) -> Any:
        # These settings stream a column of a row group; others would read all of it.
        return self._pyarrow.parquet.ParquetFile(
            self._path, pre_buffer=False, buffer_size=_READ_BYTES
        )

    def _batches(self, groups: Iterable[int]) -> Iterator[Any]:
        with self._file() as file:
            if file.metadata.num_rows == len(self):
                yield from file.iter_batches(
                    batch_size=_ROWS,
                    row_groups=list(groups),
                    columns=self._columns,
                    use_threads=False,
                )

    def _records(self, batch: Any) -> Iterator[Record | None]:
        columns = [_values(batch.column(name)) for name in self._columns]
        for values in zip(*columns, strict=True):
            record = Record(**dict(zip(self._columns, values, strict=True)))
            yield record if record.document else None

    def _choose(self, schema: Any) -> list[str]:
        """Names of the columns to read."""
        types = self._pyarrow.types

        def is_text(kind: Any) -> bool:
            kind = kind.value_type if types.is_dictionary(kind) else kind
            strings = (types.is_string, types.is_large_string, types.is_string_view)
            return any(is_kind(kind) for is_kind in strings)

        if twice := [name for name in (*_TEXTS, "id") if schema.names.count(name) > 1]:
            raise UsageError(
                f"the corpus {self._path} has more than one column `{twice[0]}`: rename the others"
            )
        kinds = dict(zip(schema.names, schema.types, strict=True))
        texts = [name for name in _TEXTS if name in kinds and is_text(kinds[name])]
        if not texts:
            raise UsageError(
                f"the corpus {self._path} has no column `text` or `orig_doc` of strings, but "
                f"{', '.join(schema.names) or 'none at all'}: rename the one that holds the text"
            )
        known = "id" in kinds and (is_text(kinds["id"]) or types.is_integer(kinds["id"]))
        return [*texts, "id"] if known else texts


def import_pyarrow() -> ModuleType:
    """pyarrow, with its Parquet reader; UsageError where it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            "Parquet files need the package pyarrow; run pip install -e '.[corpus]' in the "
            "repository"
        ) from None
    return pyarrow


def _values(column: Any) -> list[str | int | None]:
    """The values of a column; None where null, or no UTF-8."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_value(each) for each in column]


def _value(scalar: Any) -> str | None:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return None


# -- tensorflow-datasets ----------------------------------------------------------------------


class Dataset:
    """A split of a prepared tensorflow-datasets set in array_record form; needs no TensorFlow."""

    unit = "record"

    def __init__(self, name: str, *, split: str, data_dir: str) -> None:
        tfds = import_tfds()
        from tensorflow_datasets.proto import tf_example_pb2

        self._read_example = tf_example_pb2.Example.FromString
        place = data_dir or "TFDS_DATA_DIR or ~/tensorflow_datasets"
        prepare = "python -m spade_jax.prepare_corpus prepares a set from files"
        if not _TFDS_NAME.fullmatch(name):
            raise UsageError(
                f"the corpus {TFDS}{name} is no name of a tensorflow-datasets set; give "
                f"{TFDS}NAME[/CONFIG][:VERSION], as in {TFDS}my_documents:1.0.0"
            )
        try:
            self._raw = tfds.data_source(
                name,
                split=split,
                data_dir=data_dir or None,
                download=False,
                deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES,
            )
            info = self._raw.dataset_info
            complete = (info.metadata or {}).get(NO_GAPS)
        except tfds.core.DatasetNotFoundError:
            raise UsageError(
                f"there is no tensorflow-datasets set {name} in {place}; set config.corpus.data_dir"
                f" to where it lies ({prepare})"
            ) from None
        except Exception as error:  # there are as many kinds as libraries that read its files
            raise UsageError(
                f"the tensorflow-datasets set {name} in {place} cannot be read "
                f"({_first_line(error)}); it must be prepared in array_record form, and have the "
                f"split config.corpus.split ({prepare})"
            ) from None
        self._name = name
        self._features = _choose_features(info.features, name)
        self.skipped = array.array("Q") if complete else _without_text(self)

    def __len__(self) -> int:
        return len(self._raw)

    def __iter__(self) -> Iterator[Record | None]:
        for start in range(0, len(self), _RECORDS):
            rows = range(start, min(start + _RECORDS, len(self)))
            yield from map(self._parse, self._fetch(rows))

    def read(self, row: int) -> Record | None:
        [raw] = self._fetch(range(row, row + 1))
        return self._parse(raw)

    def _fetch(self, rows: range) -> Sequence[bytes]:
        try:
            return self._raw.__getitems__(rows)
        except (RuntimeError, ValueError, OSError) as error:
            raise UsageError(
                f"record {rows.start + 1} of the tensorflow-datasets set {self._name}, or one soon "
                f"after it, cannot be read ({_first_line(error)}); prepare the set anew"
            ) from None

    def _parse(self, raw: bytes) -> Record | None:
        found = self._read_example(raw).features.feature
        try:
            values = {n: b"".join(found[n].bytes_list.value).decode() for n in self._features}
        except UnicodeDecodeError:
            return None
        record = Record(**values)
        return record if record.document else None


def import_tfds() -> ModuleType:
    """The package tensorflow-datasets, or a UsageError that says how to get it."""
    try:
        import tensorflow_datasets
    except ImportError:
        raise UsageError(
            "tensorflow-datasets sets need that package; run pip install -e '.[corpus]' in the "
            "repository"
        ) from None
    return tensorflow_datasets


def _choose_features(features: Any, name: str) -> tuple[str, ...]:
    """Names of the features to read: single strings."""
    single = [key for key, kind in features.items() if kind.shape == ()]
    strings = [key for key in single if np.dtype(features[key].np_dtype).hasobject]
    texts = [key for key in _TEXTS if key in strings]
    if not texts:
        raise UsageError(
            f"the tensorflow-datasets set {name} has no string `text` or `orig_doc`, but "
            f"{', '.join(sorted(features))}: choose another, or prepare one with the text so named"
        )
    return (*texts, "id") if "id" in strings else tuple(texts)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
