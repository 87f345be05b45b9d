"""From the merged projection to queries and the cache: q/k norm, rotary embedding and the write."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit, prange

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.fingerprint import FINGERPRINT
from pagoda.kernels.cpu.number import load, store

_SERIAL_ROWS = 8


@njit(fastmath={"reassoc"}, error_model="numpy")
def _norm_factor(x: Array, eps: np.float32) -> np.float32:
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        value = load(x, i)
        total += value * value
    return np.float32(1.0) / np.sqrt(total / np.float32(x.shape[0]) + eps)


@njit(error_model="numpy")
def _turn(head: Array, cosine: Array, sine: Array) -> None:
    half = cosine.shape[0]
    first, second = head[:half], head[half : 2 * half]
    for i in range(half):
        x, y = first[i], second[i]
        first[i] = x * cosine[i] - y * sine[i]
        second[i] = y * cosine[i] + x * sine[i]


@njit(error_model="numpy")
def _prepare_head(
    head: Array, source: Array, norm: Array, eps: np.float32, cosine: Array, sine: Array
) -> None:
    """Read a head into head: [head_dim] float32, with its norm, if any, and its rotation."""
    if norm.shape[0] > 0:
        factor = _norm_factor(source, eps)
        for i in range(head.shape[0]):
            head[i] = load(source, i) * factor * load(norm, i)
    else:
        for i in range(head.shape[0]):
            head[i] = load(source, i)
    _turn(head, cosine, sine)


@njit(error_model="numpy")
def _write_row(
    row: Array, block: Array, offset: int, block_size: int, num_kv_heads: int,
    cosine: Array, sine: Array, q_norm: Array, k_norm: Array, eps: np.float32,
) -> None:  # fmt: skip
    """Norm and rotate the queries of a row in place; write its K and V at `offset` of the block."""
    head_dim = block.shape[0] // (2 * num_kv_heads * block_size)
    num_heads = row.shape[0] // head_dim - 2 * num_kv_heads
    head = np.empty(head_dim, np.float32)
    for h in range(num_heads):
        query = row[h * head_dim : (h + 1) * head_dim]
        _prepare_head(head, query, q_norm, eps, cosine, sine)
        for i in range(head_dim):
            store(query, i, head[i])
    keys = row[num_heads * head_dim :]
    values = row[(num_heads + num_kv_heads) * head_dim :]
    for h in range(num_kv_heads):
        key = keys[h * head_dim : (h + 1) * head_dim]
        _prepare_head(head, key, k_norm, eps, cosine, sine)
        for i in range(head_dim):
            store(block, (h * head_dim + i) * block_size + offset, head[i])
        value = values[h * head_dim : (h + 1) * head_dim]
        start = ((num_kv_heads + h) * block_size + offset) * head_dim
        target = block[start : start + head_dim]
        for i in range(head_dim):
            store(target, i, load(value, i))


def _rotate_and_write_kernel(fingerprint: int) -> Callable[..., None]:
    @njit(parallel=True, cache=True, nogil=True, error_model="numpy")
    def rotate_and_write(
        qkv: Array, blocks: Array, slot_mapping: Array, positions: Array,
        cosines: Array, sines: Array, q_norm: Array, k_norm: Array,
        num_kv_heads: int, block_size: int, eps: np.float32,
    ) -> None:  # fmt: skip
        """Norm and rotate each row's queries in place, and write its keys and values to the cache.

        qkv: [rows, (num_heads + 2 * num_kv_heads) * head_dim]; the queries in it are changed.
        blocks: [num_blocks, 2 * num_kv_heads * head_dim * block_size], laid out as `storage` says;
        the slots of this step are written.
        slot_mapping: [rows] int64, all distinct; positions: [rows] int32.
        cosines, sines: [positions, rotary_dim / 2] float32; no columns: no rotation.
        q_norm, k_norm: [head_dim]; empty: no norm. eps: float32.
        qkv, blocks and the norms are float32 or bfloat16 bits.
        """
        _ = fingerprint
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

    return rotate_and_write


rotate_and_write = _rotate_and_write_kernel(FINGERPRINT)
