"""The conversions there and back, what is said about a model, and that all forms can be trained."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from spade_jax import convert
from spade_jax import run as run_setup
from spade_jax.policy import hub, lora, model
from spade_jax.policy.model import ModelConfig
from spade_jax.types import Role, UsageError
from tests import small_run
from tests.policy.small import MOE, SMALL, UNTIED, random_params
from tests.test_weights import ADAPTED, assert_equal, make_run

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run_convert(monkeypatch: pytest.MonkeyPatch):
    """The program with these arguments, and flags by name."""

    def run(*arguments: object, **flags: object) -> int:
        chosen = {"json": False, "dtype": None, "adapter": False} | flags
        monkeypatch.setattr(convert, "FLAGS", SimpleNamespace(**chosen))
        return convert.main([str(argument) for argument in arguments])

    return run


@pytest.mark.parametrize("c", [SMALL, UNTIED, MOE], ids=["tied", "untied", "experts"])
def test_there_and_back_is_bitwise(
    c: ModelConfig, tmp_path: Path, run_convert, capsys: pytest.CaptureFixture
) -> None:
    there, ours, back = (tmp_path / name for name in ("there", "ours", "back"))
    hub.save(there, c, random_params(c), eos_id=1, pad_id=0)
    for name in ("tokenizer.json", "generation_config.json", hub.PROGRAMS_FILE):
        (there / name).write_text(name)
    assert run_convert("import", there, ours) == 0
    assert f"wrote {ours}; peak host memory" in capsys.readouterr().out
    assert run_convert("export", ours, back) == 0
    before, after = ({p.name: p.read_bytes() for p in f.iterdir()} for f in (there, back))
    assert before == after
    assert not list(ours.glob("*.safetensors")) and (ours / "tokenizer.json").is_file()


def test_a_run_is_exported(tmp_path: Path, run_convert) -> None:
    hub.save(tmp_path / "base", SMALL, random_params(SMALL), eos_id=1, pad_id=0)
    params = random_params(SMALL, seed=1)
    workdir = make_run(tmp_path / "run", tmp_path / "base", {4: params})
    run_convert("export", workdir, tmp_path / "whole")
    assert_equal(hub.load(tmp_path / "whole")[1], params)
    run_convert("export", workdir, tmp_path / "half", dtype="bfloat16")
    assert {t.dtype for t in load_file(tmp_path / "half" / "model.safetensors").values()} == {
        jnp.dtype("bfloat16")
    }
    rounded = jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)
    assert_equal(hub.load(tmp_path / "half")[1], rounded)
    with pytest.raises(UsageError, match="has no adapters; export it without --adapter"):
        run_convert("export", workdir, tmp_path / "adapter", adapter=True)


def test_adapters_are_exported_merged_or_alone(
    tmp_path: Path, run_convert, capsys: pytest.CaptureFixture
) -> None:
    params = random_params(SMALL)
    hub.save(tmp_path / "base", SMALL, params, eos_id=1, pad_id=0, dtype="bfloat16")
    frozen = hub.load(tmp_path / "base")[1]
    trained = jax.tree.map(lambda a: a + 0.1, lora.init(SMALL, ADAPTED, jax.random.key(0)))
    workdir = make_run(tmp_path / "run", tmp_path / "base", {4: trained}, ADAPTED)
    run_convert("export", workdir, tmp_path / "merged")
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == "float32"
    assert_equal(hub.load(tmp_path / "merged")[1], model.merged(ADAPTED(trained, frozen)))
    run_convert("export", workdir, tmp_path / "alone", adapter=True)
    config = json.loads((tmp_path / "alone" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tmp_path / "base")
    tensors = load_file(tmp_path / "alone" / "adapter_model.safetensors")
    assert sum(t.size for t in tensors.values()) == sum(a.size for a in jax.tree.leaves(trained))
    capsys.readouterr()
    run_convert("inspect", workdir, json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["lora"] == {"rank": 2, "alpha": 4.0, "targets": "layers/(q|down)"}
    assert [t["name"] for t in found["tensors"]] == [
        *("layers/down/a", "layers/down/b", "layers/q/a", "layers/q/b")
    ]
    assert found["bytes"] == 4 * sum(a.size for a in jax.tree.leaves(trained))
    run_convert("inspect", workdir)
    assert "only adapters are here" in capsys.readouterr().out


def test_what_is_told_of_a_folder(
    tmp_path: Path, run_convert, capsys: pytest.CaptureFixture
) -> None:
    hub.save(tmp_path / "m", MOE, random_params(MOE), eos_id=1, pad_id=0, dtype="bfloat16")
    run_convert("inspect", tmp_path / "m", json=True)
    found = json.loads(capsys.readouterr().out)
    # embedding and head 64*32 each; a layer: q, o 32*32, k, v 32*16, norms 2*32 + 2*8, router
    # 32*4, experts 4*3*32*24; the last norm 32
    expected = 2 * 64 * 32 + 2 * (2 * 1024 + 2 * 512 + 80 + 128 + 4 * 3 * 768) + 32
    assert found["parameters"] == expected
    assert found["bytes"] == 2 * expected
    assert (found["architecture"], found["step"], found["kind"]) == (
        *("qwen3_moe", None, "hugging face"),
    )
    assert found["sizes"]["experts"] == 4 and found["sizes"]["tied"] is False
    [up] = [t for t in found["tensors"] if t["name"] == "layers/up"]
    assert up == {
        "name": "layers/up",
        "hugging_face": "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
        "shape": [2, 4, 32, 24],
        "dtype": "bfloat16",
        "bytes": 2 * 4 * 32 * 24 * 2,
    }
    workdir = make_run(tmp_path / "run", tmp_path / "m", {4: random_params(MOE)})
    run_convert("inspect", workdir)
    said = capsys.readouterr().out
    assert f"{workdir}/checkpoints/4: run, checkpoint of iteration 4" in said
    assert f"{expected:,} parameters" in said and "of float32" in said
    assert "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight" in said


def test_inspecting_needs_no_accelerator() -> None:
    """The platform asked for is one this machine may lack."""
    done = subprocess.run(
        [sys.executable, "-m", "spade_jax.convert", "inspect", "", "--json"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "tpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == str(hub.BUNDLED)


@pytest.mark.parametrize(
    ("arguments", "flags", "sentence"),
    [
        ([], {}, "nothing is no conversion; pass import SRC DST, export SRC DST or inspect"),
        (["import", "a"], {}, "import a is no conversion"),
        (["export", "a", "b", "c"], {}, "export a b c is no conversion"),
        (["exprt", "a", "b"], {}, "exprt a b is no conversion"),
        (["import", "a", "b"], {"dtype": "bfloat16"}, "import keeps the weights as they are"),
        (["import", "", "TMP"], {}, "TMP exists already; give the name of a new folder"),
        (["export", "nowhere", "there"], {}, "nowhere/config.json is missing; point model.path"),
    ],
)
def test_wrong_usage(
    arguments: list[str], flags: dict[str, object], sentence: str, tmp_path: Path, run_convert
) -> None:
    (tmp_path / "something").write_text("")
    with pytest.raises(UsageError) as caught:
        run_convert(*(a.replace("TMP", str(tmp_path)) for a in arguments), **flags)
    assert sentence.replace("TMP", str(tmp_path)) in str(caught.value)


@pytest.mark.parametrize("form", ["imported", "run"])
def test_every_form_is_a_model_path(form: str, tmp_path: Path, run_convert) -> None:
    """The set-up of a run gives the same weights and tokenizer whichever form it is given."""
    _, params = hub.load(hub.BUNDLED)
    path = tmp_path / form
    if form == "imported":
        run_convert("import", "", path)
    else:
        make_run(path, hub.BUNDLED, {3: jax.tree.map(jnp.copy, params)})
    c = small_run.configured("tiny", {"model.path": str(path)})
    with run_setup.set_up(c) as (run, state):
        assert_equal(state.params, params)
        assert run.tokenizers[Role.AGENT].vocab == run.model.vocab == 1024
        assert len(run.training) > 100, "fingerprints of the warm start are found, too"
    assert np.isfinite(np.asarray(params["embed"])).all()
