"""The server as a process: told to stop, it finishes what runs and exits with 0."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import pagoda
from server.sse import completion_text, events_of

SCRIPT = """
import sys
sys.path[:0] = [{source!r}, {tests!r}]
from server.slow_engine import SlowEngine
from pagoda.server.app import create_app
from pagoda.server.listener import listen, url_of
from pagoda.server.run import run

with listen("127.0.0.1", 0) as listener:
    print(url_of(listener), flush=True)
    run(create_app(SlowEngine()), listener)
print("done")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_in_good_order(number: signal.Signals) -> None:
    source, tests = Path(pagoda.__file__).parent.parent, Path(__file__).parent.parent
    script = SCRIPT.format(source=str(source), tests=str(tests))
    server = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        body = {"prompt": "x", "max_tokens": 8, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            chunks = response.iter_text()
            received = next(chunks)
            server.send_signal(number)
            received += "".join(chunks)
        assert completion_text(events_of(received)) == "zero one two three four five six seven"
        rest, _ = server.communicate(timeout=60)
    finally:
        server.kill()
    assert rest == "done\n"
    assert server.returncode == 0
