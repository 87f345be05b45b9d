"""Counts of tokens, as vLLM reads `--max-model-len`."""

from __future__ import annotations

import pytest

from pagoda.cli.count import parse_count
from pagoda.errors import InvalidOptionError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8192", 8192), (" 7 ", 7), ("1k", 1000), ("1K", 1024), ("25.6k", 25_600), ("32k", 32_000),
        ("8K", 8192), ("2m", 2_000_000), ("1M", 2**20), ("1g", 10**9), ("1T", 2**40),
    ],
)  # fmt: skip
def test_counts(text: str, count: int) -> None:
    assert parse_count("max_model_len", text) == count


@pytest.mark.parametrize("text", ["", "k", "8.5", "8.5K", "8 K", "8KB", "many", "1e3", "0x10"])
def test_what_is_no_count_is_refused_by_its_field(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="max_model_len="):
        parse_count("max_model_len", text)
