"""The server as a process: told to stop, it finishes what runs and exits with 0."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import pagoda
from server.sse import completion_text, events_of

SCRIPT = """
import asyncio, sys
sys.path[:0] = [{source!r}, {tests!r}]
from pagoda.server import watchdog
if {gives_up}:
    watchdog.LAST_STEP_S = 0.5
from server.slow_engine import SlowEngine
from pagoda.errors import EngineError
from pagoda.server.app import create_app
from pagoda.server.listener import bind, start_listening, url_of
from pagoda.server.options import ServerOptions
from pagoda.server.run import run

assert "torch" not in sys.modules, "a server without an engine takes seconds longer to start"
options = ServerOptions({options})
engine = SlowEngine()
if {dies}:
    asked = engine.generate

    async def generate(*args, **settings):
        async for output in asked(*args, **settings):
            yield output
            engine.is_alive = False
            raise EngineError("the engine has stopped")

    engine.generate = generate
if {hangs}:
    engine.watch.begin()
    engine.shutdown = lambda timeout_s: asyncio.sleep(timeout_s if {gives_up} else 3600)
with bind("127.0.0.1", 0) as listener:
    start_listening(listener)
    print(url_of(listener), flush=True)
    run(create_app(engine, options), listener, options)
print("done")
"""
BODY = {"prompt": "x", "max_tokens": 8, "stream": True}
WHOLE = "zero one two three four five six seven"


@contextmanager
def serving(
    options: str = "",
    *,
    dies: bool = False,
    hangs: bool = False,
    gives_up: bool = False,
    stderr: int | None = None,
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, whose tokens take a while, and its address.

    With `hangs` its engine's last step does not end, which the engine waits for, or `gives_up`.
    """
    source, tests = Path(pagoda.__file__).parent.parent, Path(__file__).parent.parent
    told = {"options": options, "dies": dies, "hangs": hangs, "gives_up": gives_up}
    script = SCRIPT.format(source=str(source), tests=str(tests), **told)
    server = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=stderr, text=True
    )
    assert server.stdout is not None
    try:
        yield server, server.stdout.readline().strip()
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_in_good_order(number: signal.Signals) -> None:
    """What runs finishes, and new requests are told 503 meanwhile."""
    with serving() as (server, url):
        with httpx.stream("POST", f"{url}/v1/completions", json=BODY, timeout=60) as response:
            chunks = response.iter_text()
            received = next(chunks)
            server.send_signal(number)
            late = httpx.post(f"{url}/v1/completions", json=BODY, timeout=60)
            while late.status_code == 200:  # the signal was on its way
                late = httpx.post(f"{url}/v1/completions", json=BODY, timeout=60)
            health = httpx.get(f"{url}/health", timeout=60)
            received += "".join(chunks)
        assert completion_text(events_of(received)) == WHOLE
        rest, _ = server.communicate(timeout=60)
    for refused in (late, health):
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_shutting_down"
    assert "retry-after" in late.headers
    assert rest == "done\n"
    assert server.returncode == 0


@pytest.mark.parametrize("signals", [1, 2])
def test_what_does_not_finish_in_time_is_told_so_and_ended(signals: int) -> None:
    options = "shutdown_timeout=0.1" if signals == 1 else ""
    with serving(options, stderr=subprocess.PIPE) as (server, url):
        body = {**BODY, "max_tokens": 63}  # three seconds
        whole = {**body, "stream": False}
        with (
            ThreadPoolExecutor() as pool,
            httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response,
        ):
            waiting = pool.submit(httpx.post, f"{url}/v1/completions", json=whole, timeout=60)
            chunks = response.iter_text()
            received = next(chunks)
            while httpx.get(f"{url}/load").json()["server_load"] < 2:
                time.sleep(0.01)
            for _ in range(signals):
                server.send_signal(signal.SIGTERM)
                time.sleep(0.2)
            received += "".join(chunks)
        out, err = server.communicate(timeout=60)
    assert (out, server.returncode) == ("done\n", 0)
    assert "Traceback" not in err
    refused = waiting.result()
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "server_shutting_down"
    assert received.count("server_shutting_down") == 1
    assert received.endswith("data: [DONE]\n\n")


def test_a_server_whose_engine_has_died_ends_by_itself(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as stderr, serving(dies=True, stderr=stderr.fileno()) as (server, url):
        answer = httpx.post(f"{url}/v1/completions", json=BODY, timeout=60)
        server.communicate(timeout=60)
    assert answer.status_code == 200
    assert "server_error" in answer.text
    assert server.returncode == 1
    assert "EngineError: the engine has stopped, so the server ends" in log.read_text()


@pytest.mark.parametrize("signals", [1, 3])
def test_a_step_that_hangs_does_not_keep_the_process(signals: int, tmp_path: Path) -> None:
    """The third signal ends it at once; the first one, once the engine has given the step up."""
    log = tmp_path / "log"
    with (
        log.open("w") as stderr,
        serving(hangs=True, gives_up=signals == 1, stderr=stderr.fileno()) as (server, url),
    ):
        httpx.get(f"{url}/load", timeout=60)  # signals are waited for
        for _ in range(signals):
            server.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        out, _ = server.communicate(timeout=20)
    assert (out, server.returncode) == ("", 1)
    assert (signals == 1) == ("the engine's step has not ended within 0.5 s" in log.read_text())


def test_who_watches_the_cache_is_told_of_the_end_and_does_not_delay_it() -> None:
    with serving() as (server, url):
        with httpx.stream("GET", f"{url}/cache/events", timeout=60) as response:
            lines = response.iter_lines()
            assert '"num_blocks":40' in next(line for line in lines if "num_blocks" in line)
            server.send_signal(signal.SIGTERM)
            *_, last = (line for line in lines if line)
        assert '"code":"server_shutting_down"' in last
        rest, _ = server.communicate(timeout=4)  # less than is left for last words
    assert (rest, server.returncode) == ("done\n", 0)
