"""The benchmark of the sandbox measures what it names."""

from types import SimpleNamespace

import pytest

from spade_jax import sandbox_benchmark
from spade_jax.sandbox_benchmark import percentile


def test_percentiles() -> None:
    values = [float(v) for v in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0, 50, 99, 100)] == [1.0, 51.0, 100.0, 100.0]


def test_every_line_has_a_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sandbox_benchmark, "FLAGS", SimpleNamespace(seconds=0.05))
    monkeypatch.setattr(sandbox_benchmark, "FLAVOURS", {"light": sandbox_benchmark.GAME})
    monkeypatch.setattr(sandbox_benchmark, "KILLS", 2)
    sandbox_benchmark.main()
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("tier ")
    assert len(lines) == 3 + 3 + 1 + 1 + 1
    assert all(float(line[40:51].replace(",", "")) > 0 for line in lines)
