"""The benchmark measures every stage, and says so when it has to play a fixed pool."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from spade_jax import benchmark
from spade_jax.benchmark import Figure
from tests import small_run


def test_every_stage_is_measured(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The small model writes no valid design."""
    monkeypatch.setattr(benchmark, "REPEATS", 1)
    c = small_run.run_config(model_folder, design__max_tokens=24, sampling__slots=24)
    monkeypatch.setattr(benchmark, "FLAGS", SimpleNamespace(config=c, epochs=1, json=True))
    benchmark.main()
    captured = capsys.readouterr()
    assert "no design was valid" in captured.err
    result = json.loads(captured.out)
    assert " cores, cpu; Python 3." in result["machine"]
    figures = {f["name"]: f for f in result["figures"]}
    assert all(math.isfinite(f["value"]) and f["value"] >= 0 for f in figures.values())
    for title in ("iteration that opens an epoch", "other iteration"):
        parts = [figures[f"{title}: {stage}"]["value"] for stage in ("play", "learn")]
        assert sum(parts) <= figures[f"{title}: in all"]["value"]
    limited = {f["name"] for f in figures.values() if f["alone"]}
    assert limited == {
        "reading in play",
        "decoding in play",
        "learning",
        "environment steps in play",
    }
    parts = [figures[f"of play: {part}"]["value"] for part in ("reading", "decoding")]
    assert 0 < sum(parts) <= figures["other iteration: play"]["value"] * 1.5  # medians of few
    for name in ("sandbox: processes", "sandbox: resets", "validation of"):
        assert any(each.startswith(name) for each in figures)


def test_table_lines_up() -> None:
    figures = [
        Figure("play", 1.25, "s"),
        Figure("sampling in play", 1500.0, "tokens/s", 6000.0),
        Figure("programs compiled", 0, ""),
    ]
    head, *lines = benchmark.table(figures).splitlines()
    assert [line.split()[-1] for line in lines] == ["s", "25%", "0"]
    assert "1,500 tokens/s      6,000" in lines[1]
    assert len(head) == len(lines[1])


def test_median_of_calls_after_the_first() -> None:
    calls = []
    assert benchmark.median_seconds(lambda: calls.append(0)) >= 0
    assert len(calls) == 1 + benchmark.REPEATS
