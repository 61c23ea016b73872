"""Checkpoints: both states come back exactly, and only whole ones."""

import json
import logging
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import flax.struct
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spade_jax import checkpoint, types


@flax.struct.dataclass
class Learner:
    params: dict[str, jax.Array]
    opt: optax.OptState
    step: jax.Array


def _learner(value: int) -> Learner:
    params = {
        "w_DF": jnp.full((3, 4), float(value)),
        "scale_D": jnp.full((3,), value, jnp.bfloat16),
    }
    chain = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return Learner(params=params, opt=chain.init(params), step=jnp.int32(value))


def _abstract(learner: Learner) -> Learner:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), learner
    )


def _assert_equal(got: Learner, wanted: Learner) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def _host(iteration: int) -> types.HostState:
    record = types.TokenRecord().read((1, 2)).wrote((3,), (-0.1,))
    environment = types.Environment(
        id="000001-002", kind=types.Kind.GAME, skill="A", code="x = '\u00e9\ud800\\n'", iteration=1
    )
    entry = types.PoolEntry(
        environment=environment,
        plain=((0.1 + 0.2, 1.0), ()),
        regret=types.Regret(mean=1 / 3, stderr=None, pairs=7),
        leak_share=1 / 7,
    )
    pending = types.PendingDesign(
        environment_id="000001-002",
        skill="A",
        iteration=1,
        version=3,
        reason=types.Reason.ACCEPTED,
        record=record,
        prompt="000001-000",
    )
    return types.HostState(
        iteration=iteration,
        corpus_position=24,
        pool=(entry,),
        pending=(pending,),
        trackers={"A": types.Tracker(fast=0.25, slow=None)},
        baselines={"000001-002": 1e-300},
        fingerprints=("ab", "cd"),
    )


def test_both_states_come_back(tmp_path: Path) -> None:
    with checkpoint.Checkpoints(tmp_path / "c", keep=2) as checkpoints:
        assert checkpoints.restore(_abstract(_learner(0))) is None
        for step in (1, 2, 3):
            checkpoints.save(step, _learner(step), _host(step))
        checkpoints.save(3, _learner(99), _host(99))  # saved already: left as it is
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["2", "3"]
    with checkpoint.Checkpoints(tmp_path / "c", keep=2) as checkpoints:
        abstract = _abstract(_learner(0))
        step, learner, host = checkpoints.restore(abstract)
    assert step == 3
    _assert_equal(learner, _learner(3))
    assert learner.params["w_DF"].sharding == abstract.params["w_DF"].sharding
    assert host == _host(3)
    assert isinstance(host.pending[0].reason, types.Reason)


def test_a_saved_learner_may_be_donated_at_once(tmp_path: Path) -> None:
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), donate_argnums=0)
    learner = {str(i): jnp.full((512, 512), float(i + 1)) for i in range(8)}
    abstract = _abstract(learner)
    with checkpoint.Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, learner, types.HostState())
        jax.block_until_ready(overwrite(learner))
        _, restored, _ = checkpoints.restore(abstract)
    for i in range(8):
        np.testing.assert_array_equal(np.asarray(restored[str(i)]), float(i + 1))


def test_half_written_checkpoints_are_skipped_named_and_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with checkpoint.Checkpoints(tmp_path, keep=3) as checkpoints:
        checkpoints.save(4, _learner(4), _host(4))
    shutil.copytree(tmp_path / "4", tmp_path / "6.orbax-checkpoint-tmp")
    shutil.copytree(tmp_path / "4", tmp_path / "8")
    (tmp_path / "8" / "host" / "metadata").unlink()
    (tmp_path / "10").mkdir()
    caplog.set_level(logging.WARNING)
    with checkpoint.Checkpoints(tmp_path, keep=3) as checkpoints:
        step, learner, _ = checkpoints.restore(_abstract(_learner(0)))
        assert step == 4
        _assert_equal(learner, _learner(4))
        warnings = [each.getMessage() for each in caplog.records if "half-written" in each.message]
        assert sorted(warnings) == [
            f"Skipping the half-written checkpoint {tmp_path / name}."
            for name in ("10", "6.orbax-checkpoint-tmp", "8")
        ]
        checkpoints.save(8, _learner(8), _host(8))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "8"]
    with checkpoint.Checkpoints(tmp_path, keep=3) as checkpoints:
        step, learner, host = checkpoints.restore(_abstract(_learner(0)))
    assert (step, host) == (8, _host(8))
    _assert_equal(learner, _learner(8))


KILLED = """
import os, signal, sys
import jax.numpy as jnp
from spade_jax import checkpoint, types
checkpoints = checkpoint.Checkpoints(sys.argv[1], keep=2)
for step in (1, 2):
    checkpoints.wait()
    learner = {"w": jnp.full((1 << 22,), float(step))}
    checkpoints.save(step, learner, types.HostState(iteration=step))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_while_saving_the_last_commit_is_whole(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True)
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    with checkpoint.Checkpoints(tmp_path, keep=2) as checkpoints:
        step, learner, host = checkpoints.restore(_abstract({"w": jnp.zeros(1 << 22)}))
    assert step in (1, 2)
    assert host.iteration == step
    np.testing.assert_array_equal(np.asarray(learner["w"]), float(step))


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "message"),
    [
        ("w_DF", (3, 5), jnp.float32, r"params\.w_DF as float32\[3,4\] .* needs float32\[3,5\]"),
        ("w_DF", (3, 4), jnp.bfloat16, r"as float32\[3,4\] .* needs bfloat16\[3,4\]"),
        ("other", (2,), jnp.float32, r"params\.other as nothing .* needs float32\[2\]"),
    ],
)
def test_other_arrays_are_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...], dtype: jnp.dtype, message: str
) -> None:
    learner = _learner(1)
    with checkpoint.Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, learner, _host(1))
        other = learner.replace(params={**learner.params, name: jnp.zeros(shape, dtype)})
        with pytest.raises(ValueError, match=message):
            checkpoints.restore(_abstract(other))


@pytest.mark.parametrize("part", ["learner/manifest.ocdbt", "host/metadata"])
def test_a_damaged_checkpoint_is_one_sentence(tmp_path: Path, part: str) -> None:
    with checkpoint.Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, _learner(1), _host(1))
    (tmp_path / "1" / part).write_bytes(b"{")
    with (
        checkpoint.Checkpoints(tmp_path, keep=1) as checkpoints,
        pytest.raises(ValueError, match=rf"checkpoint {tmp_path}/1 is damaged .* move it away"),
    ):
        checkpoints.restore(_abstract(_learner(1)))


def test_a_failed_save_surfaces_at_the_next_call(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    checkpoints = checkpoint.Checkpoints(folder, keep=1)
    checkpoints.save(1, _learner(1), _host(1))
    checkpoints.wait()
    shutil.rmtree(folder)
    folder.write_text("in the way")
    with pytest.raises(OSError, match=f"cannot write a checkpoint to {folder} .* make room"):
        checkpoints.save(2, _learner(2), _host(2))
        checkpoints.wait()


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("")
    with pytest.raises(OSError, match=r"cannot write a checkpoint to .*/c "):
        checkpoint.Checkpoints(tmp_path / "c", keep=1)


def _states() -> st.SearchStrategy[types.HostState]:
    floats = st.floats(allow_nan=False)
    names = st.text(max_size=6)
    memory = st.builds(
        types.MemoryRecord,
        environment_id=names,
        skill=names,
        code=st.text(st.characters(), max_size=20),
        fingerprint=names,
        iteration=st.integers(0, 9),
        win_rate=st.none() | floats,
        regret=st.none() | floats,
    )
    tokens = st.tuples(st.integers(0, 99), st.booleans(), floats, floats)
    record = st.lists(tokens, max_size=4).map(
        lambda rows: types.TokenRecord(
            ids=tuple(row[0] for row in rows),
            action=tuple(row[1] for row in rows),
            logp=tuple(row[2] for row in rows),
            behaviour=tuple(row[3] for row in rows),
        )
    )
    pending = st.builds(
        types.PendingDesign,
        environment_id=names,
        skill=names,
        iteration=st.integers(0, 9),
        version=st.integers(0, 9),
        reason=st.sampled_from(types.Reason),
        record=record,
        prompt=names,
    )
    return st.builds(
        types.HostState,
        iteration=st.integers(0, 2**40),
        memory=st.lists(memory, max_size=2).map(tuple),
        pending=st.lists(pending, max_size=2).map(tuple),
        baselines=st.dictionaries(names, floats, max_size=3),
    )


@settings(deadline=None)
@given(_states())
def test_host_state_is_kept_to_the_bit(state: types.HostState) -> None:
    text = json.dumps(checkpoint.host_to_builtins(state))
    again = checkpoint.host_from_builtins(json.loads(text))
    assert again == state
    assert repr(again) == repr(state)  # tells -0.0 from 0.0


def test_host_state_of_another_shape_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="iteration"):
        checkpoint.host_from_builtins({"iteration": "three"})


# -- room and retention -----------------------------------------------------------------------


def test_newest_ones_and_every_third_are_kept(tmp_path: Path) -> None:
    with checkpoint.Checkpoints(tmp_path, keep=2, keep_every=3) as checkpoints:
        for step in range(1, 6):
            checkpoints.save(step, {"a": jnp.ones(2)}, types.HostState())
    assert checkpoint.steps(tmp_path)[0] == [3, 4, 5]
    with checkpoint.Checkpoints(tmp_path, keep=2, keep_every=3) as checkpoints:  # it goes on
        for step in (6, 7, 8):
            checkpoints.save(step, {"a": jnp.ones(2)}, types.HostState())
    assert checkpoint.steps(tmp_path)[0] == [3, 6, 7, 8]


def test_what_has_no_room_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 3 x 4 float32, 5 bfloat16 and an int32: 48 + 10 + 4 bytes.
    learner = {"a": jnp.ones((3, 4)), "b": jnp.ones(5, jnp.bfloat16), "c": jnp.int32(1)}
    assert checkpoint.size(learner) == 62
    disk = shutil.disk_usage(tmp_path)
    with checkpoint.Checkpoints(tmp_path, keep=1) as checkpoints:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: disk._replace(free=61))
        with pytest.raises(OSError, match=r"it takes 62 bytes and 61 are free\): make room"):
            checkpoints.save(1, learner, types.HostState())
        monkeypatch.setattr(shutil, "disk_usage", lambda _: disk._replace(free=62))
        checkpoints.save(1, learner, types.HostState())
    assert checkpoint.steps(tmp_path) == ([1], [])
