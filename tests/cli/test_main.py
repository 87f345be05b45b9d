"""The command line as a whole: what it refuses, and how."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pagoda
from checkpoints import CASES, write_checkpoint
from pagoda.cli.main import run
from pagoda.errors import InvalidOptionError, ModelError
from server.fake_engine import FakeEngine, engine_failure

REFUSED = {
    "a word for a number": (["serve", "--port", "http"], "--port='http': must be a whole number"),
    "a fraction": (["serve", "--max-num-seqs", "1.5"], "--max-num-seqs='1.5': must be a whole"),
    "not a size": (["serve", "--kv-cache-memory-bytes", "2XB"], "--kv-cache-memory-bytes='2XB': a"),
    "zero": (["serve", "--block-size", "0"], "--block-size=0: must be"),
    "NaN": (["serve", "--gpu-memory-utilization", "nan"], "--gpu-memory-utilization=nan: "),
    "an eviction policy": (
        ["serve", "--eviction-policy", "fifo"],
        "--eviction-policy='fifo': one of arc, density, gdsf, lfu, lru, s3fifo, slru",
    ),
    "a policy": (["serve", "--scheduling-policy", "lifo"], "--scheduling-policy='lifo': one of"),
    "a dtype": (["serve", "--dtype", "int3"], "--dtype='int3': one of"),
    "a port": (["serve", "--port", "70000"], "--port=70000: must be between"),
    "a host": (["serve", "--host", "no such host"], "--host='no such host': is no address"),
    "negative": (
        ["generate", "x", "--temperature", "-1"],
        "--temperature=-1.0: must be at least 0",
    ),
    "NaN sampling": (["generate", "x", "--top-p", "nan"], "--top-p=nan: must be"),
    "an empty prompt": (["generate", ""], "prompt 1='': must hold"),
    "too long a prompt": (
        ["generate", "x" * 100],
        "This model's maximum context length is 64 tokens. However, you requested 101 tokens",
    ),
    "no prompt": (["generate"], "prompts=[]: give at least one"),
    "no file": (["generate", "--file", "no/such/file"], "--file='no/such/file': No such file"),
    "a folder": (["generate", "--file", "."], "--file='.': Is a directory"),
    "a flag": (["serve", "--kv-cash"], "No such option: --kv-cash"),
    "a second value": (
        ["serve", "smollm2", "--served-model-name", "a", "b"],
        "Got unexpected extra argument(s) (b): an option takes one value; where it may",
    ),
    "a command": (["server"], "No such command 'server'"),
    "no value": (["generate", "x", "--stop"], "Option '--stop' requires an argument"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_one_line(
    name: str,
    engine: FakeEngine,
    typed: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, message = REFUSED[name]
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith(f"pagoda: error: {message}")


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_stdin_that_is_no_text_is_one_line(
    command: str,
    engine: FakeEngine,
    piped: Callable[[bytes], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    piped(b"\xff\n")
    assert run([command]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "pagoda: error: stdin=b'\\xff\\n': must be utf-8 text\n"
    assert not engine.is_running


def test_a_broken_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{")
    assert run(["generate", "x", "--model", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith("pagoda: error: ")


def test_a_file_that_ends_early_is_no_interrupt(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(*_: object) -> None:
        raise EOFError("Ran out of input")

    monkeypatch.setattr(engine, "start", ends)
    with pytest.raises(EOFError, match="Ran out of input"):
        run(["generate", "a"])


def test_an_engine_that_fails_is_one_line(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.fail = engine_failure()
    assert run(["generate", "a", "b"]) == 1
    assert capsys.readouterr().err == f"pagoda: error: {engine.fail}\n"
    assert not engine.is_running


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_the_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    text = capsys.readouterr().out
    assert all(f"  {command}  " in text for command in ("serve", "chat", "generate", "bench"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["serve", "-tp", "2"], "--tensor-parallel-size (one process on"),
        (["bench", "--load-format=gguf"], "--load-format (a .gguf file is recognised"),
        (["plan", "--tp", "2"], "--tp (did you mean -tp?)"),
        (["plan", "--ssl-keyfile", "x"], "--ssl-keyfile\n"),
    ],
)
def test_a_flag_of_vllms_is_told_what_there_is_instead(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().err.startswith(f"pagoda: error: No such option: {told}")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"pagoda {pagoda.__version__}\n"


def test_a_wrong_option_is_refused_before_anything_heavy_is_loaded() -> None:
    """A start that fails should fail at once: to load PyTorch takes seconds.

    The last one is a command's own, whose exit code reaches the shell.
    """
    script = (
        "import runpy, sys; from pagoda.cli.main import run\n"
        "wrong = [['--kv-cache-dtype', 'fp9'], ['--device', 'cpu', '--dtype', 'float16'],\n"
        "         ['--kv-cache-dtype-skip-layers', '3-']]\n"
        "for flags in wrong: assert run(['serve', *flags]) == run(['lab', *flags]) == 2\n"
        "for flag in ['--kv-retention', '--kv-tier-form']: assert run(['lab', flag, 'x']) == 2\n"
        "assert not {'torch', 'numba', 'transformers'} & set(sys.modules)\n"
        "sys.argv = ['pagoda', 'serve', '--port', '-5']\n"
        "runpy.run_module('pagoda', run_name='__main__')"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(pagoda.__file__).parent.parent, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert result.returncode == 2, result.stderr
    *lines, last = result.stderr.splitlines()
    assert last == "pagoda: error: --port=-5: must be between 0 and 65535"
    told = [line.partition(":")[2].split("=")[0] for line in lines]
    flags = ["--kv-cache-dtype", "--dtype", "--kv-cache-dtype-skip-layers"]
    by_flag = [flag for flag in flags for _ in ("serve", "lab")]
    assert told == [f" error: {flag}" for flag in [*by_flag, "--kv-retention", "--kv-tier-form"]]


def test_a_limit_names_flags_and_a_config_keeps_its_fields(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value stays as it was typed, whatever it looks like, and so does a path."""
    engine.fail = InvalidOptionError(
        "block_size", "block_size", "/data/block_size is no block_size"
    )
    assert run(["generate", "a"]) == 2
    engine.fail = ModelError("dtype", "x", "not beside max_model_len")
    assert run(["generate", "a"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "pagoda: error: --block-size='block_size': /data/block_size is no --block-size",
        "pagoda: error: dtype='x': not beside max_model_len",
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_name_that_is_no_text_is_written_as_escapes(encoding: str, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    directory = write_checkpoint(tmp_path / name, CASES["qwen3"], tokenizer=False)
    result = subprocess.run(
        [sys.executable, "-m", "pagoda", "plan", str(directory), "--memory", "1GiB"],
        cwd=Path(pagoda.__file__).parent.parent, capture_output=True, timeout=120, check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.startswith(b"caf\\udce9, vllm")


def test_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """As on a full disk: here no file may grow."""
    command = 'ulimit -f 0; exec "$0" -m pagoda --version > "$1"'
    result = subprocess.run(
        ["sh", "-c", command, sys.executable, str(tmp_path / "out")],
        cwd=Path(pagoda.__file__).parent.parent, stderr=subprocess.PIPE, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert result.returncode == 1
    told = f"the output cannot be written: {os.strerror(errno.EFBIG)}"
    assert result.stderr == f"pagoda: error: {told}\n"


def in_shell(command: str) -> subprocess.CompletedProcess[str]:
    """What becomes of `command`, in which `$0` is Python."""
    return subprocess.run(
        ["sh", "-c", command, sys.executable],
        cwd=Path(pagoda.__file__).parent.parent, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("command", ["generate x", "chat", "replay synthetic:chat", "--version"])
def test_a_stdout_that_is_closed_is_one_line(command: str) -> None:
    result = in_shell(f'exec "$0" -m pagoda {command} >&-')
    assert result.returncode == 1
    told = "the output cannot be written: stdout is closed"
    assert result.stderr == f"pagoda: error: {told}\n"


def test_a_server_needs_no_stdout() -> None:
    result = in_shell('exec "$0" -m pagoda serve --port -5 >&-')
    assert result.returncode == 2
    assert result.stderr == "pagoda: error: --port=-5: must be between 0 and 65535\n"


def test_a_stdin_that_is_closed_is_an_empty_one() -> None:
    result = in_shell('exec "$0" -m pagoda generate <&-')
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("pagoda: error: prompts=[]: give at least one")


def test_a_refusal_never_goes_to_stdout_though_stderr_is_closed() -> None:
    result = in_shell('exec "$0" -m pagoda generate </dev/null 2>&-')
    assert (result.returncode, result.stdout, result.stderr) == (2, "", "")
