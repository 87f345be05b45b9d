"""Try an installed Pagoda as its user would, away from the checkout.

    python tools/try_package.py ENVIRONMENT

ENVIRONMENT is a virtual environment that has Pagoda and the default model. Checks that every file
of `src/pagoda` is installed there, then plans, answers and serves from an empty directory. Exits
with 1 and says what failed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "pagoda"
_PATIENCE_S = 600
_CACHE = ("--kv-cache-memory-bytes", "256MiB")
"""A short answer needs no more, and the machine may be small."""
_WHERE = "import pagoda; print(pagoda.__path__[0])"
_CITY = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 40,
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "city",
            "schema": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string", "maxLength": 20}},
                "additionalProperties": False,
            },
        },
    },
}


class TrialError(Exception):
    """The installed package does not do what it should."""


class Trial:
    """Commands of one environment, in an empty directory and without the checkout."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self._programs = environment.absolute() / "bin"
        self._folder = folder
        hidden = ("PYTHONPATH", "PYTHONHOME")
        self._variables = {name: value for name, value in os.environ.items() if name not in hidden}
        self._variables["HF_HUB_OFFLINE"] = "1"

    def output_of(self, program: str, *arguments: str) -> str:
        """What a command prints. Raises `TrialError` where it fails."""
        done = subprocess.run(
            [self._programs / program, *arguments],
            cwd=self._folder,
            env=self._variables,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            command = " ".join((program, *arguments))
            said = f"{done.stdout}\n{done.stderr}".strip()
            raise TrialError(f"{command} ended with {done.returncode}:\n{said}")
        return done.stdout

    @contextmanager
    def serving(self) -> Iterator[str]:
        """A server's address, until the block ends."""
        log = self._folder / "serve.log"
        flags = ("--port", "0", "--max-model-len", "512", *_CACHE)
        command = [self._programs / "pagoda", "serve", *flags]
        with log.open("w") as file:
            server = subprocess.Popen(
                command, cwd=self._folder, env=self._variables, stderr=file, stdout=file
            )
        try:
            deadline = time.monotonic() + _PATIENCE_S
            while not (url := re.search(r"http://[\d.]+:\d+", log.read_text())):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise TrialError(f"pagoda serve does not serve:\n{log.read_text()}")
                time.sleep(0.1)
            yield url.group()
        finally:
            server.terminate()
            server.wait()


def check_files(trial: Trial) -> None:
    """Every file of the source is installed, and not as the source itself."""
    installed = Path(trial.output_of("python", "-c", _WHERE).strip())
    if installed.is_relative_to(SOURCE.parent.parent) and installed.samefile(SOURCE):
        raise TrialError(f"{installed} is the checkout, not an installed package")
    files = (path.relative_to(SOURCE) for path in SOURCE.rglob("*") if path.is_file())
    wanted = (path for path in files if path.suffix != ".md" and "__pycache__" not in path.parts)
    missing = sorted(str(path) for path in wanted if not (installed / path).exists())
    if missing:
        raise TrialError(f"not installed: {', '.join(missing)}")


def check_commands(trial: Trial) -> None:
    """The version, a plan, the planner's page and an answer."""
    contains(trial.output_of("pagoda", "--version"), f"pagoda {version()}")
    plan = ("plan", "Llama-3.1-8B-Instruct", "--gpu", "H100")
    contains(trial.output_of("pagoda", *plan), "KV cache")
    trial.output_of("pagoda", "plan", "--html", "page.html")
    question = (*_CACHE, "--temperature", "0", "--max-tokens", "8", "The capital of France is")
    contains(trial.output_of("pagoda", "generate", *question), "Paris")


def check_server(trial: Trial) -> None:
    """Its version, its pages and an answer that holds to a schema."""
    with trial.serving() as url:
        contains(fetch(f"{url}/version"), version())
        page = fetch(f"{url}/")
        for path in re.findall(r'(?:href|src)="(page/[\w.]+)"', page):
            fetch(f"{url}/{path}")
        contains(fetch(f"{url}/plan"), "<html")
        answer = json.loads(fetch(f"{url}/v1/chat/completions", _CITY))
        json.loads(answer["choices"][0]["message"]["content"])["name"]


def fetch(url: str, body: object = None) -> str:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as response:
        return response.read().decode()


def contains(text: str, wanted: str) -> None:
    if wanted not in text:
        raise TrialError(f"{wanted!r} is not in:\n{text}")


def version() -> str:
    """The checkout's."""
    found = re.search(r'__version__ = "(.+)"', (SOURCE / "__init__.py").read_text())
    assert found is not None
    return found[1]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(sys.argv[1]), Path(folder))
        try:
            for check in (check_files, check_commands, check_server):
                check(trial)
                print(f"{check.__name__}: well", file=sys.stderr)
        except TrialError as error:
            sys.exit(f"try_package: {error}")


if __name__ == "__main__":
    main()
