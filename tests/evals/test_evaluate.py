"""The program: the same result in this process and from a server, going on, what it refuses."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import msgspec
import openai
import pytest

from spade_jax import evaluate, in_loop, metrics, weights
from spade_jax.envs.sandbox import Sandbox
from spade_jax.evals import catalog, heldout, results, runner
from spade_jax.evals.runner import Result
from spade_jax.evals.suites import Listed, Settings
from spade_jax.policy.conversation import Conversations
from spade_jax.policy.sampler import Sampler
from spade_jax.policy.sampling import Sampling
from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.types import Arm, UsageError
from tests import small_run
from tests.serve.scripted import NAME, serving
from tests.test_weights import make_run

Run = Callable[..., int]
ASKED = {
    "suite": ["aime25"],
    "limit": 6,
    "k": 1,
    "temperature": 0.0,
    "reply_tokens": 8,
    "context": 320,
    "concurrency": 3,
}
NOTHING = {
    **dict.fromkeys(("model", "workdir", "endpoint", "served_model", "key_variable"), ""),
    **dict.fromkeys(("user_endpoint", "user_model", "data", "output"), ""),
    **dict.fromkeys(("limit", "k", "concurrency", "reply_tokens", "context"), 0),
    **dict.fromkeys(evaluate.SAMPLING),
    "suite": [],
    "arm": "plain",
    "csv": False,
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The program with these flags, and a file of 30 problems."""
    lines = [{"id": n, "problem": f"What is {n} + 4?", "answer": str(n + 4)} for n in range(30)]
    (tmp_path / "aime25.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def start(*words: str, fields: dict[str, object] | None = None, **given: object) -> int:
        c = small_run.configured("tiny", {"evaluation.per_level": 1}, fields or {})
        said = NOTHING | {"data": str(tmp_path), "config": c} | given
        monkeypatch.setattr(evaluate, "FLAGS", SimpleNamespace(**said))
        return evaluate.main(list(words))

    return start


@pytest.fixture(scope="module")
def served(model_folder: Path) -> Iterator[str]:
    """The address of the small model."""
    tokenizer, source = ChatTokenizer(model_folder), weights.find(model_folder)
    sampler = Sampler(
        source.load(),
        source.model,
        slots=ASKED["concurrency"],
        context=ASKED["context"],
        stop_ids=tokenizer.stop_ids,
        dtype=jnp.float32,
    )
    with serving(sampler, tokenizer, context=ASKED["context"], waiting=64) as url:
        yield f"{url}/v1"


def made(folder: Path) -> list[Result]:
    return results.read(folder)


def test_greedy_is_the_same_here_and_at_a_server(
    run: Run, model_folder: Path, served: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    assert run(**ASKED, model=str(model_folder), output=str(here)) == 0
    assert run(**ASKED, endpoint=served, served_model=NAME, output=str(there)) == 0
    plays = made(here)
    assert plays == made(there)
    assert len(plays) == 6 and all(p.replies[0] and not p.failed for p in plays)
    assert len({p.prompt for p in plays}) == 6
    told = capsys.readouterr().out
    assert f"{NAME} at {served}:" in told and re.search(r"AIME-25 +6 +6 +\d", told)
    client = openai.OpenAI(base_url=served, api_key="none")
    for play, n in zip(plays[:2], range(2), strict=True):
        asked = {"role": "user", "content": prompt_of(n)}
        answer = client.chat.completions.create(
            model=NAME, messages=[asked], temperature=0, max_tokens=8
        )
        assert (answer.choices[0].message.content, answer.usage.completion_tokens) == (
            play.replies[0],
            play.tokens,
        )
    client.close()


def prompt_of(n: int) -> str:
    return (
        f"What is {n} + 4?\n\nReason step by step. The answer is a whole number from 0 to 999; "
        "write it inside \\boxed{}."
    )


def test_an_evaluation_that_stops_half_way_goes_on(
    run: Run, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done is not asked again, and the end is as if nothing had happened."""
    asked = ASKED | {"model": str(model_folder)}
    assert run(**asked, output=str(tmp_path / "whole")) == 0
    answers, ask, count = Conversations.answers, Conversations.ask, [0, 0]

    def stops(self: Conversations) -> dict:
        replies = answers(self)
        count[0] += len(replies)
        if count[0] > 3:
            raise KeyboardInterrupt
        return replies

    def counts(self: Conversations, *args: object) -> None:
        count[1] += 1
        ask(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Conversations, "answers", stops)
        with pytest.raises(KeyboardInterrupt):
            run(**asked, output=str(tmp_path / "half"))
    done = (tmp_path / "half" / results.PLAYS).read_text().splitlines()
    assert 0 < len(done) < 6 and not (tmp_path / "half" / results.FILE).exists()
    monkeypatch.setattr(Conversations, "ask", counts)
    assert run(**asked, output=str(tmp_path / "half")) == 0
    assert count[1] == 6 - len(done)
    assert made(tmp_path / "half") == made(tmp_path / "whole")
    assert run(**asked, output=str(tmp_path / "half")) == 0
    assert count[1] == 6 - len(done), "nothing is left to do"
    assert run(**{**asked, "limit": 7}, output=str(tmp_path / "half")) == 0
    assert count[1] == 7 - len(done), "more items are only more items"
    with pytest.raises(UsageError, match="suites.aime25.sampling.temperature is 0.0 there and 0.5"):
        run(**{**asked, "temperature": 0.5}, output=str(tmp_path / "half"))


def test_an_endpoint_that_fails_half_way(run: Run, served: str, tmp_path: Path) -> None:
    """Failures are counted in a row; the plays that got no reply are made when it is back."""
    asked = ASKED | {"served_model": NAME, "output": str(tmp_path / "out"), "limit": 2}
    assert run(**asked, endpoint=served) == 0
    plays = tmp_path / "out" / results.PLAYS
    first, second = (json.loads(line) for line in plays.read_text().splitlines())
    lost = second | {"failed": "no reply came: cut", "speaker_failed": True, "won": False}
    plays.write_text(json.dumps(first) + "\n" + json.dumps(lost) + "\n")
    assert run(**asked, endpoint=served) == 0
    assert [json.loads(line) for line in plays.read_text().splitlines()] == [first, lost, second]
    assert not any(play.failed for play in made(tmp_path / "out"))


def test_the_held_out_suite_is_what_training_plays(
    run: Run, model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"play.max_turns": 2, "play.reply_tokens": 8, "sampling.slots": 8}
    asked = {"model": str(model_folder), "output": str(tmp_path / "out"), "fields": fields}
    assert run(**asked, limit=8) == 0
    plays = made(tmp_path / "out")
    told = capsys.readouterr().out
    assert "held-out success" in told and re.search(r"level 5 +all\n", told)
    c = small_run.configured("tiny", {"evaluation.per_level": 1}, fields)
    monkey = SimpleNamespace(**NOTHING | {"model": str(model_folder)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "FLAGS", monkey)
        with evaluate.open_model(c, [c.play.context]) as partner, Sandbox(**c.sandbox) as sandbox:
            with evaluate.open_heldout(c, Arm.PLAIN) as suite:
                items, rules = suite.instances[:8], suite.rules
            episodes = heldout.play_held_out(
                partner.speaker, sandbox, items, rules, arm=Arm.PLAIN, seed=7, seats=8
            )
    assert [play.item for play in plays] == [item.environment.id for item in items]
    assert [play.won for play in plays] == [bool(heldout.won(e)) for e in episodes]
    assert [play.replies for play in plays] == [
        tuple(turn.reply for turn in e.turns) for e in episodes
    ]
    assert [play.tokens for play in plays] == [e.tokens_sampled for e in episodes]


def test_a_model_too_short_for_a_suite(
    run: Run, model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The suite is named, skipped and counted; a prompt without room is a failed play."""
    asked = {"model": str(model_folder), "output": str(tmp_path / "out"), "suite": ["aime25"]}
    assert run(**asked) == 0
    told = capsys.readouterr().out
    assert re.search(
        r"skipped aime25: .*36864 tokens, but .* holds 640; lower --reply_tokens", told
    )
    assert "1 suite skipped" in told
    skipped = json.loads((tmp_path / "out" / results.FILE).read_text())["skipped"]
    assert [each["suite"] for each in skipped] == ["aime25"]
    few = ASKED | asked | {"context": 16, "output": str(tmp_path / "few")}
    assert run(**few) == 0
    assert {play.failed for play in made(tmp_path / "few")} == {runner.NO_ROOM}
    assert "failed plays count as lost" in capsys.readouterr().out


def test_a_model_that_shows_no_tools(
    run: Run,
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A suite that offers some is skipped, and the others are played."""
    how = Settings(sampling=Sampling(temperature=0.0), reply=8, context=64)
    tools = contextlib.nullcontext(Listed(name="tools", settings=how, all=(), tools=True))
    monkeypatch.setitem(catalog.SUITES, "tools", lambda options: tools)
    asked = ASKED | {"model": str(model_folder), "output": str(tmp_path / "out")}
    assert run(**asked | {"suite": ["tools", "aime25"], "limit": 1}) == 0
    told = capsys.readouterr().out
    assert f"skipped tools: it offers tools, which the chat template of {model_folder}" in told
    assert "1 suite skipped" in told and len(made(tmp_path / "out")) == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"suite": ["aime2"]}, "no suite is called 'aime2' .near: aime2[56].; choose from"),
        ({"endpoint": "http://x/v1", "model": "y"}, "--model and --endpoint name several models"),
        ({"workdir": "x", "model": "y"}, "--model and --workdir name several models; give one"),
        ({"suite": ["aime25"], "endpoint": "http://x/v1"}, "pass --served_model=NAME"),
        ({"suite": ["aime25"], "top_p": 1.5}, "top_p must be above 0 and at most 1"),
        ({"suite": ["aime26"]}, "items of aime26 are not in .*hf download.*math-ai/aime26"),
    ],
)
def test_mistakes(run: Run, tmp_path: Path, given: dict, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        run(output=str(tmp_path / "out"), **given)


def test_a_run_is_played_as_it_plays_itself(
    run: Run, model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A workdir stands for the mean of its weights, a model for the weights; both say so."""
    mean = weights.find(model_folder).load()
    trained = jax.tree.map(jnp.zeros_like, mean)
    workdir = make_run(tmp_path / "run", model_folder, {2: trained}, mean=mean)
    for given in ({"workdir": workdir}, {"model": workdir}, {"model": model_folder}):
        [(name, place)] = given.items()
        assert (
            run(**ASKED | {name: str(place), "output": str(tmp_path / f"{name}-{place.name}")}) == 0
        )
    told = capsys.readouterr().out
    assert f"{workdir} at iteration 2, the running mean of its weights:" in told
    assert f"{workdir} at iteration 2:" in told and f"{model_folder}:" in told
    averaged, plain = made(tmp_path / "workdir-run"), made(tmp_path / "model-run")
    assert averaged == made(tmp_path / f"model-{model_folder.name}") != plain


def test_several_hosts_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"COORDINATOR_ADDRESS": "10.0.0.1:1234", "NUM_PROCESSES": "2", "PROCESS_ID": "1"}
    for name, value in named.items():
        monkeypatch.setenv(f"JAX_{name}", value)
    with pytest.raises(UsageError, match="runs on one host, and JAX's variables say 2; unset"):
        run(suite=["aime25"])


def test_comparing_from_the_command_line(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, won in (("a", False), ("b", True)):
        plays = [Result(suite="s", item="i", group="G", play=0, won=won, score=float(won))]
        (tmp_path / name).mkdir()
        results.write(tmp_path / name, {}, plays, [])
    a, b = str(tmp_path / "a" / "results.json"), str(tmp_path / "b")
    assert run("compare", a, b) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:5] == "G 1 0.0% 100.0% +100.0".split()
    assert run("compare", a, b, csv=True) == 0
    assert capsys.readouterr().out.startswith("column,items,a,b,gain,low,high\nG,1,0.000000,1.0")
    for words, told in ((("compare", a), "takes two files"), (("run",), "unexpected argument")):
        with pytest.raises(UsageError, match=told):
            run(*words)


def test_benchmarks_during_training(model_folder: Path, tmp_path: Path) -> None:
    lines = [{"problem": f"What is {n} + 4?", "answer": str(n + 4)} for n in range(30)]
    (tmp_path / "aime25.json").write_text(json.dumps(lines))
    fields = {
        "evaluation.suites": ("aime25",),
        "evaluation.limit": 3,
        "evaluation.k": 2,
        "evaluation.reply_tokens": 4,
        "evaluation.data": str(tmp_path),
        "sampling.slots": 3,
    }
    c = small_run.configured("tiny", fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "FLAGS", SimpleNamespace(**NOTHING | {"model": str(model_folder)}))
        with evaluate.open_model(c, [320]) as partner:
            assert in_loop.evaluate(small_run.configured("tiny"), partner.speaker, tmp_path) == {}
            folder = tmp_path / "evaluation" / "000020"
            measured = in_loop.evaluate(c, partner.speaker, folder)
            whole = made(folder)
            halves: list[int] = []

            def divide(keys: list, play: Callable, kind: object) -> list[Result]:
                """As two hosts do, who tell one another what they made."""
                parts = [msgspec.msgpack.encode(play(keys[k::2])) for k in (0, 1)]
                told = [iter(msgspec.msgpack.decode(part, type=list[kind])) for part in parts]
                halves.append(len(keys))
                return [next(told[n % 2]) for n in range(len(keys))]

            assert in_loop.evaluate(c, partner.speaker, folder, divide) == measured
            assert made(folder) == whole and halves == [6]
            c.evaluation.reply_tokens = 320
            with pytest.raises(UsageError, match="take up to 320 tokens, but.*holds 320; lower"):
                in_loop.evaluate(c, partner.speaker, folder)
    assert [metrics.describe(name).unit for name in measured] == ["share", "plays"]
    assert measured["evaluation/suite/AIME-25/failed"] == 0
    plays = made(folder)
    assert [(p.item, p.play) for p in plays] == [(str(n), k) for n in range(3) for k in (0, 1)]
    assert all(play.tokens <= 4 for play in plays)
