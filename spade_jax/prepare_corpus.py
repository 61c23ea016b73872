"""Write a corpus as a tensorflow-datasets set, of which a run opens any document at once.

    python -m spade_jax.prepare_corpus SRC --data_dir=DIR --name=NAME

SRC is what `--config.corpus.path` may be: a .jsonl or .parquet file, a folder or pattern of such
files. The set holds `text` and `id` of every document that has text, in the order of the files, in
array_record form; TensorFlow is not needed. A run reads it with
`--config.corpus.path=tfds:NAME --config.corpus.data_dir=DIR`, and any other program with
`tfds.data_source(NAME, split="train", data_dir=DIR)`.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from absl import flags

from spade_jax.design import sources
from spade_jax.design.corpus import Corpus
from spade_jax.program import run_program
from spade_jax.types import Document, UsageError

FLAGS = flags.FLAGS
VERSION = "1.0.0"
SHARD_BYTES = 64 << 20  # of text in a shard, which is held in memory while it is written

Shard = Callable[[], Iterator[tuple[str, dict[str, str]]]]


def prepare(corpus: Corpus, data_dir: Path, name: str) -> list[int]:
    """Write the corpus as the split `train` of a set; the number of documents in each shard.

    What is there already is a UsageError; a set appears whole or, where this fails, not at all.
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise UsageError(
            f"--name={name} is no name of a set; use lower-case letters, digits and underscores, "
            "beginning with a letter"
        )
    if name in sources.import_tfds().list_builders(with_community_datasets=False):
        raise UsageError(
            f"--name={name} is a set of tensorflow-datasets itself, which would be read in the "
            "place of yours; give another --name"
        )
    folder = data_dir / name / VERSION
    if folder.exists():
        raise UsageError(f"{folder} exists already; give another --name or --data_dir")
    sizes = shard_sizes(len(each.text.encode()) for each in corpus.in_order())
    # The shards are written one after the other, so each takes what those before it left.
    documents = corpus.in_order()
    shards = [_shard(documents, size) for size in sizes]
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it reports a download
            _builder(name, data_dir, shards).download_and_prepare()
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written ({error.strerror}); choose another --data_dir"
        ) from None
    return sizes


def shard_sizes(lengths: Iterable[int]) -> list[int]:
    """How many documents of these lengths in bytes go into each shard."""
    sizes, left = [], 0
    for length in lengths:
        if not sizes or length > left:
            sizes.append(0)
            left = SHARD_BYTES
        sizes[-1] += 1
        left -= length
    return sizes


def _shard(documents: Iterator[Document], size: int) -> Shard:
    """The next documents as the keys and examples of a shard."""
    return lambda: (
        (each.id, {"id": each.id, "text": each.text}) for each in itertools.islice(documents, size)
    )


def _builder(name: str, data_dir: Path, shards: list[Shard]) -> Any:
    tfds = sources.import_tfds()

    class Documents(tfds.core.ShardBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version(VERSION)
        url_infos = None  # nothing is downloaded; the look-up needs a package tfds does not name

        def _info(self) -> Any:
            text = tfds.features.Text()
            return tfds.core.DatasetInfo(
                builder=self,
                description="Grounding documents, all of them with text.",
                features=tfds.features.FeaturesDict({"id": text, "text": text}),
                metadata=tfds.core.MetadataDict({sources.NO_GAPS: True}),
                disable_shuffling=True,  # each run has an order of its own
            )

        def _shard_iterators_per_split(self, _: object) -> dict[str, list[Shard]]:
            return {"train": shards}

    Documents.name = name
    return Documents(data_dir=str(data_dir), file_format="array_record")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not FLAGS.name or not FLAGS.data_dir:
        raise UsageError("pass one corpus and where to write it: SRC --data_dir=DIR --name=NAME")
    sources.import_tfds()  # before the work
    with Corpus(arguments[0], seed=0, max_words=1) as corpus:
        if warning := corpus.warning():
            print(f"warning: {warning}")
        sizes = prepare(corpus, Path(FLAGS.data_dir), FLAGS.name)
        print(
            f"wrote {len(corpus)} documents in {len(sizes)} shards; read them with "
            f"--config.corpus.path=tfds:{FLAGS.name} --config.corpus.data_dir={FLAGS.data_dir}"
        )
    return 0


if __name__ == "__main__":
    flags.DEFINE_string("data_dir", "", "Folder of tensorflow-datasets sets to write into.")
    flags.DEFINE_string("name", "", "Name of the new set.")
    run_program(main, files=True)
