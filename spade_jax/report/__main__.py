"""A run, or several side by side, as one HTML file that opens from disk.

python -m spade_jax.report runs/tiny
python -m spade_jax.report runs/tiny-ablations --out=ablations.html --plot=ablations.png

A folder of runs, such as a sweep's, stands for all of its runs. Several are grouped by what their
configs differ in, seeds apart, and their tables are printed as Markdown.
"""

from __future__ import annotations

import time
from pathlib import Path

from absl import flags

from spade_jax import config as configs
from spade_jax.program import run_program
from spade_jax.report import compare, page
from spade_jax.report.runs import Group, flatten, group, read, workdirs
from spade_jax.types import UsageError

FLAGS = flags.FLAGS


def write(paths: list[Path], out: Path, limit: int, every: int = 0) -> list[Group]:
    """Write the report of these runs in one rename, and return what it shows.

    It reloads itself every so many seconds; 0: never. Raises UsageError where the file cannot be
    written.
    """
    defaults = flatten(configs.load("default").to_dict())
    groups = group([read(path, defaults) for path in paths])
    running = any(run.state == "running" for each in groups for run in each.runs)
    text = page.render(groups, defaults, limit=limit, every=every if running else 0)
    draft = out.with_name(out.name + ".draft")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(out)
    except OSError as error:
        raise UsageError(
            f"the report {out} cannot be written ({error.strerror}); choose another --out"
        ) from error
    return groups


def watch(paths: list[Path], out: Path, limit: int, every: int) -> list[Group]:
    """Write the report every so many seconds until no run goes on."""
    groups = write(paths, out, limit, every)
    print(f"wrote {out}; again every {every} s until no run goes on, Ctrl-C ends it", flush=True)
    while any(run.state == "running" for each in groups for run in each.runs):
        time.sleep(every)
        groups = write(paths, out, limit, every)
    return groups


def print_tables(groups: list[Group]) -> None:
    """Rows of runs and, where there is more than one of something, of groups."""
    rows = [compare.run_row(reading) for each in groups for reading in each.runs]
    print(compare.markdown(compare.RUN_COLUMNS, compare.mark_best(rows)))
    if len(rows) > 1:
        rows = compare.mark_best(compare.group_rows(groups))
        print("\n" + compare.markdown(compare.GROUP_COLUMNS, rows))


def main(names: list[str]) -> None:
    if not names:
        raise UsageError("name a run's folder: python -m spade_jax.report WORKDIR")
    paths, out, limit = workdirs(names), Path(FLAGS.out), int(FLAGS.limit_mb * 1_000_000)
    groups = watch(paths, out, limit, FLAGS.every) if FLAGS.watch else write(paths, out, limit)
    print_tables(groups)
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
    flags.DEFINE_integer("every", 30, "Seconds between that.", 1)
    run_program(main, files=True)
