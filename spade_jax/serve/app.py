"""HTTP: routes, limits, the key, streams."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from spade_jax.policy.tokenizer import ChatTokenizer
from spade_jax.serve.engine import Broken, Engine, Full, Job, Reply
from spade_jax.serve.replies import Form
from spade_jax.serve.requests import ChatRequest, CompletionRequest, Refusal, parse
from spade_jax.types import StopReason, UsageError

BODY_SECONDS = 30.0  # in which a body must have come
CONNECTIONS = 1000  # at once; more are answered 503
IDLE_SECONDS = 60  # that a connection without a request is kept
CUT_SECONDS = 2  # in which cut requests are told so
RETRY_SECONDS = 1  # after which a client may try again
T = TypeVar("T")
Asked = ChatRequest | CompletionRequest
Events = asyncio.Queue[tuple[int, "str | Reply | Broken"]]


class Service:
    """The model as HTTP sees it."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: ChatTokenizer,
        *,
        name: str,
        vocab: int,
        context: int,
        max_body: int,
    ) -> None:
        self.engine, self.tokenizer, self.name = engine, tokenizer, name
        self.vocab, self.context, self.max_body = vocab, context, max_body
        self._opened = tokenizer.generation((), (), StopReason.STOP).text

    async def health(self, request: Request) -> Response:
        running, waiting = self.engine.load
        status = 200 if self.engine.alive else 503
        told = {"status": "ok" if self.engine.alive else "failed", "slots": self.engine.slots}
        return _json(told | {"running": running, "waiting": waiting}, status)

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._know(request.path_params["name"])
        return _json(self._model())

    async def chat(self, request: Request) -> Response:
        asked = parse(await self._body(request), ChatRequest)
        self._know(asked.model)
        ids = await asyncio.to_thread(self._render, asked)
        form = Form(
            self.name,
            True,
            self.tokenizer,
            logprobs=asked.wants_logprobs,
            tools=asked.offered(),
            several_calls=asked.parallel_tool_calls is not False,
        )
        return await self._answer(request, asked, [ids], form)

    async def completions(self, request: Request) -> Response:
        asked = parse(await self._body(request), CompletionRequest)
        self._know(asked.model)
        prompts = [await asyncio.to_thread(self._encode, each) for each in asked.prompts()]
        form = Form(self.name, False, self.tokenizer, logprobs=asked.wants_logprobs)
        return await self._answer(request, asked, prompts, form)

    def _model(self) -> dict[str, Any]:
        told = {"id": self.name, "object": "model", "created": 0, "owned_by": "spade_jax"}
        return told | {"max_model_len": self.context}

    def _know(self, name: str) -> None:
        if name != self.name:
            message = f"there is no model {name!r} here; ask for {self.name!r}"
            raise Refusal(404, message, param="model", code="model_not_found")

    async def _body(self, request: Request) -> bytes:
        """The body, if it is JSON, not too large, and there in time."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # which a page in a browser cannot send across origins
            raise Refusal(415, "the body must have the content-type application/json")
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self.max_body:
                        raise Refusal(
                            413, f"the body is larger than the {self.max_body:,} bytes allowed"
                        )
        except TimeoutError:
            raise Refusal(408, f"the body did not come within {BODY_SECONDS:g} seconds") from None
        return bytes(body)

    def _render(self, asked: ChatRequest) -> tuple[int, ...]:
        try:
            return self.tokenizer.prompt(asked.said(), asked.offered())
        except (UsageError, RecursionError, UnicodeError) as error:
            raise Refusal(400, f"the messages cannot be put in the model's form: {error}") from None

    def _encode(self, prompt: str | list[int]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            try:
                return self.tokenizer.encode(prompt)
            except UnicodeError as error:
                raise Refusal(400, f"prompt cannot be encoded: {error}", param="prompt") from None
        for i in prompt:
            if not 0 <= i < self.vocab:
                raise Refusal(400, f"prompt holds {i}, which is no id below {self.vocab}")
        return tuple(prompt)

    def _jobs(
        self, asked: Asked, prompts: Sequence[tuple[int, ...]], form: Form, events: Events
    ) -> list[Job]:
        """One job for each choice of each prompt, in the order of their indices."""
        loop, stream = asyncio.get_running_loop(), asked.stream_of()
        jobs: list[Job] = []
        for ids in prompts:
            room = self.context - len(ids)
            if not ids:
                raise Refusal(400, "prompt is empty", param="prompt")
            if room < 1:
                message = (
                    f"the prompt has {len(ids)} tokens, which leaves no room in {self.context}"
                )
                raise Refusal(400, message, code="context_length_exceeded")
            for _ in range(asked.choices):
                i = len(jobs)
                jobs.append(
                    Job(
                        ids,
                        stream=(*stream, i),
                        budget=min(asked.budget or room, room),
                        sampling=asked.sampling(),
                        emit=_sender(loop, events, i),
                        opened=self._opened if form.chat else "",
                        stops=asked.stops,
                        shows=bool(asked.stream),
                        calls=bool(form.tools),
                        logprobs=form.logprobs,
                    )
                )
        return jobs

    async def _answer(
        self, request: Request, asked: Asked, prompts: Sequence[tuple[int, ...]], form: Form
    ) -> Response:
        events: Events = asyncio.Queue()
        jobs = self._jobs(asked, prompts, form, events)
        read = sum(map(len, prompts))
        if len(jobs) > self.engine.capacity:
            raise Refusal(400, f"{len(jobs)} replies are asked for, over {self.engine.capacity}")
        try:
            self.engine.submit(jobs)
        except Full:
            raise Refusal(429, "the queue is full; try again later", code="queue_full") from None
        except Broken:
            raise _broken() from None
        if asked.stream:
            lines = _lines(form, events, len(jobs), read if asked.wants_usage else None)
            return _Stream(lines, lambda: self.engine.cancel(jobs))
        try:
            replies = await _while_connected(request, _collect(events, len(jobs)))
        finally:
            self.engine.cancel(jobs)
        return _json(form.whole(replies, read))


class _Stream(StreamingResponse):
    """Server-sent events; `release` is called when they end, however they do."""

    def __init__(self, lines: AsyncIterator[bytes], release: Callable[[], None]) -> None:
        super().__init__(
            lines, media_type="text/event-stream", headers={"cache-control": "no-cache"}
        )
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


async def _lines(
    form: Form, events: Events, choices: int, prompt_tokens: int | None
) -> AsyncIterator[bytes]:
    """The events of a stream; the last tells the usage if `prompt_tokens` is given."""
    for i in range(choices):
        if opening := form.opening(i):
            yield _line(opening)
    replies: list[Reply] = []
    while len(replies) < choices:
        i, event = await events.get()
        if isinstance(event, Broken):
            yield _line(_broken().error)
            return
        if isinstance(event, str):
            yield _line(form.piece(i, event))
            continue
        replies.append(event)
        for piece in form.ending(i, event):
            yield _line(piece)
    if prompt_tokens is not None:
        yield _line(form.tally(replies, prompt_tokens))
    yield b"data: [DONE]\n\n"


async def _collect(events: Events, choices: int) -> list[Reply]:
    """All replies, in the order of their indices."""
    replies: dict[int, Reply] = {}
    while len(replies) < choices:
        i, event = await events.get()
        if isinstance(event, Broken):
            raise _broken()
        if isinstance(event, Reply):
            replies[i] = event
    return [replies[i] for i in range(choices)]


async def _while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`; ClientDisconnect, and the work cancelled, if the client leaves."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(leave())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


class _Key:
    """Lets only requests with the key pass."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, b"Bearer " + key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]).get(b"authorization", b"")
        if hmac.compare_digest(given, self._key):
            await self._app(scope, receive, send)
            return
        refusal = Refusal(401, "the API key is missing or wrong", code="invalid_api_key")
        response = _refuse(refusal, {"www-authenticate": "Bearer"})
        await response(scope, receive, send)


def make_app(service: Service, key: str | None) -> Starlette:
    """The application; everything under /v1 needs the key, where there is one."""
    routes = [
        Route("/models", service.models),
        Route("/models/{name:path}", service.model),
        Route("/chat/completions", service.chat, methods=["POST"]),
        Route("/completions", service.completions, methods=["POST"]),
    ]
    guard = [Middleware(_Key, key=key)] if key else []
    return Starlette(
        routes=[Route("/health", service.health), Mount("/v1", routes=routes, middleware=guard)],
        exception_handlers={
            Refusal: lambda request, error: _refuse(error),
            HTTPException: _plain,
            ClientDisconnect: lambda request, error: Response(status_code=499),
            500: _failed,
        },
    )


class Server(uvicorn.Server):
    """Runs the application until SIGTERM or SIGINT; then requests have `grace` seconds to finish.

    After those the engine stops, and what it worked on is told so. `ready` is called when requests
    are taken.
    """

    def __init__(
        self, app: Starlette, engine: Engine, *, grace: int, ready: Callable[[], None]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                limit_concurrency=CONNECTIONS,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=grace + CUT_SECONDS,
            )
        )
        self._engine, self._grace, self._ready = engine, grace, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(self._grace, self._engine.stop)
        await super().shutdown(sockets)


def _broken() -> Refusal:
    return Refusal(503, "the server stopped while it worked on this request; try again later")


def _failed(request: Request, error: Exception) -> Response:
    return _refuse(Refusal(500, "the server failed on this request; its log says how"))


def _plain(request: Request, error: HTTPException) -> Response:
    """Unknown paths and methods."""
    message = f"{request.method} {request.url.path}: {error.detail.lower()}"
    return _refuse(Refusal(error.status_code, message), error.headers)


def _refuse(refusal: Refusal, headers: Any = None) -> Response:
    headers = dict(headers or {})
    if refusal.status in (429, 503):
        headers["retry-after"] = str(RETRY_SECONDS)
    return _json(refusal.error, refusal.status, headers)


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = msgspec.json.encode(value)
    return Response(body, status, headers=headers, media_type="application/json")


def _line(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _sender(
    loop: asyncio.AbstractEventLoop, events: Events, index: int
) -> Callable[[str | Reply | Broken], None]:
    """A job's `emit`: to the events of its request, on the loop that serves it."""

    def send(event: str | Reply | Broken) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(events.put_nowait, (index, event))

    return send
