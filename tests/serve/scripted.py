"""A sampler that says what a script says, and the server over it, in this process."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from spade_jax.policy import hub
from spade_jax.policy.sampler import Ids, Sampler
from spade_jax.policy.sampling import Sampling
from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.serve.__main__ import bind
from spade_jax.serve.app import Server, Service, make_app
from spade_jax.serve.engine import Engine
from spade_jax.types import StopReason

NAME = "scripted"
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
Script = Callable[[str], str]


def tool_tokenizer(folder: Path) -> ChatTokenizer:
    """The bundled tokenizer with a template that shows tools."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((hub.BUNDLED / name).read_bytes())
    (folder / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    return ChatTokenizer(folder)


class ScriptedSampler:
    """Replies by a script from the prompt's text; a token of probability one half, always.

    Every block waits for `gate`, and takes `seconds`. `most` is how many slots were open at once,
    `asked` what was submitted.
    """

    def __init__(
        self,
        script: Script,
        tokenizer: ChatTokenizer,
        *,
        slots: int = 2,
        block: int = 4,
        seconds: float = 0.0,
    ) -> None:
        self._script, self._tokenizer, self._block = script, tokenizer, block
        self._slots, self._seconds = slots, seconds
        self._open: dict[int, tuple[tuple[int, ...], int] | None] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.most = 0
        self.asked: list[tuple[tuple[int, ...], Sampling]] = []

    @property
    def free(self) -> int:
        return self._slots - len(self._open)

    def open(self) -> int:
        slot = min(set(range(self._slots)) - self._open.keys())
        self._open[slot] = None
        self.most = max(self.most, len(self._open))
        return slot

    def close(self, slot: int) -> None:
        del self._open[slot]

    def submit(
        self,
        slot: int,
        new_ids: tuple[int, ...],
        *,
        stream: tuple[int, ...],
        budget: int,
        sampling: Sampling,
    ) -> None:
        text = self._script(self._tokenizer.decode(new_ids))
        ids = (*self._tokenizer.encode(text), self._tokenizer.end_id)[:budget]
        self._open[slot] = (ids, 0)
        self.asked.append((stream, sampling))

    def sampled(self, slot: int) -> tuple[int, ...]:
        ids, n = self._open[slot]
        return ids[:n]

    def advance(self) -> dict[int, Ids]:
        self.gate.wait()
        time.sleep(self._seconds)
        done = {}
        for slot, (ids, n) in self._open.items():
            self._open[slot] = (ids, n + self._block)
            if n + self._block >= len(ids):
                logp = (-0.6931471805599453,) * len(ids)
                stopped = ids[-1] == self._tokenizer.end_id
                stop = StopReason.STOP if stopped else StopReason.LENGTH
                done[slot] = Ids(ids=ids, logp=logp, behaviour=logp, stop=stop)
        return done


@contextlib.contextmanager
def serving(
    sampler: ScriptedSampler | Sampler,
    tokenizer: ChatTokenizer,
    *,
    key: str | None = None,
    waiting: int = 8,
    context: int = 256,
    max_body: int = 1 << 16,
) -> Iterator[str]:
    """The address of a server over that sampler."""
    ready = threading.Event()
    with Engine(sampler, tokenizer, waiting=waiting) as engine:
        service = Service(
            engine, tokenizer, name=NAME, vocab=1024, context=context, max_body=max_body
        )
        server = Server(make_app(service, key), engine, grace=1, ready=ready.set)
        sock = bind("127.0.0.1", 0)
        thread = threading.Thread(target=server.run, args=([sock],))
        thread.start()
        ready.wait()
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            if isinstance(sampler, ScriptedSampler):
                sampler.gate.set()
            server.should_exit = True
            thread.join()
