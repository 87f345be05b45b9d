"""The examples say what they claim to say."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_cache_alone() -> None:
    out = run("cache_alone.py")
    assert "a token takes 23,040 bytes" in out
    assert "first: 0 of 84 tokens cached" in out
    assert "third: 64 of 84 tokens cached" in out
    assert "the fork shares 5 blocks and copies 1" in out
    assert "128 of 252 tokens came from the cache" in out


def test_fragmentation() -> None:
    contiguous, paged = run("fragmentation.py").splitlines()
    assert contiguous.endswith("120 of  2048 reserved slots used,  94.1% wasted")
    assert "120 of   144 reserved slots used" in paged


@pytest.mark.parametrize("block_size", [1, 8, 32, 100])
def test_a_paged_sequence_wastes_less_than_a_block(block_size: int) -> None:
    out = run("fragmentation.py", "--block-size", str(block_size)).splitlines()[1]
    reserved = int(out.split(" of ")[1].split()[0])
    assert reserved - 120 <= 3 * (block_size - 1)


@pytest.mark.model
def test_a_codec_of_ones_own() -> None:
    _, plain, own = run("own_codec.py", "--tokens", "200").splitlines()
    name, size, perplexity, same = own.split()
    assert name == "levels5-float16-norm-hadamard/levels4-float16-offset"
    assert size == "7,020"
    assert 0.9 < float(perplexity) / float(plain.split()[2]) < 1.1
    assert 80 < float(same.rstrip("%")) < 100
    assert plain.split()[1::2] == ["23,040", "100.0%"]


@pytest.mark.model
@pytest.mark.threads
def test_with_and_without_a_cache() -> None:
    out = run("with_and_without_cache.py", "--prompt-tokens", "64", "--output-tokens", "6")
    assert "times faster" in out
