"""One HTML file: the template filled, scripts and data within, small enough to be sent around.

Data is JSON, compressed and written in base64, which holds no character that HTML could read, and
scripts show it as text alone. The page allows no other script than its own and no network.
"""

from __future__ import annotations

import base64
import collections
import gzip
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jinja2

from spade_jax import health
from spade_jax.outcomes import parts, regret_of
from spade_jax.report import compare, curves, environments
from spade_jax.report.environments import LEVELS, Detail, Level
from spade_jax.report.runs import Group, Reading, flatten

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("charts.js", "python.js", "viewer.js", "page.js")
CHUNK = 48  # environments that are unpacked at once
NUMBERS = 300_000  # most numbers of all metrics together


def render(
    groups: Sequence[Group], defaults: Mapping[str, object], *, limit: int, every: int
) -> str:
    """The report as HTML of at most `limit` bytes, reloading every `every` seconds (0: never)."""
    readings = [reading for group in groups for reading in group.runs]
    metrics, stride = curves.every_metric(groups, NUMBERS)
    left_out = [] if stride == 1 else [f"of all metrics, every {stride}th value is here"]
    style = (ASSETS / "report.css").read_text(encoding="utf-8")
    index = pack(
        {
            "charts": curves.overlays(groups),
            "groups": [{"label": g.label, "charts": curves.stacks(g)} for g in groups],
            "metrics": metrics,
            "meanings": curves.meanings(metrics),
            "runs": [reading.name for reading in readings],
            "environments": [environments.rows(reading) for reading in readings],
            "every": every,
        }
    )
    values = {
        "readings": readings,
        "groups": groups,
        "index": index,
        "head": heading(readings, groups),
        "evaluations": [evaluation(reading) for reading in readings],
        "alarms": alarms(readings),
        "config": config_rows(groups, defaults),
        "tables": tables(groups),
        "style": style,
        "style_hash": integrity(style),
        "script": script(),
        "script_hash": integrity(script()),
    }
    frame = fill({**values, "chunks": [], "left_out": left_out})
    chunks, level = within(readings, limit - len(frame.encode()) - 2_000)
    return fill({**values, "chunks": chunks, "left_out": left_out + notes(readings, level)})


def fill(values: Mapping[str, object]) -> str:
    """The template with values, every one of which is escaped but for what `pack` made."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html").render(values)


def script() -> str:
    """All scripts as one, in a scope of its own."""
    texts = (path.read_text(encoding="utf-8") for path in (ASSETS / name for name in SCRIPTS))
    return '"use strict";\n(() => {\n' + "\n".join(texts) + "\n})();\n"


def integrity(text: str) -> str:
    """What a content security policy calls a script by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def pack(value: object) -> str:
    """JSON, compressed, in base64; the same value gives the same text."""
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


# -- environments, as many as there is room for -----------------------------------------------


def within(readings: Sequence[Reading], room: int) -> tuple[list[dict[str, object]], Level]:
    """Packed details of the environments at the first level that fits into so many bytes."""
    for level in LEVELS:
        chunks, left = [], room
        for chunk in packed(readings, level):
            chunks.append(chunk)
            left -= len(chunk["data"]) + 2 * len(chunk["names"].encode()) + 100
            if left < 0:
                break
        else:
            return chunks, level
    return [], level


def packed(readings: Sequence[Reading], level: Level) -> Iterator[dict[str, object]]:
    """Details of all environments of all runs by the chunk."""
    for run, reading in enumerate(readings):
        for some in batched(environments.details(reading, level), CHUNK):
            names = [name for name, _ in some]
            yield {"run": run, "names": json.dumps(names), "data": pack(dict(some))}


def batched(items: Iterator[tuple[str, Detail]], n: int) -> Iterator[list[tuple[str, Detail]]]:
    """Lists of n in a row, the last of what is left."""
    while some := list(itertools.islice(items, n)):
        yield some


def notes(readings: Sequence[Reading], level: Level) -> list[str]:
    """What a level leaves out, in words."""
    found = []
    if level.characters is not None:
        found.append(f"texts are cut after {level.characters:,} characters")
    if level.transcripts is not None:
        found.append(f"at most {level.transcripts} transcripts of an environment are here")
    if not level.tokens and level.transcripts:
        found.append("trained tokens are not marked")
    n = sum(len(reading.index) for reading in readings)
    if level.played > 1:
        found.append(f"transcripts are those of one in {level.played} of the {n:,} environments")
    if level.programs > 1:
        found.append(f"programs and texts are those of one in {level.programs} of the {n:,}")
    return found


# -- tables -----------------------------------------------------------------------------------


def heading(readings: Sequence[Reading], groups: Sequence[Group]) -> dict[str, object]:
    """Title, state and the few numbers that are read first."""
    one = readings[0]
    regret = regret_of([line for reading in readings for line in reading.metrics])
    index = [line for reading in readings for line in reading.index]
    accepted = sum(line["reason"] in ("accepted", "given") for line in index)
    tiles, outcomes = [], []
    for group in groups if len(readings) > 1 else ():
        if len(success := compare.success(group)) > 1:
            outcomes.append((success[-1][1], group.label))
    if outcomes:
        best, label = max(outcomes, key=lambda outcome: outcome[0].value)
        tiles.append(("best held-out success", str(best).strip(), label))
    outcome = compare.held_out(one) if len(readings) == 1 else None
    if outcome:
        tiles.append(("held-out success", f"{outcome.after.value:.1%}", f"{outcome.gain} gained"))
    elif len(readings) == 1 and one.evaluations:
        [(k, point)] = list(curves.held_out(one).items())[-1:]
        tiles.append(("held-out success", f"{point[0]:.1%}", f"after {k} iterations"))
    if regret.mean is not None and len(groups) == 1:
        half = "" if regret.stderr is None else f"± {1.96 * regret.stderr:.3f}, "
        tiles.append(("regret", f"{regret.mean:+.3f}", f"{half}{regret.pairs:,} pairs"))
    if index:
        share = f"{accepted / len(index):.0%} of {len(index):,} designs"
        tiles.append(("environments", f"{accepted:,}", share))
    if len(readings) == 1:
        hours = one.seconds / 3600
        took = f"{hours:.1f} h" if hours >= 1 else f"{one.seconds / 60:.0f} min"
        tiles.append(("self-play", took, f"{one.done} of {one.config['iterations']} iterations"))
        title = one.name
        state = f"{one.state}, iteration {one.done} of {one.config['iterations']}"
    else:
        title = f"{len(readings)} runs"
        state = f"in {len(groups)} groups" if len(groups) > 1 else "of one config"
        states = collections.Counter(reading.state for reading in readings)
        said = ", ".join(f"{n} {each}" for each, n in states.items())
        tiles.append(("runs", str(len(readings)), said))
    return {"title": title, "state": state, "tiles": tiles}


def evaluation(reading: Reading) -> dict[str, object] | None:
    """The last evaluation beside the first: over all, by family and by level."""
    if not reading.evaluations:
        return None
    first, last = min(reading.evaluations), max(reading.evaluations)
    before, after = reading.evaluations[first], reading.evaluations[last]
    sections = []
    for title, key in (
        ("all", lambda o: "all"),
        ("family", lambda o: o.family),
        ("level", lambda o: f"level {o.level}"),
    ):
        sections.append((title, list(parts(before, after, key).items())))
    return {"run": reading.name, "first": first, "last": last, "n": len(after), "rows": sections}


def alarms(readings: Sequence[Reading]) -> list[dict[str, object]]:
    """Alarms of all runs, with what they mean."""
    return [
        {**line, "run": reading.name, "meaning": getattr(known, "meaning", "")}
        for reading in readings
        for line in reading.alarms
        for known in (health.ALARMS.get(line["alarm"]),)
    ]


def config_rows(groups: Sequence[Group], defaults: Mapping[str, object]) -> list[tuple]:
    """Field, each group's value, and whether groups differ or the value is not the default's."""
    defaults, configs = flatten(defaults), [group.runs[0].config for group in groups]
    rows = []
    for field in dict.fromkeys(itertools.chain(*configs)):
        values = [config.get(field) for config in configs]
        differs = any(value != values[0] for value in values)
        rows.append((field, values, differs, any(v != defaults.get(field) for v in values)))
    return rows


def tables(groups: Sequence[Group]) -> list[dict[str, object]]:
    """Groups and runs side by side; none where there is one run alone."""
    readings = [reading for group in groups for reading in group.runs]
    if len(readings) < 2:
        return []
    found = [
        {
            "title": "Runs",
            "columns": compare.RUN_COLUMNS,
            "rows": compare.mark_best([compare.run_row(reading) for reading in readings]),
        }
    ]
    if len(groups) < len(readings) or len(groups) > 1:
        rows = compare.mark_best(compare.group_rows(groups))
        found.insert(0, {"title": "Groups", "columns": compare.GROUP_COLUMNS, "rows": rows})
    return found
