"""From the merged projection to queries and the cache: q/k norm, rotary embedding and the write."""

from __future__ import annotations

import numpy as np
from numba import njit

from pagoda.kernels.array import Array
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.norm import norm_factor
from pagoda.kernels.cpu.number import store_at
from pagoda.kernels.cpu.team import claim, finish

_ITEM_ROWS = 4


@njit(error_model="numpy")
def _prepare_head(head: Array, norm: Array, eps: np.float32, cosine: Array, sine: Array) -> None:
    """Give a head, [head_dim] float32, its norm, if any, and its rotation."""
    if norm.shape[0] > 0:
        factor = norm_factor(head, eps)
        for i in range(head.shape[0]):
            head[i] = head[i] * factor * norm[i]
    half = cosine.shape[0]
    first, second = head[:half], head[half : 2 * half]
    for i in range(half):
        x, y = first[i], second[i]
        first[i] = x * cosine[i] - y * sine[i]
        second[i] = y * cosine[i] + x * sine[i]


@njit(error_model="numpy")
def _write_row(
    row: Array, block: int, like: Array, offset: int, shape: HeadShape,
    cosine: Array, sine: Array, q_norm: Array, k_norm: Array, eps: np.float32,
) -> None:  # fmt: skip
    """Norm and rotate a row's queries and keys in place; write K and V at `offset` of the block."""
    head_dim, size = shape.head_dim, shape.head_dim * shape.block_size
    group = 4 // like.itemsize
    num_heads = shape.num_kv_heads * shape.group_size
    for h in range(num_heads):
        _prepare_head(row[h * head_dim : (h + 1) * head_dim], q_norm, eps, cosine, sine)
    keys, values = row[num_heads * head_dim :], row[(num_heads + shape.num_kv_heads) * head_dim :]
    for h in range(shape.num_kv_heads):
        key = keys[h * head_dim : (h + 1) * head_dim]
        value = values[h * head_dim : (h + 1) * head_dim]
        _prepare_head(key, k_norm, eps, cosine, sine)
        start = h * size + offset * group
        for i in range(0, head_dim, group):
            for g in range(group):
                store_at(block, start + i * shape.block_size + g, key[i + g], like)
        start = (
            (shape.num_kv_heads + h) * size + offset // group * group * head_dim + offset % group
        )
        for i in range(head_dim):
            store_at(block, start + i * group, value[i], like)


@njit(error_model="numpy")
def rotate_and_write(
    phase: Array, qkv: Array, blocks: int, like: Array, slot_mapping: Array, positions: Array,
    shape: HeadShape, cosines: Array, sines: Array, q_norm: Array, k_norm: Array, eps: np.float32,
) -> None:  # fmt: skip
    """A thread's share of what follows the projection: norm and rotate queries and keys of each
    row in place, and write keys and values to the cache.

    phase: one that nobody has begun, the same for all threads.
    qkv: [rows, (num_heads + 2 * num_kv_heads) * head_dim] float32.
    blocks: address of the layer's, each [2 * num_kv_heads * head_dim * block_size] of float32 or
    bfloat16 bits, laid out as `storage` says; like: an array of their dtype. The slots of this step
    are written. slot_mapping: [rows] int64, all distinct; positions: [rows] int32.
    cosines, sines: [positions, rotary_dim / 2] float32; no columns: no rotation.
    q_norm, k_norm: [head_dim] float32; empty: no norm. eps: float32.
    """
    rows = qkv.shape[0]
    block_bytes = 2 * shape.num_kv_heads * shape.head_dim * shape.block_size * like.itemsize
    total = (rows + _ITEM_ROWS - 1) // _ITEM_ROWS
    mine = 0
    item = claim(phase)
    while item < total:
        for r in range(item * _ITEM_ROWS, min((item + 1) * _ITEM_ROWS, rows)):
            p, slot = positions[r], slot_mapping[r]
            block = blocks + slot // shape.block_size * block_bytes
            _write_row(
                qkv[r], block, like, slot % shape.block_size, shape,
                cosines[p], sines[p], q_norm, k_norm, eps,
            )  # fmt: skip
        mine += 1
        item = claim(phase)
    finish(phase, mine, total)
