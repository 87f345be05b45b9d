"""From the merged projection to queries and the cache: q/k norm, rotary embedding and the write."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from pagoda.kernels.cpu.number import load, store

_SERIAL_ROWS = 8


@njit(fastmath={"contract", "nsz", "reassoc"}, error_model="numpy")
def _norm_factor(row, start, width, eps):
    total = np.float32(0.0)
    for i in range(width):
        x = load(row, start + i)
        total += x * x
    return np.float32(1.0) / np.sqrt(total / np.float32(width) + eps)


@njit(fastmath={"contract", "nsz"}, error_model="numpy")
def _prepare_head(head, row, start, norm, eps, cosine, sine):
    """Read a head from row[start:], norm and rotate it into head: [head_dim] float32."""
    width = head.shape[0]
    if norm.shape[0] > 0:
        factor = _norm_factor(row, start, width, eps)
        for i in range(width):
            head[i] = load(row, start + i) * factor * load(norm, i)
    else:
        for i in range(width):
            head[i] = load(row, start + i)
    half = cosine.shape[0]
    for i in range(half):
        first = head[i]
        second = head[half + i]
        head[i] = first * cosine[i] - second * sine[i]
        head[half + i] = second * cosine[i] + first * sine[i]


@njit(fastmath={"contract", "nsz"}, error_model="numpy")
def _write_row(row, block, offset, block_size, num_kv_heads, cosine, sine, q_norm, k_norm, eps):
    """Norm and rotate the queries of a row in place; write its K and V at `offset` of the block."""
    head_dim = block.shape[0] // (2 * num_kv_heads * block_size)
    num_heads = row.shape[0] // head_dim - 2 * num_kv_heads
    head = np.empty(head_dim, np.float32)
    for h in range(num_heads):
        start = h * head_dim
        _prepare_head(head, row, start, q_norm, eps, cosine, sine)
        for i in range(head_dim):
            store(row, start + i, head[i])
    for h in range(num_kv_heads):
        _prepare_head(head, row, (num_heads + h) * head_dim, k_norm, eps, cosine, sine)
        for i in range(head_dim):
            store(block, (h * head_dim + i) * block_size + offset, head[i])
        start = (num_heads + num_kv_heads + h) * head_dim
        target = ((num_kv_heads + h) * block_size + offset) * head_dim
        for i in range(head_dim):
            store(block, target + i, load(row, start + i))


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def rotate_and_write(
    qkv, blocks, slot_mapping, positions, cosines, sines, q_norm, k_norm, num_kv_heads, block_size,
    eps,
):  # fmt: skip
    """Norm and rotate each row's queries in place, and write its keys and values to the cache.

    qkv: [rows, (num_heads + 2 * num_kv_heads) * head_dim]; the queries in it are changed.
    blocks: [num_blocks, 2 * num_kv_heads * head_dim * block_size], laid out as `storage` says;
    the slots of this step are written.
    slot_mapping: [rows] int64, all distinct; positions: [rows] int32.
    cosines, sines: [positions, rotary_dim / 2] float32; no columns: no rotation.
    q_norm, k_norm: [head_dim]; empty: no norm. eps: float32.
    qkv, blocks and the norms are float32 or bfloat16 bits.
    """
    num_rows = qkv.shape[0]
    if num_rows < _SERIAL_ROWS:
        for r in range(num_rows):
            p, slot = positions[r], slot_mapping[r]
            _write_row(
                qkv[r], blocks[slot // block_size], slot % block_size, block_size, num_kv_heads,
                cosines[p], sines[p], q_norm, k_norm, eps,
            )  # fmt: skip
    else:
        for r in prange(num_rows):
            p, slot = positions[r], slot_mapping[r]
            _write_row(
                qkv[r], blocks[slot // block_size], slot % block_size, block_size, num_kv_heads,
                cosines[p], sines[p], q_norm, k_norm, eps,
            )  # fmt: skip
