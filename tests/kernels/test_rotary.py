from __future__ import annotations

import numpy as np
import pytest
from kernel_arrays import DTYPES, assert_close, seen, stored

from pagoda.kernels import reference
from pagoda.kernels.cpu.rotary import rotate_and_write

CASES = [
    # heads, kv heads, head_dim, rotary_dim, block size, rows, with norm
    (4, 2, 32, 32, 16, 1, False),
    (9, 3, 64, 64, 16, 5, False),
    (4, 1, 96, 96, 32, 9, True),
    (2, 2, 128, 64, 8, 20, True),
    (5, 5, 20, 0, 1, 12, False),
    (16, 1, 256, 256, 64, 3, False),
    (6, 2, 48, 24, 128, 8, True),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_queries_and_cache_are_those_of_the_reference(dtype: str, case: tuple):
    heads, kv_heads, head_dim, rotary_dim, block_size, rows, with_norm = case
    rng = np.random.default_rng(rows)
    qkv = stored(rng.normal(size=(rows, (heads + 2 * kv_heads) * head_dim)), dtype)
    before = seen(qkv).reshape(rows, heads + 2 * kv_heads, head_dim).copy()
    num_blocks = -(-3 * rows // block_size)
    shape = (num_blocks, 2 * kv_heads * head_dim * block_size)
    blocks = stored(rng.normal(size=shape), dtype)
    untouched = blocks.copy()
    slots = rng.permutation(num_blocks * block_size)[:rows]
    positions = rng.integers(0, 50, rows).astype(np.int32)
    angles = rng.uniform(0, 6, size=(50, rotary_dim // 2)).astype(np.float32)
    cosines, sines = np.cos(angles), np.sin(angles)
    norms = [stored(rng.normal(size=head_dim * with_norm) + 1, dtype) for _ in range(2)]

    rotate_and_write(
        qkv, blocks, slots, positions, cosines, sines, *norms, kv_heads, block_size,
        np.float32(1e-5),
    )  # fmt: skip

    pages = seen(blocks).reshape(num_blocks, 2, kv_heads, -1)
    expected_blocks = seen(untouched).reshape(pages.shape).copy()
    for row in range(rows):
        q, k, v = np.split(before[row], [heads, heads + kv_heads])
        if with_norm:
            q, k = (
                reference.rms_norm(x, seen(norm), 1e-5)
                for x, norm in zip((q, k), norms, strict=True)
            )
        p = positions[row]
        q, k = (reference.rotate(x, cosines[p], sines[p]) for x in (q, k))
        got = seen(qkv[row]).reshape(-1, head_dim)
        assert_close(got[:heads], q, dtype)
        assert np.array_equal(got[heads:], before[row, heads:])
        for head in range(kv_heads):
            key, value = reference.read_token(pages, int(slots[row]), head, head_dim)
            assert_close(key, k[head], dtype)
            assert np.array_equal(value, v[head])
            reference.write_token(expected_blocks, int(slots[row]), head, key, value)
    assert np.array_equal(pages, expected_blocks), "a slot was changed that no row was written to"
