"""The page: what it holds, what it leaves out, and that texts stay texts."""

import base64
import gzip
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spade_jax import config as configs
from spade_jax.report import environments, page, write
from spade_jax.report.environments import Level
from spade_jax.report.runs import flatten, group
from tests.report import sample

ROOT = Path(__file__).parents[2]


def unpack(text: str) -> object:
    return json.loads(gzip.decompress(base64.b64decode(text)))


def render(*folders: Path, limit: int = 4_800_000, every: int = 0) -> str:
    groups = group([sample.reading(folder) for folder in folders])
    defaults = flatten(configs.load("default").to_dict())
    return page.render(groups, defaults, limit=limit, every=every)


def embedded(text: str) -> dict[str, dict[str, object]]:
    """Details of the environments, of the first run."""
    blocks = re.findall(r'class="chunk" data-run="0" data-names="[^"]*">([^<]*)<', text)
    return {name: detail for block in blocks for name, detail in unpack(block).items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return sample.write_run(tmp_path / "seed1")


def test_rows_of_environments_by_hand(folder: Path) -> None:
    rows = {row["id"]: row for row in environments.rows(sample.reading(folder))}
    assert list(rows) == [name for name, *_ in reversed(sample.DESIGNS)]
    first = rows["000000-000"]
    assert (first["name"], first["verdict"], first["reward"]) == ("SumEnv", "accepted", 0.7)
    assert (first["win"], first["hinted"]) == (0.75, 1.0)  # 3 of 4, 2 of 2
    assert (first["regret"], first["pairs"]) == (0.5, 2)
    assert rows[sample.ODD]["win"] == 0.0  # of the three that did not break
    assert (rows["000000-002"]["name"], rows["000000-002"]["win"]) == ("no program", None)
    assert rows["000002-000"]["parents"] == ["000000-000"]


def test_details_hold_everything_where_there_is_room(folder: Path) -> None:
    details = embedded(render(folder))
    first = details["000000-000"]
    assert first["code"] == (folder / "environments" / "0.py").read_text()
    assert first["hint"] == f"Add them. {sample.SCRIPT}" and first["of"] == 3
    assert first["plays"] == [[0, [1.0, 0.0], [1.0, 1.0]], [1, [1.0, 1.0], []]]
    arms = [(e["iteration"], e["arm"], e["advantage"]) for e in first["transcripts"]]
    assert arms == [(0, "plain", 0.5), (0, "hinted", None), (1, "plain", 0.5)]
    assert first["transcripts"][0]["rows"][0][1] == [True, 3, f"so 0{sample.SCRIPT}"]
    assert details["000000-002"]["message"] == sample.SCRIPT


def test_texts_cannot_leave_their_place(folder: Path) -> None:
    text = render(folder)
    assert sample.SCRIPT not in text and "taken" not in text
    [script] = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert f"script-src '{page.integrity(script)}'" in text
    assert text.count("<script>") == 1 and "default-src 'none'" in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


def test_tables_of_a_run(folder: Path) -> None:
    text = render(folder)
    assert "few_valid" in text and "the designer writes little that can be played" in text
    assert "50.0% ± 98.0%" in text  # one of two instances, as in test_curves
    assert re.search(r'design.prompts</code></th><td class="own">tiny<', text)
    assert 'id="compare"' not in text and "Left out" not in text


def test_several_runs_are_compared(folder: Path, tmp_path: Path) -> None:
    other = sample.write_run(tmp_path / "seed2", wins=(1.0, 1.0), corpus__enabled=False)
    text = render(folder, other)
    assert 'id="compare"' in text and "corpus.enabled=False" in text
    best = re.findall(r'class="n best">([^<]*)<', text)
    assert best == ["100.0% ± 0.0%", "100.0% ± 0.0%"] * 2  # after and gain, of groups and of runs


def test_a_small_limit_leaves_out_and_says_so(folder: Path) -> None:
    whole = render(folder)
    # Far more than a report has room for: long random texts, which do not get smaller.
    rng = random.Random(0)
    for path in (folder / "environments").glob("*.py"):
        noise = "".join(chr(0x4E00 + rng.randrange(20_000)) for _ in range(60_000))
        path.write_text(path.read_text() + f"# {noise}\n")
    limit = len(whole.encode()) + 20_000
    cut = render(folder, limit=limit)
    assert len(cut.encode()) <= limit
    assert re.search(r"Left out, to keep this file small: texts are cut after [\d,]+ char", cut)
    details = embedded(cut)
    assert details["000000-000"]["code"].endswith(environments.CUT)


def test_levels_leave_out_more_and_more(folder: Path) -> None:
    reading = sample.reading(folder)
    sizes = [len(json.dumps(list(environments.details(reading, level)))) for level in page.LEVELS]
    assert sizes == sorted(sizes, reverse=True)
    few = dict(environments.details(reading, Level(20, 1, programs=2)))
    assert list(few) == ["000002-001", "000000-002", "000000-000"]
    assert len(few["000000-000"]["transcripts"]) == 1 and few["000000-000"]["of"] == 3
    assert few["000000-000"]["code"] == 'class SumEnv:\n    ""' + environments.CUT
    notes = page.notes([reading], Level(20, 1, tokens=False, played=4, programs=2))
    assert notes == [
        "texts are cut after 20 characters",
        "at most 1 transcripts of an environment are here",
        "trained tokens are not marked",
        "transcripts are those of one in 4 of the 5 environments",
        "programs and texts are those of one in 2 of the 5",
    ]


def test_a_run_of_any_age_is_shown(folder: Path) -> None:
    for name in ("metrics.jsonl", "plays.jsonl", "rewards.jsonl", "alarms.jsonl", "plot.png"):
        (folder / name).unlink()
    for name in ("evaluation", "episodes", "environments"):
        for path in (folder / name).iterdir():
            path.unlink()
    assert "There has been no evaluation yet." in render(folder)


def report(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spade_jax.report", *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_watching_ends_with_the_last_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plot, out, waited = folder / "plot.png", tmp_path / "report.html", []
    plot.unlink()

    def wait(seconds: float) -> None:
        waited.append((seconds, index(out)["every"]))
        if len(waited) == 2:
            plot.write_bytes(b"")

    monkeypatch.setattr("time.sleep", wait)
    write.watch([folder], out, 4_800_000, 7)
    assert waited == [(7, 7), (7, 7)]  # pages that reload themselves
    assert index(out)["every"] == 0  # and the last one, which does not
    assert not list(tmp_path.glob("*.draft"))


def index(path: Path) -> dict[str, object]:
    [block] = re.findall(r'id="index">([^<]*)<', path.read_text())
    return unpack(block)


def test_the_program_writes_the_page_and_prints_tables(folder: Path, tmp_path: Path) -> None:
    sample.write_run(tmp_path / "seed2", seed=2)
    done = report("seed1", "seed2", "--out=all.html", "--plot=all.png", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("| run | iterations | before")
    assert any(line.startswith("| base | 2 | 0.0%") for line in lines)
    assert (tmp_path / "all.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_a_transcript_has_room_for_its_first_texts(folder: Path) -> None:
    room = environments.Room(300)
    assert [room.cut("a" * 200), room.cut(None), room.cut("b" * 200), room.cut("c" * 200)] == [
        *("a" * 200, None),
        *(letter * environments.FEW + environments.CUT for letter in "bc"),
    ]
    assert environments.Room(None).cut("a" * 10**6) == "a" * 10**6
    played = dict(environments.details(sample.reading(folder), Level(played=4)))
    assert [name for name, each in played.items() if each["transcripts"]] == ["000000-000"]
    assert all(each["code"] for each in played.values())
