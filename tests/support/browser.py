"""A real headless browser, driven over a pipe by the DevTools protocol: no driver and no dependency."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_WAIT_S = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--window-size=1280,1000",
    "--remote-debugging-pipe",
)


def find_browser() -> str | None:
    """A Chromium on this machine, if any."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. Messages, errors and requests of a page are recorded.

    Args:
        program: the browser.
        folder: for its profile.
    """

    def __init__(self, program: str, folder: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        shell = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, program, *_FLAGS, f"--user-data-dir={folder}"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out, self._rest, self._count = ours_in, ours_out, b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **params: Any) -> Any:
        """Execute one command and return its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._count:
                assert "error" not in found, (method, found)
                return found["result"]
            self.events.append(found)

    def open(self, path: Path) -> None:
        """Show a file; records of the previous page are discarded."""
        self.events.clear()
        self.call("Page.navigate", url=path.absolute().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, x: float, y: float, to_x: float | None = None) -> None:
        """Click, or drag to another place at the same height."""
        places = [("mousePressed", x), ("mouseReleased", x if to_x is None else to_x)]
        if to_x is not None:
            places[1:1] = [("mouseMoved", (x + to_x) / 2), ("mouseMoved", to_x)]
        for kind, place in places:
            self.call("Input.dispatchMouseEvent", type=kind, x=place, y=y, button="left", clickCount=1)

    def complaints(self) -> list[dict[str, Any]]:
        """What the page logged, threw, or requested from a network."""
        self.evaluate("0")  # pending events arrive before the answer
        requests = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        external = [event for event in requests if not event["params"]["request"]["url"].startswith(("file:", "data:"))]
        others = [event for event in requests if event["params"]["request"]["url"].startswith("file:")]
        logged = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [*external, *others[1:], *(event for event in self.events if event.get("method") in logged)]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _WAIT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            read = os.read(self._in, 1 << 16)
            assert read, "the browser ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
