"""Pictures of the pages, taken by headless Chromium."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pictures.tables import DOCS
from server.browser import Browser, Tab

_QUESTIONS = (
    "Why do pagodas have so many roofs? Two sentences.",
    "And in one word?",
)
_SERVE = "from pagoda.cli.main import main; main()"


def planner_page(browser: Browser) -> bytes:
    """The planner's page as it opens."""
    tab = browser.open(width=1120, height=645)
    tab.prefer(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    tab.call("Emulation.setScrollbarsHidden", hidden=True)
    tab.go((DOCS / "feel-the-bytes.html").absolute().as_uri())
    time.sleep(1)
    return screenshot(tab)


def chat_page(browser: Browser) -> bytes:
    """A conversation with the default model: the second answer begins where the first ended."""
    with serving() as url:
        tab = browser.open(width=880, height=640)
        tab.prefer(prefers_color_scheme="light", prefers_reduced_motion="reduce")
        tab.go(url)
        tab.wait_for("document.getElementById('model').textContent")
        tab.value("document.getElementById('temperature').value = 0")
        ask(tab, "Hello", 1)  # what a server does for the first time takes longer
        tab.click("#new")
        for number, question in enumerate(_QUESTIONS, start=1):
            ask(tab, question, number)
        return screenshot(tab)


def ask(tab: Tab, question: str, number: int) -> None:
    """Send a conversation's question of that number, and wait for the whole answer."""
    tab.click("#question")
    tab.write(question)
    tab.press("Enter", 13)
    done = f"document.querySelectorAll('article:not([aria-busy=true])').length === {number}"
    tab.wait_for(f"{done} && !document.getElementById('send').hidden")


def screenshot(tab: Tab) -> bytes:
    """What a tab shows, as PNG."""
    if tab.problems:
        raise RuntimeError(f"the page complains: {tab.problems}")
    taken = tab.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)
    return base64.b64decode(taken["data"])


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server with the default model, until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as file:
            command = [sys.executable, "-c", _SERVE, "serve", "--port", "0"]
            server = subprocess.Popen(command, stderr=file)
        try:
            while not (url := re.search(r"http://[\d.]+:\d+", log.read_text())):
                if server.poll() is not None:
                    raise RuntimeError(log.read_text())
                time.sleep(0.1)
            yield url.group()
        finally:
            server.terminate()
            server.wait()
