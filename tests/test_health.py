"""Alarms and rules that stop a run: raised once, cleared, kept over a resume."""

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import optax
import pytest
from ml_collections import config_dict

from spade_jax import config, health, jsonl, metrics, record, storage, summary, train
from spade_jax.checkpoint import Checkpoints
from spade_jax.learn import step
from spade_jax.learn.step import LearnerState
from spade_jax.measures import Made
from spade_jax.run import Run
from spade_jax.types import (
    Design,
    DesignTask,
    HostState,
    Kind,
    Reason,
    Role,
    StopReason,
    TokenRecord,
    Verdict,
)
from tests import small_run


@pytest.fixture(scope="module")
def c() -> config_dict.ConfigDict:
    return config.load("tiny")


def begun(c: config_dict.ConfigDict, host: HostState, **measured: float) -> tuple:
    """State and names of the alarms raised by metrics written with two underscores."""
    values = {name.replace("__", "/"): value for name, value in measured.items()}
    host, raised = health.watch(c, 3, values, host)
    return host, [each.alarm for each in raised]


@pytest.mark.parametrize("name", health.ALARMS)
def test_every_alarm_has_a_metric_a_bound_and_advice_on_fields_there_are(
    c: config_dict.ConfigDict, name: str
) -> None:
    alarm, known = health.ALARMS[name], config.flatten(c)
    assert metrics.describe(alarm.metric).meaning
    assert f"health.{alarm.field}" in known
    named = [word.strip(",:;()") for word in alarm.meaning.split()]
    fields = [word for word in named if "." in word]
    for field in fields:
        assert field in known, f"{name} advises on {field}, which is no field"


def test_hints_and_judgements_that_do_not_come_are_said(c: config_dict.ConfigDict) -> None:
    """A server that is down takes the regret from a run, and the judge, but does not stop it."""
    host, names = begun(c, HostState(), play__hints_missing=0, designer__judge_unknown_share=0.4)
    assert names == []
    gone = {"play__hints_missing": 1, "designer__judge_unknown_share": 1.0}
    host, names = begun(c, host, **gone)
    assert names == ["missing_hints", "silent_judge"]
    assert begun(c, host, **gone)[1] == []


def test_bounds_by_hand(c: config_dict.ConfigDict) -> None:
    # valid_share is a floor of 0.2; failed_share counts from 0.1 up.
    for share, expected in ((0.2, []), (0.1999, ["few_valid"]), (math.nan, ["few_valid"])):
        assert begun(c, HostState(), designer__valid_share=share)[1] == expected
    for share, expected in ((0.0999, []), (0.1, ["broken_plays"]), (math.nan, ["broken_plays"])):
        assert begun(c, HostState(), play__failed_share=share)[1] == expected
    assert begun(c, HostState(), designer__regret_ratio=-3.1)[1] == ["harmful_hints"]
    assert begun(c, HostState(), designer__regret_ratio=-2.9)[1] == []
    both = begun(c, HostState(), agent__entropy=0.001, designer__entropy=0.5)
    assert both[1] == ["decided_agent"]


def test_a_healthy_iteration_raises_nothing(c: config_dict.ConfigDict) -> None:
    """Medians of a recorded run of the tiny config."""
    healthy = {
        "designer/valid_share": 0.92,
        "designer/duplicate_share": 0.0,
        "designer/diversity": 0.5,
        "agent/zero_variance_share": 0.29,
        "agent/success": 0.65,
        "play/hint_leak_share": 0.0,
        "play/hints_missing": 0,  # where they are written by a reader of programs
        "designer/judge_unknown_share": 0.0,  # where there is a judge
        "play/failed_share": 0.0,
        "agent/entropy": 0.075,
        "designer/entropy": 0.06,
        "agent/truncated_share": 0.006,
        "designer/truncated_share": 0.0,
        "designer/regret_ratio": 5.0,
        "learn/clip_share": 0.0,
        "learn/logprob_gap_max": 5e-6,
        "learn/sampler_kl": 1e-12,
        "learn/effective_sample_size": 1.0,
        "learn/skipped_in_row": 0,
    }
    assert set(healthy) == {alarm.metric for alarm in health.ALARMS.values()}
    assert health.watch(c, 0, healthy, HostState()) == (HostState(), ())


def test_an_alarm_is_raised_once_and_again_when_it_has_cleared(c: config_dict.ConfigDict) -> None:
    shares = [0.1, 0.0, None, 0.1, 0.3, None, 0.1]
    host, heard, on = HostState(), [], []
    for share in shares:
        host, names = begun(c, host, **({} if share is None else {"designer__valid_share": share}))
        heard.append(len(names))
        on.append("few_valid" in host.alarms)
    assert heard == [1, 0, 0, 0, 0, 0, 1]
    assert on == [True, True, True, True, False, False, True]


def test_zero_turns_an_alarm_off(c: config_dict.ConfigDict) -> None:
    off = small_run.configured("tiny", {"health.valid_share": 0.0, "health.failed_share": 0.0})
    raised = HostState(alarms=("few_valid",))
    host, names = begun(off, raised, designer__valid_share=0.0, play__failed_share=1.0)
    assert (host.alarms, names) == ((), [])
    quiet = {f"health.{alarm.field}": 0.0 for alarm in health.ALARMS.values()}
    quiet |= {"health.skipped_in_row": 0, "health.hints_missing": 0}
    none = small_run.configured("tiny", quiet)
    worst = {alarm.metric: math.nan for alarm in health.ALARMS.values()}
    assert health.watch(none, 0, worst, HostState(alarms=("too_easy",)))[1] == ()


def test_what_is_said(c: config_dict.ConfigDict) -> None:
    _, [raised] = health.watch(c, 7, {"designer/valid_share": 0.125}, HostState())
    assert str(raised).startswith(
        "alarm few_valid in iteration 7: designer/valid_share is 0.125, below "
        "health.valid_share = 0.2; the designer writes little that can be played: "
    )
    _, [raised] = health.watch(c, 7, {"play/failed_share": 0.5}, HostState())
    assert "play/failed_share is 0.5, not below health.failed_share = 0.1; " in str(raised)
    assert "\n" not in str(raised)


def test_few_valid_designs_stop_a_run() -> None:
    c = small_run.configured("tiny", {"health.stop_valid_share": 0.25, "health.stop_after": 2})
    host, stops, counts = HostState(), [], []
    for share in (0.2, None, 0.25, 0.0, None, 0.2, None, 0.1):
        measured = {} if share is None else {"designer/valid_share": share}
        host, _ = health.watch(c, 0, measured, host)
        stops.append(health.reason_to_stop(c, measured, host) is not None)
        counts.append(host.few_valid_in_row)
    assert counts == [1, 1, 0, 1, 1, 2, 2, 3]
    # Between regenerations it goes on: so does a run that is resumed after it stopped.
    assert stops == [False] * 5 + [True, False, True]
    never = small_run.configured("tiny", {"health.stop_after": 1})
    host, _ = health.watch(never, 0, {"designer/valid_share": 0.0}, HostState())
    assert health.reason_to_stop(never, {"designer/valid_share": 0.0}, host) is None


def test_updates_that_are_not_finite_stop_a_run(c: config_dict.ConfigDict) -> None:
    def reason(row: int) -> str | None:
        host = dataclasses.replace(HostState(), skipped_in_row=row)
        return health.reason_to_stop(c, {"learn/skipped_in_row": row}, host)

    assert c.learn.max_skipped == 5
    assert reason(4) is None
    assert reason(5).startswith("5 updates in a row were not finite and were left out; give the")
    assert "\n" not in reason(5)


def nothing_valid(run: Run, state: LearnerState, host: HostState) -> tuple:
    """An iteration in which one design is written, without a program."""
    task = DesignTask(
        iteration=host.iteration, slot=0, skill="Optimization", kind=Kind.GAME, document=None
    )
    design = Design(task=task, reply="", stop=StopReason.STOP, record=TokenRecord(), code=None)
    made = Made(
        designs=[design],
        verdicts=[Verdict(reason=Reason.EXTRACT)],
        episodes=[],
        samples=[],
        rewards={},
        scored={},
        learned={"learn/updates": 0, "learn/skipped_in_row": 0},
        tokens_sampled=0,
    )
    return state, dataclasses.replace(host, iteration=host.iteration + 1), made


def test_a_run_that_stops_is_saved_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(train, "iterate", nothing_valid)
    monkeypatch.setattr(train, "evaluate", lambda *_: {})
    monkeypatch.setattr(summary, "write", lambda _: "the summary")
    fields = {"iterations": 5, "health.stop_valid_share": 0.5, "health.stop_after": 2}
    c = small_run.configured("tiny", fields, {"log.tensorboard": False})
    state = step.create({"a": jnp.zeros(2)}, optax.adam(1.0))
    known = {
        "config": c,
        "timer": metrics.Timer(),
        "training": (),
        "sandbox": SimpleNamespace(peak_mb=0.0),
        "tokenizers": {Role.AGENT: SimpleNamespace(spell=str)},
        "show": None,
    }
    run = dataclasses.make_dataclass("SmallRun", known)(**known)

    def go() -> tuple[int, str]:
        with (
            Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints,
            storage.open_workdir(tmp_path) as place,
        ):
            found = checkpoints.restore(jax.eval_shape(lambda: state))
            host = found[2] if found else HostState()
            code = train.loop(run, state, host, checkpoints, place)
        return code, " ".join(capsys.readouterr().err.split())

    code, said = go()
    assert code == 1
    assert "stopped and saved at iteration 2 of 5: under 50% of the designs were valid at 2" in said
    assert said.count("alarm few_valid") == 1
    assert "in iteration 0: designer/valid_share is 0, below health.valid_share" in said
    code, said = go()  # the counter goes on, and the alarm is raised still
    assert code == 1 and "alarm" not in said
    assert "stopped and saved at iteration 3 of 5: under 50% of the designs were valid at 3" in said
    c.health.stop_valid_share = 0.0
    assert go() == (0, "")
    lines = metrics.read_metrics(tmp_path)
    assert [(line["step"], line["health/alarms"]) for line in lines] == [(n, 1) for n in range(5)]
    [alarm] = jsonl.read(tmp_path / "alarms.jsonl")
    assert alarm.pop("message").startswith("alarm few_valid in iteration 0: ")
    assert alarm == {
        "iteration": 0,
        "alarm": "few_valid",
        "metric": "designer/valid_share",
        "value": 0.0,
        "bound": 0.2,
    }


def test_alarms_of_iterations_that_are_made_again_are_cut(tmp_path: Path) -> None:
    raised = [health.Raised(n, "few_valid", "designer/valid_share", 0.0, 0.2) for n in (1, 3)]
    for first, each in ((0, raised), (3, raised[1:]), (2, [])):
        with record.open_journal(tmp_path, first, 0) as journal:
            _, _, made = nothing_valid(None, None, HostState())
            journal.write(first, made, HostState(), each)
    kept = [line["iteration"] for line in jsonl.read(tmp_path / "alarms.jsonl")]
    assert kept == [1]
