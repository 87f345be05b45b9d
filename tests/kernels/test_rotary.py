from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kept import kept
from kernel_arrays import DTYPES, assert_close, group_of, seen, stored

from pagoda.kernels import reference
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.page_form import PageForm
from pagoda.kernels.cpu.pages import NO_CODES, LayerPages
from pagoda.kernels.cpu.rotary import rotate_and_write, rotate_routine
from pagoda.kernels.cpu.team import phases
from pagoda.kernels.cpu.write import write_routines
from pagoda.kernels.page_layout import plain_layout

CASES = [
    # heads, kv heads, head_dim, rotary_dim, block size, rows, what is normed together
    (4, 2, 32, 32, 16, 1, None),
    (9, 3, 64, 64, 16, 5, None),
    (4, 1, 96, 96, 32, 9, "head"),
    (2, 2, 128, 64, 8, 20, "row"),
    (5, 5, 20, 0, 2, 12, None),
    (16, 1, 256, 256, 64, 3, None),
    (6, 2, 48, 24, 128, 8, "head"),
    (6, 3, 32, 32, 16, 6, "row"),
    (3, 1, 128, 96, 16, 5, None),
    (4, 2, 80, 38, 16, 3, "head"),
]


@kept
def run(*args: Any) -> None:
    rotate_and_write(*args)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_queries_and_cache_are_those_of_the_reference(dtype: str, case: tuple):
    heads, kv_heads, head_dim, rotary_dim, block_size, rows, normed = case
    with_norm, norms_rows = normed is not None, normed == "row"
    rng = np.random.default_rng(rows)
    group = group_of(dtype)
    qkv = rng.normal(size=(rows, (heads + 2 * kv_heads) * head_dim)).astype(np.float32)
    before = qkv.reshape(rows, heads + 2 * kv_heads, head_dim).copy()
    num_blocks = -(-3 * rows // block_size)
    shape = (num_blocks, 2 * kv_heads * head_dim * block_size)
    blocks = stored(rng.normal(size=shape), dtype)
    untouched = blocks.copy()
    slots = rng.permutation(num_blocks * block_size)[:rows]
    positions = rng.integers(0, 50, rows).astype(np.int32)
    sink_positions = np.minimum(positions, 30).astype(np.int32)
    sinks = np.full((rows, heads * head_dim), np.nan, np.float32)
    angles = rng.uniform(0, 6, size=(50, rotary_dim // 2)).astype(np.float32)
    cosines, sines = np.cos(angles), np.sin(angles)
    norms = [
        rng.normal(size=head_dim * (count if norms_rows else 1)).astype(np.float32) + 1
        for count in (heads, kv_heads)
    ]

    eps, counters = np.array([1e-5], np.float32), phases(1)
    places = [norm.ctypes.data if with_norm else 0 for norm in norms]
    write = write_routines(PageForm(dtype == "bfloat16", head_dim, block_size))
    layout = plain_layout(kv_heads, head_dim, block_size, blocks.itemsize)
    run(
        counters.ctypes.data, 2, rotate_routine().address, write, qkv.ctypes.data, rows,
        blocks.ctypes.data, LayerPages(layout, blocks.itemsize, NO_CODES), slots.ctypes.data,
        positions.ctypes.data, sink_positions.ctypes.data, sinks.ctypes.data,
        HeadShape(kv_heads, heads // kv_heads, head_dim, block_size, head_dim),
        cosines.ctypes.data, sines.ctypes.data, rotary_dim // 2, *places,
        int(norms_rows), eps.ctypes.data, 0,
    )  # fmt: skip

    pages = seen(blocks).reshape(num_blocks, 2, kv_heads, -1)
    expected_blocks = seen(untouched).reshape(pages.shape).copy()
    for row in range(rows):
        q, k, v = np.split(before[row], [heads, heads + kv_heads])
        if with_norm:
            together = [x.reshape(1, -1) if norms_rows else x for x in (q, k)]
            q, k = (
                reference.rms_norm(x, norm, 1e-5).reshape(-1, head_dim)
                for x, norm in zip(together, norms, strict=True)
            )
        p = positions[row]
        s = sink_positions[row]
        of_sinks = reference.rotate(q, cosines[s], sines[s])
        assert_close(sinks[row].reshape(heads, head_dim), of_sinks, "float32")
        q, k = (reference.rotate(x, cosines[p], sines[p]) for x in (q, k))
        assert_close(qkv[row].reshape(-1, head_dim)[:heads], q, "float32")
        for head in range(kv_heads):
            slot = int(slots[row])
            key, value = reference.read_token(pages, slot, head, head_dim, group)
            assert_close(key, k[head], dtype)
            assert np.array_equal(value, seen(stored(v[head], dtype)))
            reference.write_token(expected_blocks, slot, head, key, value, group)
    assert np.array_equal(pages, expected_blocks), "a slot was changed that no row was written to"
