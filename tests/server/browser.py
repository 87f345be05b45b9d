"""Headless Chromium, driven over the pipe of its DevTools protocol."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

EXECUTABLES = (
    "chromium-headless-shell",  # opens a page in a third of the time: it has no windows
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
FLAGS = (
    "--headless",
    "--no-sandbox",  # it sees no page but ours
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--remote-debugging-pipe",
)
MAY = ["clipboardSanitizedWrite"]
PATIENCE_S = 30.0
_POLL_S = 0.02
_BEHIND_THE_PIPE = 10
"""Descriptors from here on cannot be the two that Chromium reads and writes, 3 and 4."""
_LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Sends commands and keeps the events that come meanwhile. For one thread."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to_browser = to_browser
        self._from_browser = from_browser
        self._unread = b""
        self._num_sent = 0
        self._listeners: dict[str, Callable[[dict[str, Any]], None]] = {}

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """The result of a command; its failure is a `RuntimeError`."""
        number = self.send(method, session, **params)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            message = self._read(deadline)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return dict(message["result"])

    def send(self, method: str, session: str | None = None, **params: Any) -> int:
        """Send a command whose result nobody waits for."""
        self._num_sent += 1
        message: dict[str, Any] = {"id": self._num_sent, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        return self._num_sent

    def open(self, **options: Any) -> Tab:
        """An empty tab, as `Tab` takes options, that shares nothing with any other."""
        own = self.call("Target.createBrowserContext")["browserContextId"]
        # As windows allow it to what is clicked on.
        self.call("Browser.grantPermissions", permissions=MAY, browserContextId=own)
        target = self.call("Target.createTarget", url="about:blank", browserContextId=own)
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        return Tab(self, attached["sessionId"], own, **options)

    def listen(self, session: str, listener: Callable[[dict[str, Any]], None]) -> None:
        """Events of `session` go to `listener`."""
        self._listeners[session] = listener

    def read_until(self, happened: Callable[[], bool]) -> None:
        """Wait for events, to the one by which something has happened."""
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            self._read(deadline)

    def _read(self, deadline: float) -> dict[str, Any]:
        """The next message. However many come, a `TimeoutError` from the deadline on."""
        while b"\0" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._from_browser], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            received = os.read(self._from_browser, 2**16)
            if not received:
                raise RuntimeError("the browser has ended")
            self._unread += received
        first, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        if "method" in message and message.get("sessionId") in self._listeners:
            self._listeners[message["sessionId"]](message)
        return message


class Tab:
    """One page: what it shows, asked of and complained about."""

    def __init__(
        self,
        browser: Browser,
        session: str,
        context: str,
        width: int = 1280,
        height: int = 800,
        key: str = "",
    ) -> None:
        """`context`: what is the tab's alone, by the browser's name for it.

        `key`: the password for a server that asks for one; "": nobody answers.
        """
        self._browser = browser
        self._session = session
        self._context = context
        self._key = key
        self.requested: list[str] = []
        """Addresses of all requests."""
        self.problems: list[str] = []
        """Errors and warnings of the console, exceptions, what the policy blocked."""
        browser.listen(session, self._on_event)
        self._loaded: set[str] = set()
        """Documents, by the browser's names for them."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        if key:
            self.call("Fetch.enable", handleAuthRequests=True)
        self.resize(width, height)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def close(self) -> None:
        """End the tab and free its memory."""
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, **features: str) -> None:
        """Media features such as `prefers_color_scheme="dark"`."""
        named = [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()
        ]
        self.call("Emulation.setEmulatedMedia", features=named)

    def go(self, url: str) -> None:
        """Open `url` and wait until it has loaded, unless it is a place in what is there."""
        begun = self.call("Page.navigate", url=url)
        assert "errorText" not in begun, f"{url}: {begun['errorText']}"
        document = begun.get("loaderId")
        if document is not None:
            self._browser.read_until(lambda: document in self._loaded)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression, or its promise, comes to."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Ask until the expression is true; a `TimeoutError` when it does not become so."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := self.value(expression)):
            if time.monotonic() > deadline:
                shown = self.value("document.body.innerText")
                raise TimeoutError(f"{expression} is not true of\n{shown}\n{self.problems}")
            time.sleep(_POLL_S)
        return found

    def text(self, selector: str) -> str:
        """The visible text of the last element that fits."""
        return str(
            self.value(f"[...document.querySelectorAll({selector!r})].at(-1)?.innerText.trim()")
        )

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of the last element that fits."""
        found = f"[...document.querySelectorAll({selector!r})].at(-1)"
        self.value(f"{found}.scrollIntoView({{block: 'nearest'}})")
        box = self.value(f"{found}.getBoundingClientRect().toJSON()")
        assert box["width"], f"{selector} is not shown"
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def write(self, text: str) -> None:
        """Write where the focus is."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int, shift: bool = False) -> None:
        """A key by its name and its number, as in `KeyboardEvent.keyCode`."""
        text = {"text": "\r"} if key == "Enter" else {}
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        self.call("Input.dispatchKeyEvent", type="keyDown", **pressed, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def paste(self) -> None:
        """Put what was copied where the focus is."""
        pressed = {"key": "v", "modifiers": 2, "commands": ["paste"]}
        self.call("Input.dispatchKeyEvent", type="rawKeyDown", **pressed)

    def _on_event(self, event: dict[str, Any]) -> None:
        method, params = event["method"], event["params"]
        if method == "Page.lifecycleEvent" and params["name"] == "load":
            self._loaded.add(params["loaderId"])
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Fetch.requestPaused":
            self._send("Fetch.continueRequest", requestId=params["requestId"])
        elif method == "Fetch.authRequired":
            answer = {"response": "ProvideCredentials", "username": "me", "password": self._key}
            self._send(
                "Fetch.continueWithAuth",
                requestId=params["requestId"],
                authChallengeResponse=answer,
            )

    def _send(self, method: str, **params: Any) -> None:
        self._browser.send(method, self._session, **params)


def executable() -> str:
    """The path of Chromium. Raises `FileNotFoundError` where there is none."""
    for name in EXECUTABLES:
        if path := shutil.which(name):
            return path
    raise FileNotFoundError("Chromium is not installed; `make browser` installs it")


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser with an empty profile, in a process of its own."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    passed = [fcntl.fcntl(end, fcntl.F_DUPFD, _BEHIND_THE_PIPE) for end in (theirs_in, theirs_out)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [sys.executable, "-c", _LAUNCH, *map(str, passed), executable(), *FLAGS]
        process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}"],
            pass_fds=passed,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (theirs_in, theirs_out, *passed):
            os.close(end)
        browser = Browser(ours_out, ours_in)
        try:
            yield browser
        finally:
            browser.send("Browser.close")
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(ours_out)
            os.close(ours_in)
