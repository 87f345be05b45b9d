from __future__ import annotations

import pytest

from pagoda.byte_size import parse_byte_size
from pagoda.errors import InvalidOptionError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1073741824", 2**30),
        ("2GiB", 2 * 2**30),
        ("2 GiB", 2 * 2**30),
        (" 512MiB ", 512 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("1e9", 10**9),
        ("2.5e-1GB", 250_000_000),
        ("1TiB", 2**40),
        ("64KiB", 65536),
        ("3GB", 3 * 10**9),
        ("7kB", 7000),
        ("4G", 4 * 2**30),
        ("4g", 4 * 10**9),
        ("12345678901234567890", 12345678901234567890),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_byte_size("kv_cache_memory_bytes", text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "-1GiB",
        "2XB",
        "2 Gib",
        "1..5G",
        ".",
        "nan",
        "inf",
        "1e999",
        "0",
        "0.1",
        "1 2",
        "٣",
    ],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError) as refused:
        parse_byte_size("kv_cache_memory_bytes", text)
    assert refused.value.field == "kv_cache_memory_bytes"
    assert refused.value.value == text
