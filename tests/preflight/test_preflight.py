"""The program: what it says of a run that fits and of one that does not, and of wrong usage."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ml_collections import config_dict
from rich.console import Console

from spade_jax.preflight import __main__ as program
from spade_jax.preflight import chips, report
from spade_jax.preflight.chips import GIB
from spade_jax.types import UsageError
from tests import small_run

ROOT = Path(__file__).parents[2]
FIELDS = {
    "mesh": (1, 4, 1, 1),
    "learn.row_tokens": (256, 640),  # splash attention takes multiples of 128
    "sampling.slots": 16,
    "model.attention": "auto",
}
SLICE = {
    "compiler": "libtpu 0.0.52",
    "devices": 4,
    "mesh": {"data": 1, "fsdp": 4, "tensor": 1, "expert": 1},
    "sampling_mesh": {"data": 1, "fsdp": 1, "tensor": 4, "expert": 1},
    "replicas": 1,
    "context": 640,
    "residents": {
        **{"parameters": GIB, "optimizer": 2 * GIB, "reference": 0},
        **{"sampling copy": GIB, "cache": 9 * GIB},
    },
    "model": {
        **{"vocab": 100, "width": 8, "layers": 2, "heads": 4, "kv_heads": 4, "head_size": 4},
        **{"ffn": 16, "rope_theta": 1e4, "norm_eps": 1e-6, "tied": True, "max_positions": 640},
    },
    "rates": {"flops": 1e14, "bandwidth": 7e11, "link": 1e11},
}


def said(name: str, phase: str, holds: list[str], **fields: Any) -> dict[str, Any]:
    """What the compiling process says of a program."""
    empty = {"parts": [], "largest": [], "untold": [], "peak": 0}
    return {"name": name, "phase": phase, "holds": holds, "compile_s": 2.0, **empty, **fields}


PART = {"what": "", "flops": 2e12, "bytes": 3e9, "seconds": 0.5, "hidden": 0.4}
PART["sent"] = [["all-gather", 4, 4e9]]
ROUND = {**PART, "what": "micro-batch of 8 x 256", "seconds": 0.25, "hidden": 0.2}
DECODE = said(
    "decode 16 slots", "sample", ["sampling copy", "cache"], arguments=10 * GIB,
    parts=[PART, {**PART, "what": "token of each slot", "bytes": 11 * GIB}],
)  # fmt: skip
TRAIN = said(
    "train step", "learn", ["parameters", "optimizer"], arguments=3 * GIB, temporaries=2 * GIB,
    parts=[PART, ROUND, {**ROUND, "what": "micro-batch of 2 x 640"}],
)  # fmt: skip


@pytest.fixture
def c() -> config_dict.ConfigDict:
    return small_run.configured("tiny", FIELDS)


def made(
    c: config_dict.ConfigDict, monkeypatch: pytest.MonkeyPatch, *programs: dict[str, Any]
) -> report.Report:
    """The report on these answers."""

    def answers(request: dict, c: config_dict.ConfigDict) -> Iterator[dict]:
        yield from (json.loads(json.dumps(each)) for each in (SLICE, *programs))

    monkeypatch.setattr(chips, "check_compiler", lambda: None)
    monkeypatch.setattr(program, "answers", answers)
    return program.preflight(c, "v5e:2x2", 0.25, every_bucket=False, only=[])


def text(r: report.Report) -> str:
    with Path(os.devnull).open("w") as nowhere:
        console = Console(file=nowhere, width=200, record=True)
        report.show(r, console)
        return console.export_text()


def test_a_run_that_fits(c: config_dict.ConfigDict, monkeypatch: pytest.MonkeyPatch) -> None:
    r = made(c, monkeypatch, DECODE, TRAIN)
    assert r.fits
    told = text(r)
    assert "4 devices of 16.00 GiB, of which programs get 15.75" in told
    assert "trains on fsdp 4; samples as one on tensor 4 with 16 slots of 640 tokens" in told
    for name in ("decode 16 slots", "token of each slot", "train step", "all-gather of 4: 4"):
        assert name in told
    assert "does not fit" not in told and "MFU = model FLOPs / " in told
    assert "A micro-batch of 2 x 640 does not fall into 4 pieces" in " ".join(told.split())
    assert "A micro-batch of 8 x 256" not in told
    machine = report.as_json(r)
    assert json.loads(json.dumps(machine))["fits"] is True
    learn = next(p for p in machine["phases"] if p["name"] == "learn")
    assert learn["total"] == (1 + 2 + 2) * GIB
    assert machine["programs"][1]["mfu"]["micro-batch of 8 x 256"][0] == pytest.approx(
        (6 * machine["model"]["active"] + 6 * 2 * 16 * 256) * 8 * 256 / (0.25 * 4 * 197e12)
    )
    assert machine["remedies"] == {}
    assert machine["programs"][0]["touched"] == 11 / (1 + 9) and "x 1.10" in told


def test_a_run_that_does_not_fit(
    c: config_dict.ConfigDict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """13 GiB stay while it samples and decoding takes 6 more, 3.25 too many; so does the update."""
    buffers = [[3 * GIB, "f32[9,1,2] of layer/dot"], [GIB, "bf16[7]"]]
    large = {**TRAIN, "temporaries": 16 * GIB, "largest": buffers}
    wide = {**DECODE, "temporaries": 6 * GIB}
    told = text(made(c, monkeypatch, wide, large))
    assert "sample does not fit by 3.25 GiB: cache 9.00, decode 16 slots 6.00, optimizer" in told
    assert "learn does not fit by 3.25 GiB: train step 16.00, optimizer 2.00" in told
    assert "largest buffers of train step: 3.00 f32[9,1,2] of layer/dot, 1.00 bf16[7]" in told
    assert "--config.sampling.slots=10" in told and "4 pieces (--config.learn.rows=(8, 4))" in told


def test_a_program_the_compiler_refuses(
    c: config_dict.ConfigDict, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {**TRAIN, "failed": "RESOURCE_EXHAUSTED: too large", "temporaries": 30 * GIB}
    r = made(c, monkeypatch, refused | {"parts": []})
    assert not r.fits
    assert r.iteration.seconds is None
    assert "does not fit by 17.25 GiB" in text(r)


# -- wrong usage ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "fields", "told"),
    [
        ("v9:2x2", {}, "there is no topology 'v9:2x2'; choose one of v4:2x2x1"),
        ("v5e:2x2", {"model.path": "nowhere"}, "nowhere/config.json is missing"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_compiled(
    topology: str, fields: dict[str, object], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chips, "check_compiler", lambda: None)
    c = small_run.configured("tiny", FIELDS, fields)
    with pytest.raises(UsageError, match=told):
        program.preflight(c, topology, 0.25, every_bucket=False, only=[])


@pytest.mark.parametrize(
    ("line", "error", "told"),
    [
        ('{"error": "rows of 7 do not fit"}', UsageError, "^rows of 7 do not fit$"),
        ('{"failed": "INTERNAL: no"}', OSError, "^the compiler cannot do this: INTERNAL: no$"),
        ("", OSError, r"^the compiler ended with 3: it was Tuesday"),
    ],
)
def test_what_the_compiling_process_cannot_do(
    line: str, error: type, told: str, c: config_dict.ConfigDict, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\necho '{line}'\necho it was Tuesday >&2\nexit 3\n")
    if not line:
        stand_in.write_text("#!/bin/sh\necho it was Tuesday >&2\nexit 3\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    with pytest.raises(error, match=told):
        list(program.answers({"topology": "v5e:2x2"}, c))


# -- with the real compiler -------------------------------------------------------------------


def run(*arguments: str) -> subprocess.CompletedProcess:
    """The program; skipped where the TPU's compiler is not installed."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: pip install -e .[tpu] brings it, and needs no TPU")
    return subprocess.run(
        [sys.executable, "-m", "spade_jax.preflight", "--config=tiny", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def flags(**fields: object) -> list[str]:
    return [f"--config.{name}={value}" for name, value in {**FIELDS, **fields}.items()]


def test_the_copy_to_the_sampler_on_a_small_slice() -> None:
    """Four devices gather what they have in quarters; libtpu's noise stays off the screen."""
    done = run("--topology=v5e:2x2", "--only=weights", "--json", *flags())
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    [weights] = told["programs"]
    assert weights["name"] == "weights to the sampler" and weights["peak"] > 0
    assert told["rates"]["flops"] == pytest.approx(197e12, rel=0.01)
    sent = {kind: n for kind, _, n in weights["parts"][0]["sent"]}
    whole = 4 * told["model"]["parameters"]
    assert sent["all-gather"] == pytest.approx(3 / 4 * whole, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--topology=v5p:3x3x3", *flags()], "there is no topology 'v5p:3x3x3'"),
        (["--topology=v5e:2x2", *flags(mesh=(1, 3, 1, 1))], "takes 3 devices, but there are 4"),
        (
            ["--topology=v5e:2x2", *flags(mesh=(1, 1, 4, 1))],
            "mesh divides the model among 4 devices on the axis tensor",
        ),
    ],
)
def test_wrong_usage_that_the_compiler_finds(arguments: list[str], told: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert told in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_all_programs_of_the_tiny_run() -> None:
    done = run("--topology=v5e:2x2", "--json", *flags())
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert {p["phase"] for p in told["programs"]} == {"weights", "sample", "learn"}
    assert not any(p["failed"] for p in told["programs"])
    train = next(p for p in told["programs"] if p["name"] == "train step")
    fixed, *rounds = train["parts"]
    assert [part["what"] for part in rounds] == ["micro-batch of 8 x 256", "micro-batch of 2 x 640"]
    assert told["iteration"]["seconds"] > 0
    # Three products with each parameter and token, a fourth where the layers compute again.
    needed = 8 * 256 * 6 * told["model"]["active"] / 4
    assert needed < rounds[0]["flops"] < 2 * needed
    assert fixed["flops"] == 0
