"""The server as a process: told to stop, it finishes what runs and exits with 0."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from pagoda.server.watchdog import LAST_STEP_S
from server.nursery import Nursery
from server.sse import completion_text, events_of

BODY = {"prompt": "x", "max_tokens": 8, "stream": True}
WHOLE = "zero one two three four five six seven"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_in_good_order(
    number: signal.Signals, nursery: Nursery, tmp_path: Path
) -> None:
    """What runs finishes, and new requests are told 503 meanwhile."""
    with nursery.serving(tmp_path) as server:
        url = server.url
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
        assert server.ended() == 0
    for refused in (late, health):
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_shutting_down"
    assert "retry-after" in late.headers
    assert server.out == f"{url}\ndone\n"


@pytest.mark.parametrize("signals", [1, 2])
def test_what_does_not_finish_in_time_is_told_so_and_ended(
    signals: int, nursery: Nursery, tmp_path: Path
) -> None:
    options = {"shutdown_timeout": 0.1} if signals == 1 else {}
    with nursery.serving(tmp_path, options=options) as server:
        url = server.url
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
        assert server.ended() == 0
    assert server.out.endswith("\ndone\n")
    assert "Traceback" not in server.err
    refused = waiting.result()
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "server_shutting_down"
    assert received.count("server_shutting_down") == 1
    assert received.endswith("data: [DONE]\n\n")


def test_a_server_whose_engine_has_died_ends_by_itself(nursery: Nursery, tmp_path: Path) -> None:
    with nursery.serving(tmp_path, dies=True) as server:
        answer = httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=60)
        assert server.ended() == 1
    assert answer.status_code == 200
    assert "server_error" in answer.text
    assert "EngineError: the engine has stopped, so the server ends" in server.err


@pytest.mark.parametrize("signals", [1, 3])
def test_a_step_that_hangs_does_not_keep_the_process(
    signals: int, nursery: Nursery, tmp_path: Path
) -> None:
    """The third signal ends it at once; the first one, once the engine has given the step up."""
    with nursery.serving(tmp_path, hangs=True, gives_up=signals == 1) as server:
        httpx.get(f"{server.url}/load", timeout=60)  # signals are waited for
        for _ in range(signals):
            server.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        assert server.ended(20) == 1
    assert "done" not in server.out
    assert (signals == 1) == (f"has not ended within {LAST_STEP_S:g} s" in server.err)


def test_who_watches_the_cache_is_told_of_the_end_and_does_not_delay_it(
    nursery: Nursery, tmp_path: Path
) -> None:
    with nursery.serving(tmp_path) as server:
        with httpx.stream("GET", f"{server.url}/cache/events", timeout=60) as response:
            lines = response.iter_lines()
            assert '"num_blocks":40' in next(line for line in lines if "num_blocks" in line)
            server.send_signal(signal.SIGTERM)
            *_, last = (line for line in lines if line)
        assert '"code":"server_shutting_down"' in last
        assert server.ended(4) == 0  # less than is left for last words
    assert server.out.endswith("\ndone\n")
