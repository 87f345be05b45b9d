"""Attention of single rows over a paged cache: one new token of each sequence."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import njit, prange

from pagoda.kernels.cpu.number import exp2, load, store

_SPLIT_TOKENS = 256


def split_tokens(block_size: int) -> int:
    """Tokens of context that one piece of work covers: whole blocks, near 256 tokens.

    The pieces are fixed by position, never by how many threads or rows there are, so that a row's
    result depends on neither.
    """
    return block_size * -(-_SPLIT_TOKENS // block_size)


@cache
def decode_attention_kernel(head_dim: int, group_size: int, block_size: int) -> Callable[..., None]:
    """The kernel for heads of `head_dim`, `group_size` query heads to a KV head, and a block size.

    The numbers are constants of the compiled code, which is kept on disk for each set of them.
    """
    split = split_tokens(block_size)

    @njit(
        parallel=True,
        cache=True,
        nogil=True,
        error_model="numpy",
        fastmath={"contract", "nsz", "nnan"},
    )
    def decode_attention(
        out,
        queries,
        keys,
        values,
        block_tables,
        context_lens,
        rows,
        work_sequences,
        work_splits,
        scale,
        window,
        partial,
        stats,
    ):
        num_kv_heads = keys.shape[1]
        for item in prange(work_sequences.shape[0] * num_kv_heads):
            work = item // num_kv_heads
            head = item - work * num_kv_heads
            sequence = work_sequences[work]
            context = context_lens[sequence]
            row = rows[sequence]
            first = max(context - window, 0)
            begin = max(work_splits[work] * split, first // block_size * block_size)
            end = min((work_splits[work] + 1) * split, context)

            query = np.empty((group_size, head_dim), np.float32)
            start = head * group_size * head_dim
            for g in range(group_size):
                for d in range(head_dim):
                    query[g, d] = load(queries[row], start + g * head_dim + d) * scale
            scores = np.empty((group_size, split), np.float32)
            total = partial[item]
            for g in range(group_size):
                stats[item, g, 0] = np.float32(-1e30)
                stats[item, g, 1] = np.float32(0.0)
                for d in range(head_dim):
                    total[g, d] = np.float32(0.0)
            if begin >= end:
                continue
            num_tokens = end - begin
            num_blocks = (num_tokens + block_size - 1) // block_size
            for b in range(num_blocks):
                key = keys[block_tables[sequence, begin // block_size + b], head]
                offset = b * block_size
                for g in range(group_size):
                    for t in range(block_size):
                        scores[g, offset + t] = np.float32(0.0)
                for d in range(head_dim):
                    for g in range(group_size):
                        q = query[g, d]
                        for t in range(block_size):
                            scores[g, offset + t] += q * load(key, (d, t))
            for g in range(group_size):
                for t in range(max(first - begin, 0)):
                    scores[g, t] = np.float32(-1e30)
                highest = np.float32(-1e30)
                for t in range(num_tokens):
                    highest = max(highest, scores[g, t])
                mass = np.float32(0.0)
                for t in range(num_tokens):
                    p = exp2(scores[g, t] - highest)
                    scores[g, t] = p
                for t in range(num_tokens):
                    mass += scores[g, t]
                stats[item, g, 0] = highest
                stats[item, g, 1] = mass
            for b in range(num_blocks):
                value = values[block_tables[sequence, begin // block_size + b], head]
                offset = b * block_size
                for t in range(min(block_size, num_tokens - offset)):
                    for g in range(group_size):
                        p = scores[g, offset + t]
                        for d in range(head_dim):
                            total[g, d] += p * load(value, (t, d))

        # Merge the pieces of each sequence, in the order of their positions.
        num_sequences = context_lens.shape[0]
        for item in prange(num_sequences * num_kv_heads):
            sequence = item // num_kv_heads
            head = item - sequence * num_kv_heads
            row = rows[sequence]
            first_work = np.searchsorted(work_sequences, sequence)
            last_work = np.searchsorted(work_sequences, sequence, side="right")
            merged = np.empty(head_dim, np.float32)
            for g in range(group_size):
                highest = np.float32(-1e30)
                for work in range(first_work, last_work):
                    highest = max(highest, stats[work * num_kv_heads + head, g, 0])
                mass = np.float32(0.0)
                for d in range(head_dim):
                    merged[d] = np.float32(0.0)
                for work in range(first_work, last_work):
                    piece = work * num_kv_heads + head
                    weight = exp2(stats[piece, g, 0] - highest)
                    mass += weight * stats[piece, g, 1]
                    for d in range(head_dim):
                        merged[d] += weight * partial[piece, g, d]
                inverse = np.float32(1.0) / mass
                start = (head * group_size + g) * head_dim
                for d in range(head_dim):
                    store(out[row], start + d, merged[d] * inverse)

    return decode_attention
