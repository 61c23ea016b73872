"""A fixed pool of environments in place of the designer: the baseline of fixed training data.

A pool is the bundled programs or, at a path, a folder of Python files or tables, or one table:
JSONL or Parquet with the columns `game_id, file_name, skill, sha256, code`, the form in which pools
are published. A row without `code` means the file `file_name` beside its table. Where a folder has
tables, they say what of its files belongs to the pool; what is hidden in it is not looked at.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from spade_jax.design import sources
from spade_jax.design.corpus import Corpus
from spade_jax.design.families import FAMILIES, LEVELS, sample_program, theme_of
from spade_jax.envs import contract
from spade_jax.envs.programs import kind_of
from spade_jax.types import Environment, Kind, UsageError

BUNDLED_SIZE = 480  # bundled programs where no size is asked for
TABLES = (".jsonl", ".parquet")
_COLUMNS = "game_id, file_name, skill, sha256 and code"


class Row(msgspec.Struct):
    """What is read of a row; other columns are ignored."""

    skill: str
    sha256: str
    code: str | None = None
    game_id: str | int | None = None
    file_name: str | None = None


# -- what is in it ----------------------------------------------------------------------------


def load_pool(
    path: str, seed: int, size: int, skills: Sequence[str], corpus: Corpus
) -> list[Environment]:
    """The pool at `path`, "" being the bundled one; `size` of its programs, 0 being all.

    `skills` choose among the bundled programs; a pool from elsewhere has skills of its own. Raises
    UsageError where something cannot be read or is not what its checksum says.
    """
    if not path:
        return bundled_pool(seed, size or BUNDLED_SIZE, skills, corpus)
    pool = _read(Path(path))
    if size > len(pool):
        raise UsageError(
            f"the pool {path} holds {len(pool)} environments, but environments.size is {size}; "
            "lower it, or set 0 to take all"
        )
    if not size:
        return pool
    chosen = random.Random(f"{seed}/fixed-size").sample(range(len(pool)), size)
    return [pool[n] for n in sorted(chosen)]


def bundled_pool(seed: int, size: int, skills: Sequence[str], corpus: Corpus) -> list[Environment]:
    """`size` programs of the bundled families that belong to `skills`, all levels alike."""
    families = [family for family in FAMILIES.values() if family.skill in skills]
    if not families:
        known = ", ".join(sorted({family.skill for family in FAMILIES.values()}))
        raise UsageError(
            f"no bundled environment is of the skills {', '.join(skills)}, so there is no fixed "
            f"pool; choose skills among {known}"
        )
    pool = []
    for n in range(size):
        rng = random.Random(f"{seed}/fixed-pool/{n}")
        family = families[n % len(families)]
        theme = theme_of(corpus.document(rng.randrange(len(corpus))).text)
        program = sample_program(rng, family.name, rng.choice(LEVELS), theme)
        pool.append(
            Environment(
                id=f"fixed-{n:05d}",
                kind=program.kind,
                skill=program.skill,
                code=program.code,
                iteration=0,
            )
        )
    return pool


def _read(path: Path) -> list[Environment]:
    files = _files(path) if path.is_dir() else [path]
    programs = [file for file in files if path.is_dir() and file.suffix == ".py"]
    tables = [file for file in files if file.suffix in TABLES]
    if tables:
        read = [each for table in tables for each in _checked(table)]
    elif programs:
        read = [(file.stem, _skill(path, file), _text(file)) for file in programs]
    else:
        raise UsageError(
            f"{path} holds no environments; set environments.path to a folder of .py files or to "
            f"a {' or '.join(TABLES)} table with {_COLUMNS}"
        )
    return [
        Environment(
            id=f"fixed-{n:05d}-{name}", kind=_kind(code), skill=skill, code=code, iteration=0
        )
        for n, (name, skill, code) in enumerate(read)
    ]


def _files(folder: Path) -> list[Path]:
    """The files in a folder and those below it, sorted, but what is hidden."""
    names = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
    return [folder / n for n in sorted(names) if not any(part[0] == "." for part in n.parts)]


def _skill(root: Path, file: Path) -> str:
    """A file's skill is the folder it lies in, within the pool's own."""
    return file.parent.name if file.parent != root else root.name


def _kind(code: str) -> Kind:
    return kind_of(code) if contract.TOOL_BASE in code else Kind.GAME


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read ({(error.strerror or str(error)).lower()}); mend the pool at "
            "environments.path"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is no UTF-8 text ({error.reason}); save it as UTF-8") from None


def _checked(table: Path) -> list[tuple[str, str, str]]:
    """Name, skill and code of every row, none of them other than its checksum says."""
    read, wrong = [], []
    for n, row in enumerate(_rows(table), start=1):
        name = str(row.game_id if row.game_id is not None else row.file_name or n)
        if row.code is None and row.file_name is None:
            raise UsageError(f"row {n} of {table} has neither code nor file_name; give it one")
        code = _text(_beside(table, n, row.file_name)) if row.code is None else row.code
        if hashlib.sha256(code.encode()).hexdigest() != row.sha256.strip().lower():
            wrong.append(f"row {n} ({row.file_name or name})")
        read.append((name, row.skill, code))
    if wrong:
        more = ", ..." if len(wrong) > 5 else ""
        raise UsageError(
            f"{len(wrong)} of {len(read)} programs in {table} differ from their sha256: "
            f"{', '.join(wrong[:5])}{more}; take the table from its source again"
        )
    return read


def _beside(table: Path, n: int, name: str) -> Path:
    """The file that row `n` names, which must lie with its table."""
    if name.startswith("/") or ".." in Path(name).parts or "\0" in name:
        raise UsageError(
            f"row {n} of {table} names {name!r}, which is no file in the folder of the table; put "
            "it there and correct file_name"
        )
    return table.parent / name


def _rows(table: Path) -> Iterator[Row]:
    records = _json_records(table) if table.suffix == ".jsonl" else _parquet_records(table)
    for n, record in enumerate(records, start=1):
        try:
            yield msgspec.convert(record, Row)
        except msgspec.ValidationError as error:
            raise UsageError(
                f"row {n} of {table} is none of a pool ({error}); a row has {_COLUMNS}"
            ) from None


def _json_records(table: Path) -> Iterator[Any]:
    try:
        lines = table.open("rb")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"the pool {table} cannot be read ({reason}); correct environments.path"
        ) from None
    with lines:
        for n, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise UsageError(
                    f"line {n} of {table} is no JSON ({error}); take it from its source again"
                ) from None


def _parquet_records(table: Path) -> Iterator[Any]:
    pyarrow = sources.import_pyarrow()
    try:
        with pyarrow.parquet.ParquetFile(table) as file:
            wanted = [name for name in Row.__struct_fields__ if name in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=256, columns=wanted):
                yield from batch.to_pylist()
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise UsageError(
            f"the pool {table} cannot be read as Parquet ({error}); take it from its source again"
        ) from None


# -- drawing from it --------------------------------------------------------------------------


def draw(pool: Sequence[Environment], count: int, epoch: int, seed: int) -> list[Environment]:
    """The `count` environments of an epoch, all different; the pool must hold as many.

    They come without replacement: each once in a pass through the pool, and then again in the next
    pass's order. Where an epoch takes the end of one pass and the start of the next, what it would
    take twice changes places with what comes later in the new pass.
    """
    start, size = epoch * count, len(pool)
    order: list[int] = []  # of the pass
    stream: list[int] = []  # of the passes that the epoch touches
    for number in range((start + count - 1) // size + 1):
        last, order = order, list(range(size))
        random.Random(f"{seed}/fixed-order/{number}").shuffle(order)
        taken = number * size % count  # of the epoch under way, by the passes before
        if taken:
            _part(order, set(last[size - taken :]), count - taken)
        if number >= start // size:
            stream += order
    start -= start // size * size
    return [pool[n] for n in stream[start : start + count]]


def _part(order: list[int], had: set[int], first: int) -> None:
    """Keep what is in `had` out of the first places, each changing with the next one that is not.

    In place.
    """
    later = first
    for place in range(first):
        if order[place] in had:
            while order[later] in had:
                later += 1
            order[place], order[later] = order[later], order[place]
            later += 1
