"""`pagoda session export`, ended by a signal while its file comes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

import pagoda
from cli.http_server import serving
from processes import happens, hear_signals

PART = b"x" * 2**18
NUM_PARTS = 4
ENDING = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]


@pytest.fixture
def rest() -> threading.Event:
    """Set: the server sends all parts but the first."""
    return threading.Event()


@pytest.fixture
def url(rest: threading.Event) -> Iterator[str]:
    class Session(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            for name in ("x-pagoda-exported-tokens", "x-pagoda-tokens"):
                self.send_header(name, "1")
            self.send_header("Content-Length", str(NUM_PARTS * len(PART)))
            self.end_headers()
            self.wfile.write(PART)
            if rest.wait(60):
                self.wfile.write(PART * (NUM_PARTS - 1))

    with serving(Session) as url:
        yield url
        rest.set()


def exporting(url: str, file: Path, *before: str) -> subprocess.Popen[str]:
    """The command, which has begun to write."""
    command = [sys.executable, "-m", "pagoda", "session", "export", "tea", str(file), "--url", url]
    source = Path(pagoda.__file__).parent.parent
    process = subprocess.Popen(
        [*before, *command], cwd=source, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        preexec_fn=hear_signals,
    )  # fmt: skip
    assert happens(lambda: any(each.stat().st_size for each in parts(file)), 60)
    return process


def parts(file: Path) -> list[Path]:
    return list(file.parent.glob("session-*.part"))


@pytest.mark.parametrize("number", ENDING)
def test_nothing_is_left_of_an_export_that_breaks_off(
    number: signal.Signals, url: str, tmp_path: Path
) -> None:
    with exporting(url, tmp_path / "tea.session") as process:
        process.send_signal(number)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_an_export_goes_on_without_its_terminal_under_nohup(
    url: str, rest: threading.Event, tmp_path: Path
) -> None:
    file = tmp_path / "tea.session"
    with exporting(url, file, "nohup") as process:
        process.send_signal(signal.SIGHUP)
        rest.set()
        _, told = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "1 of 1 tokens of 'tea'" in told
    assert file.stat().st_size == NUM_PARTS * len(PART)
    assert parts(file) == []
