"""Pictures of the pages, taken by headless Chromium."""

from __future__ import annotations

import base64
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from pictures.tables import DOCS
from server.browser import Browser, Tab

_QUESTIONS = (
    "Why do pagodas have so many roofs? Two sentences.",
    "And in one word?",
)
_TENANTS = {"ann": 3, "bob": 2, "cyd": 1}
"""Each with its conversations at a time."""
_OPERATOR = "key-of-the-house"
_STORY = "the tower has tiers of wood and stone and monks count swallows at dusk in a book"
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


def cache_page(browser: Browser) -> bytes:
    """The cache while three tenants talk to the default model, once blocks are evicted."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("".join(f"key-of-{name} {name}\n" for name in _TENANTS))
        flags = ["--num-gpu-blocks-override", "720", "--max-model-len", "2048"]
        with serving("--api-key", _OPERATOR, "--api-key-file", str(keys), *flags) as url:
            is_over = threading.Event()
            talks = [
                threading.Thread(target=talk, args=(url, name, number, is_over))
                for name in _TENANTS
                for number in range(_TENANTS[name])
            ]
            for each in talks:
                each.start()
            try:
                tab = browser.open(width=1120, height=700, key=_OPERATOR)
                tab.prefer(prefers_color_scheme="light", prefers_reduced_motion="no-preference")
                tab.call("Emulation.setScrollbarsHidden", hidden=True)
                tab.go(f"{url}/cache")
                for _ in range(20):  # a pool fills in minutes
                    with suppress(TimeoutError):
                        tab.wait_for("/[1-9]\\d+ blocks evicted/.test(evicted.textContent)")
                        break
                return screenshot(tab)
            finally:
                is_over.set()
                for each in talks:
                    each.join()


def talk(url: str, name: str, number: int, is_over: threading.Event) -> None:
    """Conversations of a tenant, which all begin alike."""
    words, known = random.Random(f"{name} {number}"), _STORY.split()
    headers = {"x-api-key": f"key-of-{name}"}
    beginning = " ".join(random.Random(name).choices(known, k=150))
    with httpx.Client(base_url=url, headers=headers, timeout=120) as client:
        while not is_over.is_set():
            messages = [{"role": "system", "content": beginning}]
            for _ in range(words.randint(1, 4)):
                said = " ".join(words.choices(known, k=words.randint(10, 90)))
                messages.append({"role": "user", "content": said})
                body = {"messages": messages, "max_tokens": words.randint(10, 40)}
                answer = client.post("/v1/chat/completions", json=body).json()
                messages.append(answer["choices"][0]["message"])


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
def serving(*flags: str) -> Iterator[str]:
    """The address of a server with the default model, until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as file:
            command = [sys.executable, "-c", _SERVE, "serve", "--port", "0", *flags]
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
