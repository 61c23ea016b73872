"""A headless Chromium that tests drive: DevTools' protocol over two pipes, no package needed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
SECONDS = 60.0  # to wait for anything


class Page:
    """One tab. `messages` holds what the page's console and policy complained of."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._number, self._read = 0, b""
        self._session: str | None = None
        self.messages: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def close(self) -> None:
        """Ask the browser to end."""
        self._session = None
        self.call("Browser.close")

    def _next(self) -> dict[str, Any]:
        """The next message of the browser."""
        end = time.monotonic() + SECONDS
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._from], [], [], max(end - time.monotonic(), 0))
            data = os.read(self._from, 1 << 20) if ready else b""
            assert data, "the browser says nothing"
            self._read += data
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.messages.append(str(event["params"]["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if event["params"]["type"] == "error":
                self.messages.append(str(event["params"]["args"]))
            case "Log.entryAdded":
                self.messages.append(event["params"]["entry"]["text"])
            case "Network.requestWillBeSent":
                url = event["params"]["request"]["url"]
                if not url.startswith(("file:", "data:", "blob:")):
                    self.messages.append(f"asked for {url}")

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a report and wait until its scripts are done and its charts are drawn."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=path.absolute().as_uri() + fragment)
        self.wait("document.documentElement?.dataset.ready === 'true'")
        self.draw()

    def draw(self) -> None:
        """Wait until two frames are drawn: in the first, charts learn their width."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + SECONDS
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"never came true: {condition}"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def shape(self, width: int, height: int, *, dark: bool = False, scale: float = 1.0) -> None:
        """Size of the window in CSS pixels, and the colours that the reader prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """What the window shows, as PNG or WebP, which is smaller."""
        self.draw()
        form = {".png": {"format": "png"}, ".webp": {"format": "webp", "quality": 85}}
        answer = self.call("Page.captureScreenshot", **form[path.suffix])
        path.write_bytes(base64.b64decode(answer["data"]))


def installed() -> str | None:
    """The path of a browser, where there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def browse(program: str, profile: Path) -> Iterator[Page]:
    """A browser with one tab, which ends with the block. `profile` is a folder of its own."""
    read_there, write_here = os.pipe()
    read_here, write_there = os.pipe()
    # Bash moves the pipes to the numbers 3 and 4, where the browser looks for them.
    command = f'exec "$@" 3<&{read_there} 4>&{write_there}'
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
    process = subprocess.Popen(
        ["bash", "-c", command, "bash", program, *options, f"--user-data-dir={profile}"],
        pass_fds=(read_there, write_there),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in (read_there, write_there):
        os.close(end)
    try:
        page = Page(write_here, read_here)
        yield page
        page.close()
        process.wait(SECONDS)
    finally:
        process.kill()
        process.wait()
        for end in (write_here, read_here):
            os.close(end)
