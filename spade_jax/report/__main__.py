"""A run, or several side by side, as one HTML file that opens from disk.

    python -m spade_jax.report runs/tiny
    python -m spade_jax.report runs/tiny-ablations --out=ablations.html --plot=ablations.png

A folder of runs, such as a sweep's, stands for all of its runs. Several are grouped by what their
configs differ in, seeds apart, and their tables are printed as Markdown.
"""

from __future__ import annotations

from pathlib import Path

from absl import flags

from spade_jax.program import run_program
from spade_jax.report import compare
from spade_jax.report.runs import workdirs
from spade_jax.report.write import watch, write
from spade_jax.types import UsageError

FLAGS = flags.FLAGS


def main(names: list[str]) -> None:
    if not names:
        raise UsageError("name a run's folder: python -m spade_jax.report WORKDIR")
    paths, out, limit = workdirs(names), Path(FLAGS.out), int(FLAGS.limit_mb * 1_000_000)
    groups = watch(paths, out, limit, FLAGS.every) if FLAGS.watch else write(paths, out, limit)
    print(compare.tables(groups))
    print(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)")
    if FLAGS.plot:
        from spade_jax.report.plot import overlay

        overlay(groups).savefig(FLAGS.plot, dpi=110)
        print(f"wrote {FLAGS.plot}")


if __name__ == "__main__":
    flags.DEFINE_string("out", "report.html", "File to write.")
    flags.DEFINE_string("plot", None, "Also draw held-out success by group into this picture.")
    flags.DEFINE_float("limit_mb", 4.8, "Size of the file; the least telling is left out.", 0.5)
    flags.DEFINE_bool("watch", False, "Write it again and again while runs go on.")
    flags.DEFINE_integer("every", 30, "With --watch: seconds until it is written again.", 1)
    run_program(main, files=True)
