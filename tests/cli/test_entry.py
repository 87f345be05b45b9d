"""The command as a process: signals that come before a command can hear them itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import psutil
import pytest

import pagoda
from processes import hear_signals

SOURCE = Path(pagoda.__file__).parent.parent
STARTING = """
import os, runpy, sys, time
import pagoda.cli.serve

def load(*given):
    print(os.getpid(), flush=True)
    time.sleep(60)

sys.modules["pagoda.cli.serve"].load_engine = load
sys.argv = ["pagoda", "serve", "--port", "0"]
runpy.run_module("pagoda", run_name="__main__")
"""
"""A server whose model never comes; it prints its number once it waits for that."""


def console_script() -> str:
    """What the program `pagoda` does, as the package is installed."""
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]
    module, function = project["scripts"]["pagoda"].split(":")
    return f"import sys; from {module} import {function}; sys.exit({function}())"


@pytest.mark.parametrize("way", [["-m", "pagoda"], ["-c", console_script()]], ids=["-m", "script"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_heard_while_modules_load(
    number: signal.Signals, way: list[str], tmp_path: Path
) -> None:
    """One that sends it stands for Typer."""
    sending = f"import os, time; os.kill(os.getpid(), {int(number)}); time.sleep(60)"
    (tmp_path / "typer.py").write_text(sending)
    result = subprocess.run(
        [sys.executable, *way, "--version"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"},
        capture_output=True, text=True, timeout=50, check=False, preexec_fn=hear_signals,
    )  # fmt: skip
    assert (result.returncode, result.stdout, result.stderr) == (128 + number, "", "")


def in_own_container() -> list[str]:
    """What makes a command the first process of a container. Skips the test where that may not
    be."""
    command = ["unshare", "--pid", "--fork", "--kill-child"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], check=False).returncode
    ):
        pytest.skip("no process may have numbers of its own here")
    return command


@pytest.mark.parametrize("is_first", [False, True], ids=["anywhere", "in a container"])
def test_a_server_that_starts_ends_when_it_is_told_to(is_first: bool) -> None:
    outside = in_own_container() if is_first else []
    command = [*outside, sys.executable, "-c", STARTING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=SOURCE) as started:
        try:
            assert started.stdout is not None
            assert (int(started.stdout.readline()) == 1) == is_first
            server = psutil.Process(started.pid)
            if is_first:
                [server] = server.children()
            server.send_signal(signal.SIGTERM)
            assert started.wait(20) == 128 + signal.SIGTERM
        finally:
            started.kill()
