"""The examples say what they claim to say."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs an example, which prints what is returned, as a program of its own would run it.

    In this process, which has loaded what it imports.
    """

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [str(EXAMPLES / name), *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_the_cache_alone(run: Callable[..., str]) -> None:
    out = run("cache_alone.py")
    assert "a token takes 23,040 bytes" in out
    assert "first: 0 of 84 tokens cached" in out
    assert "third: 64 of 84 tokens cached" in out
    assert "the fork shares 5 blocks and copies 1" in out
    assert "128 of 252 tokens came from the cache" in out


def test_fragmentation(run: Callable[..., str]) -> None:
    contiguous, paged = run("fragmentation.py").splitlines()
    assert contiguous.endswith("120 of  2048 reserved slots used,  94.1% wasted")
    assert "120 of   144 reserved slots used" in paged


@pytest.mark.parametrize("block_size", [1, 8, 32, 100])
def test_a_paged_sequence_wastes_less_than_a_block(
    block_size: int, run: Callable[..., str]
) -> None:
    out = run("fragmentation.py", "--block-size", str(block_size)).splitlines()[1]
    reserved = int(out.split(" of ")[1].split()[0])
    assert reserved - 120 <= 3 * (block_size - 1)


@pytest.mark.model
def test_a_codec_of_ones_own(run: Callable[..., str]) -> None:
    _, plain, own = run("own_codec.py", "--tokens", "64").splitlines()
    name, size, perplexity, same = own.split()
    assert name == "levels5-float16-norm-hadamard/levels4-float16-offset"
    assert size == "7,020"
    assert 0.9 < float(perplexity) / float(plain.split()[2]) < 1.1
    assert 80 < float(same.rstrip("%")) < 100
    assert plain.split()[1::2] == ["23,040", "100.0%"]


@pytest.mark.model
@pytest.mark.threads
def test_with_and_without_a_cache(run: Callable[..., str]) -> None:
    out = run("with_and_without_cache.py", "--prompt-tokens", "64", "--output-tokens", "6")
    assert "times faster" in out
