"""Serve a model over HTTP, in the form of OpenAI's interface.

    python -m spade_jax.serve --model=PATH [--port=8000] [--slots=16] [--context=4096]

GET /health and /v1/models, POST /v1/chat/completions and /v1/completions. Only programs of this
machine reach it, unless --host says otherwise; with --api_key_file, or SPADE_API_KEY, they need
the key. SIGTERM and Ctrl-C let running requests finish for --grace seconds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import sys
from pathlib import Path

from absl import flags

from spade_jax.program import run_program
from spade_jax.types import UsageError

FLAGS = flags.FLAGS
KEY_VARIABLE = "SPADE_API_KEY"
DEFAULT_CONTEXT = 4096
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def read_key(path: str) -> str | None:
    """The key from the file, else from the environment, else None."""
    if not path:
        place, key = KEY_VARIABLE, os.environ.get(KEY_VARIABLE, "")
        if not key:
            return None
    else:
        place = f"--api_key_file={path}"
        try:
            key = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{place} cannot be read ({error}); check it") from None
    if not key.isascii() or not key.isprintable() or len(key.split()) != 1:
        raise UsageError(f"{place} must hold the key, one word of ASCII, and nothing else")
    return key


def bind(host: str, port: int) -> socket.socket:
    """A socket at that address; port 0 takes a free one."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(socket.socket(family, kind))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            stack.pop_all()
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
        raise UsageError(
            f"{host} port {port} cannot be used ({problem}); choose another --port or --host"
        ) from None
    return sock


def address_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def main() -> int:
    if not all(map(importlib.util.find_spec, ("starlette", "uvicorn"))):
        raise UsageError("serving needs packages; run pip install -e '.[serve]' in the repository")
    import jax.numpy as jnp  # here, so that --help needs no JAX

    from spade_jax import weights
    from spade_jax.policy.sampler import Sampler
    from spade_jax.policy.tokenizer import ChatTokenizer
    from spade_jax.serve.app import Server, Service, make_app
    from spade_jax.serve.engine import Engine

    key = read_key(FLAGS.api_key_file)
    sock = bind(FLAGS.host, FLAGS.port)
    if key is None and FLAGS.host not in LOOPBACK:
        print(f"warning: {FLAGS.host} may be reached by others, and no key is set", file=sys.stderr)
    source = weights.find(FLAGS.model)
    c, tokenizer = source.model, ChatTokenizer(source.folder)
    context = FLAGS.context or min(DEFAULT_CONTEXT, c.max_positions)
    if context > c.max_positions:
        raise UsageError(
            f"--context={context} is over the model's {c.max_positions} positions; lower it"
        )
    sampler = Sampler(
        source.load(dtype=FLAGS.dtype),
        c,
        slots=FLAGS.slots,
        context=context,
        stop_ids=tokenizer.stop_ids,
        dtype=jnp.dtype(FLAGS.dtype),
    )
    name = FLAGS.name or Path(FLAGS.model or source.folder).resolve().name

    def ready() -> None:
        print(f"{name} is served at {address_of(sock)}/v1", flush=True)

    def failed() -> None:
        server.should_exit = True

    with Engine(sampler, tokenizer, waiting=FLAGS.queue, failed=failed) as engine:
        service = Service(
            engine,
            tokenizer,
            name=name,
            vocab=c.vocab,
            context=context,
            max_body=FLAGS.max_body_kb << 10,
        )
        server = Server(make_app(service, key), engine, grace=FLAGS.grace, ready=ready)
        # uvicorn has handlers of its own, and raises the signal again for those it found.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        server.run(sockets=[sock])
        return 1 if engine.broken else 0


if __name__ == "__main__":
    flags.DEFINE_string(
        "model", "", "Model folder or run, like model.path; '' is the bundled policy."
    )
    flags.DEFINE_string("name", "", "Name clients ask for; '' is the path's last part.")
    flags.DEFINE_string("host", "127.0.0.1", "Address to listen at.")
    flags.DEFINE_integer(
        "port", 8000, "Port; 0 takes a free one.", lower_bound=0, upper_bound=65535
    )
    flags.DEFINE_integer("slots", 16, "Replies decoded at once.", lower_bound=1)
    flags.DEFINE_integer("queue", 64, "Replies that may wait for a slot.", lower_bound=0)
    flags.DEFINE_integer(
        "context",
        0,
        f"Tokens of a prompt with its reply; 0: the model's, at most {DEFAULT_CONTEXT}.",
        lower_bound=0,
    )
    flags.DEFINE_enum(
        "dtype", "float32", ["float32", "bfloat16"], "Of weights, activations and cache."
    )
    flags.DEFINE_integer("max_body_kb", 4096, "Largest body of a request.", lower_bound=1)
    flags.DEFINE_integer("grace", 30, "Seconds running requests have at the end.", lower_bound=0)
    flags.DEFINE_string("api_key_file", "", f"File with the API key; else {KEY_VARIABLE} is it.")
    run_program(main)
