"""The server as a process, with the bundled policy: openai's client, our own, signals."""

import concurrent.futures
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from spade_jax.policy.conversation import Budget
from spade_jax.policy.endpoint import Endpoint, Settings
from spade_jax.serve.__main__ import KEY_VARIABLE, bind, read_key
from spade_jax.types import Generation, Message, StopReason, UsageError

ROOT = Path(__file__).parents[2]
KEY = "sk-of-this-test"
SIZES = ("--slots=4", "--context=384")
ASKED = [  # of like lengths, so that the sampler has few shapes to compile for
    "What is 3 + 4? Put the answer into \\boxed{}.",
    "Sort 5 1 3 2 by size and put it into \\boxed{}.",
    "Which number is missing in 1 2 4 5? Put it into \\boxed{}.",
    "Spell the word tree backwards and put it into \\boxed{}.",
    "Find the number between 1 and 10 and put it into \\boxed{}.",
    "How many letters has the word lock? Put it into \\boxed{}.",
]


@contextlib.contextmanager
def process(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server with the key of these tests, and its address; killed if it is still there."""
    running = subprocess.Popen(
        [sys.executable, "-m", "spade_jax.serve", "--port=0", *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), KEY_VARIABLE: KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with running:
        try:
            line = running.stdout.readline()
            assert line.startswith("tiny is served at http://127.0.0.1:"), running.stderr.read()
            yield running, line.split()[-1]
        finally:
            running.kill()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with process(*SIZES) as (running, url):
        yield url
        running.send_signal(signal.SIGINT)
        assert running.communicate(timeout=60) == ("", "")
        assert running.returncode == 0


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=address, api_key=KEY, max_retries=0) as client:
        yield client


def chat(asked: str = ASKED[0], **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": asked}]
    return {"model": "tiny", "messages": said, "max_tokens": 24, **more}


def test_a_stream_is_the_whole_reply_of_its_seed(client: openai.OpenAI) -> None:
    create = client.chat.completions.create
    whole = create(**chat(seed=5, n=2, logprobs=True))
    pieces = list(create(**chat(seed=5, n=2, logprobs=True, stream=True)))
    for i, choice in enumerate(whole.choices):
        mine = [piece.choices[0] for piece in pieces if piece.choices[0].index == i]
        assert "".join(piece.delta.content or "" for piece in mine) == choice.message.content
        assert mine[-1].finish_reason == choice.finish_reason
        assert mine[-1].logprobs.content == choice.logprobs.content
        tokens = choice.logprobs.content
        assert "".join(token.token for token in tokens) == choice.message.content
        assert all(token.logprob <= 0 for token in tokens)
    alone = create(**chat(seed=5)).choices[0].message.content
    assert alone == whole.choices[0].message.content
    others = {
        create(**chat(seed=seed, temperature=2)).choices[0].message.content for seed in (6, 7)
    }
    assert len(others) == 2


def test_company_changes_no_reply(client: openai.OpenAI) -> None:
    """More requests than slots, greedy and not, one after the other and all at once."""

    def text(i: int) -> str:
        asked = chat(ASKED[i], seed=i, temperature=i % 2)
        return client.chat.completions.create(**asked).choices[0].message.content

    alone = [text(i) for i in range(len(ASKED))]
    with concurrent.futures.ThreadPoolExecutor(len(ASKED)) as pool:
        assert list(pool.map(text, range(len(ASKED)))) == alone
    assert len(set(alone)) > 1


def test_stop_strings_and_completions(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(**chat(temperature=0)).choices[0].message.content
    assert "{" in reply  # of \boxed{}
    cut = client.chat.completions.create(**chat(temperature=0, stop="{")).choices[0]
    assert (cut.message.content, cut.finish_reason) == (reply.split("{")[0], "stop")
    prompt = "class SumEnv:\n    def reset(self, seed=None):\n        self.answer = "
    raw = client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=6)
    assert raw.choices[0].text and raw.usage.completion_tokens <= 6


def test_the_key_is_needed(address: str) -> None:
    with openai.OpenAI(base_url=address, api_key="another", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError, match="the API key is missing or wrong"):
            client.models.list()


def test_our_client_plays_with_our_server(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_TEST", KEY)
    settings = Settings(url=address, model="tiny", key_variable="KEY_OF_TEST", retries=0)
    budget = Budget(reply=16, context=384)

    def play() -> list[list[str]]:
        """Six dialogues of two turns, each answered as soon as its reply is there."""
        dialogues = endpoint.converse()
        texts: list[list[str]] = [[] for _ in ASKED]
        for i, asked in enumerate(ASKED):
            assert dialogues.open() == i
            dialogues.ask(i, [Message(role="user", content=asked)], (i, 0), budget)
        while min(map(len, texts)) < 2:
            for i, reply in dialogues.answers().items():
                assert isinstance(reply, Generation) and reply.stop in StopReason
                texts[i].append(reply.text)
                if len(texts[i]) < 2:
                    dialogues.ask(i, [Message(role="user", content="Wrong.")], (i, 1), budget)
        dialogues.retire(range(len(ASKED)))
        return texts

    with Endpoint(settings) as endpoint:
        first = play()
        tally = endpoint.tally
        assert (tally.requests, tally.replies, tally.retries) == (12, 12, 0) and not tally.failures
        assert 12 < endpoint.tokens_sampled <= 12 * 16 < endpoint.tokens_read
        assert play() == first  # streams name what is drawn


def test_what_runs_is_finished_at_a_signal() -> None:
    with process(*SIZES, "--grace=60") as (running, url):
        with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
            pieces = client.chat.completions.create(**chat(stream=True, n=6))
            next(pieces)  # two of the choices still wait for a slot
            running.terminate()
            reasons = [p.choices[0].finish_reason for p in pieces if p.choices[0].finish_reason]
            assert len(reasons) == 6
            assert running.communicate(timeout=60) == ("", "")
            assert running.returncode == 0
            with pytest.raises(openai.APIConnectionError):
                client.models.list()


def test_wrong_usage_is_one_line_and_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spade_jax.serve", "--port=0", "--context=5000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    sentence = "error: --context=5000 is over the model's 1024 positions; lower it\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", sentence)


def test_ports_and_hosts_that_cannot_be_used() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1 port {port} cannot be used .address al"):
            bind("127.0.0.1", port)
    with pytest.raises(UsageError, match="no.such.host.invalid port 80 cannot be used"):
        bind("no.such.host.invalid", 80)
    if socket.has_ipv6:
        with bind("::1", 0) as six:
            assert six.family is socket.AF_INET6


def test_where_the_key_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert read_key("") is None
    monkeypatch.setenv(KEY_VARIABLE, "from-there")
    assert read_key("") == "from-there"
    file = tmp_path / "key"
    file.write_text(" sesame\n")
    assert read_key(str(file)) == "sesame"
    for text in ("", "two words", "schlüssel"):
        file.write_text(text)
        with pytest.raises(UsageError, match="must hold the key, one word of ASCII"):
            read_key(str(file))
    with pytest.raises(UsageError, match="cannot be read"):
        read_key(str(tmp_path / "absent"))
