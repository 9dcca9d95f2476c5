"""A headless Chromium, driven over a pipe by the Chrome DevTools Protocol (https://chromedevtools.github.io)."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")


def found() -> str:
    """The browser's path; the test is skipped where there is none."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("needs Chromium; `apt install chromium-headless-shell` installs it on Debian")
    return path


class Browser:
    """One page in one process. errors: what went to its console, or was refused."""

    def __init__(self, profile: Path) -> None:
        reads, writes = os.pipe(), os.pipe()
        line = [found(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        line += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-background-networking"]

        # Where the protocol expects them: it reads from 3 and writes to 4.
        placed = ["bash", "-c", 'exec "${@:2}" 3<&"$0" 4>&"$1"', str(reads[0]), str(writes[1])]
        with open(profile.with_suffix(".log"), "wb") as log:
            self._process = subprocess.Popen(
                [*placed, *line, "about:blank"], pass_fds=(reads[0], writes[1]), stdin=subprocess.DEVNULL, stderr=log
            )
        os.close(reads[0])
        os.close(writes[1])
        self._to, self._from = os.fdopen(reads[1], "wb", 0), os.fdopen(writes[0], "rb")
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.errors: list[str] = []
        self._seen: set[str] = set()
        (target,) = [each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End it."""
        self._to.close()
        self._process.kill()
        self._process.wait()
        self._from.close()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, path: Path) -> None:
        """Open a file, and wait until it is loaded."""
        self._seen.clear()
        self.call("Page.navigate", url=path.as_uri())
        while "Page.loadEventFired" not in self._seen:
            self._read()

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key, pressed and let go of."""
        for kind in ("keyDown", "keyUp"):
            given = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **given)

    def picture(self, path: Path) -> None:
        """Keep what is seen as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _read(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._from.read(1)) != b"\0":
            assert byte, "the browser has ended"
            data += byte
        message: dict[str, Any] = json.loads(data)
        method = message.get("method", "")
        self._seen.add(method)
        if method in {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Network.loadingFailed"}:
            self.errors.append(json.dumps(message["params"]))
        if method == "Network.requestWillBeSent" and not message["params"]["request"]["url"].startswith("file:"):
            self.errors.append(message["params"]["request"]["url"])
        return message
