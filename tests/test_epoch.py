"""Who reads the designs of an epoch: the policy, or a served model in its place."""

from types import SimpleNamespace

import pytest

from spade_jax import epoch, hosts
from spade_jax.design import judge
from spade_jax.envs import validation
from spade_jax.policy import hub
from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.types import (
    Design,
    DesignTask,
    Environment,
    HostState,
    Kind,
    PoolEntry,
    Reason,
    StopReason,
    TokenRecord,
    Verdict,
)
from tests import small_run
from tests.policy.small import SMALL

CHAT = ChatTokenizer(hub.folder(""))


def says(text: str) -> small_run.Scripted:
    return small_run.Scripted(CHAT, lambda said, stream: text)


def run_of(*fields: dict[str, object], **others: object) -> SimpleNamespace:
    c = small_run.configured("tiny", *fields)
    return SimpleNamespace(config=c, model=SMALL, sandbox=None, divide=hosts.divide, **others)


def design(slot: int, hint: str | None = None) -> Design:
    task = DesignTask(
        iteration=0, slot=slot, skill="Optimization", kind=Kind.GAME, document=None, prompt="p"
    )
    return Design(
        task=task,
        reply="",
        stop=StopReason.STOP,
        record=TokenRecord(),
        code="class AEnv: ...",
        hint=hint,
    )


@pytest.mark.parametrize(
    ("source", "hinter", "expected"),
    [("self", None, "Inside."), ("endpoint", says("Hint: Outside."), "Outside.")],
)
def test_new_environments_get_their_hint_from_whom_the_config_says(
    source: str, hinter: small_run.Scripted | None, expected: str
) -> None:
    def entry(name: str, hint: str | None, *plain: tuple[float, ...]) -> PoolEntry:
        environment = Environment(
            id=name, kind=Kind.GAME, skill="s", code="", iteration=0, hint=hint
        )
        return PoolEntry(environment=environment, plain=plain)

    host = HostState(pool=(entry("new", None), entry("kept", "Earlier.", (1.0, 0.0))))
    run = run_of({"hint.source": source}, hinter=hinter)
    assert epoch.wants_hints(run.config, host)
    host, missing = epoch.write_hints(run, says("Inside."), host)
    assert [e.environment.hint for e in host.pool] == [expected, "Earlier."] and missing == 0


@pytest.mark.parametrize(
    ("source", "served", "reason"),
    [
        ("none", None, Reason.ACCEPTED),
        ("self", None, Reason.ACCEPTED),
        ("endpoint", says("Verdict: no"), Reason.JUDGE),
    ],
)
def test_designs_are_judged_by_whom_the_config_says(
    monkeypatch: pytest.MonkeyPatch, source: str, served: small_run.Scripted | None, reason: Reason
) -> None:
    accept_all(monkeypatch)
    run = run_of({"judge.source": source}, judge=served)
    [verdict] = epoch.judge_programs(run, says("Verdict: yes"), [design(0)], HostState())
    assert verdict.reason is reason
    assert verdict.judge == {"none": "", "self": "yes", "endpoint": "no"}[source]


def test_a_hint_beside_the_program_is_that_of_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accept_all(monkeypatch)
    run = run_of({"hint.source": "reply"}, judge=None)
    designs = [design(0), design(1, hint="Add.")]
    verdicts = epoch.judge_programs(run, says(""), designs, HostState())
    assert [v.reason for v in verdicts] == [Reason.EXTRACT, Reason.ACCEPTED]
    host = epoch.open_designed(run.config, HostState(), designs, verdicts, version=0)
    assert [(e.environment.id, e.environment.hint) for e in host.pool] == [("000000-001", "Add.")]
    assert not epoch.wants_hints(run.config, host)


def accept_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let validation accept what it is given, and every program be played."""
    accepted = Verdict(reason=Reason.ACCEPTED, fingerprint="f", behaviour="b")
    monkeypatch.setattr(validation, "check", lambda _, given, **__: [accepted] * len(given))
    monkeypatch.setattr(judge, "solved_plays", lambda _, given: ["A play."] * len(given))
