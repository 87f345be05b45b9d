"""What attention does to rows beside its two products, as routines.

A row is one query head of one token. Rows are ordered by KV head first, then by token, then by
query head within its group. The state of some rows after some splits is three runs of float32:
sums [rows, value_dim], Σ p · V; highest [rows], the score that p is relative to; mass [rows], Σ p.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit

from pagoda.kernels.cpu.number import exp2, fma, integer_at, number_at, put_number
from pagoda.kernels.cpu.routine import compiled
from pagoda.kernels.cpu.softmax import LOWEST, SCALE_ROWS, soften


@cache
def load_routine(paired: bool, head_dim: int) -> Any:
    """For queries in bfloat16, which come in pairs, or float32."""

    def load_queries(
        out: int, steps: int, sums: int, queries: int, row_bytes: int, tokens: int, count: int,
        first_head: int, end_head: int, group_size: int,
    ) -> None:  # fmt: skip
        """out = queries of `count` tokens and some KV heads, in the order of rows; steps, [rows]
        float32, what 1 stands for in each: 1. As `round_queries`, which writes sums, too.

        queries: float32, the heads first in each row; tokens: [count] int64, which rows.
        """
        row = 0
        for head in range(first_head, end_head):
            for t in range(count):
                source = queries + integer_at(tokens, t, 64) * row_bytes
                source += head * group_size * head_dim * 4
                for i in range(group_size * head_dim):
                    put_number(out, row * head_dim + i, number_at(source, i, False), paired)
                for g in range(group_size):
                    put_number(steps, row + g, np.float32(1.0), False)
                row += group_size

    return compiled(load_queries, 10)


@cache
def soften_routine(paired: bool, scales: tuple[int, ...] = ()) -> Any:
    """For weights in bfloat16, which come in pairs, or float32, and those rows of scales."""
    beside = "".join(map(str, scales))

    def soften_rows(
        scores: int, weights: int, width: int, used: int, positions: int, tokens: int, count: int,
        num_heads: int, group_size: int, origin: int, begin: int, end: int, window: int,
        scale: int, logit_cap: int, highest: int, mass: int, scales: int, query_sums: int,
        query_steps: int, offsets: int,
    ) -> None:  # fmt: skip
        """From the scores of all rows to weights, highest and mass.

        scores, weights: [rows, width], of which `used` columns count, the first at token `origin`;
        positions: int32, of token tokens[t]: [count] int64. A row sees tokens begin … end - 1, but
        none after its own and none before the `window` that ends there. scale: [1] float32,
        and logit_cap, which may be at 0: there is none. scales: [num_heads, `SCALE_ROWS`, used]
        float32. query_sums and query_steps, read, and offsets, written: [rows] float32. See
        `softmax`.
        """
        factor = number_at(scale, 0, False)
        cap = number_at(logit_cap, 0, False) if logit_cap != 0 else np.float32(0.0)
        size = 2 if paired else 4
        row = 0
        for head in range(num_heads):
            of_head = scales + head * SCALE_ROWS * used * 4
            for t in range(count):
                position = integer_at(positions, integer_at(tokens, t, 64), 32)
                first = max(position - window + 1, begin) - origin
                last = min(position + 1, end) - origin
                for _ in range(group_size):
                    own = factor * number_at(query_steps, row, False)
                    soften(
                        scores + row * width * 4, weights + row * width * size, used, first, last,
                        own, cap, highest + row * 4, mass + row * 4, of_head,
                        query_sums + row * 4, offsets + row * 4, paired, beside,
                    )  # fmt: skip
                    row += 1

    return compiled(soften_rows, 21)


@cache
def merge_routine() -> Any:
    """Add a split's piece to the state of the same rows."""

    def merge_rows(
        sums: int, highest: int, mass: int, added: int, added_highest: int, added_mass: int,
        rows: int, head_dim: int,
    ) -> None:  # fmt: skip
        """Changes the state, the first three, and highest and mass of what is added."""
        for row in range(rows):
            one, other = number_at(highest, row, False), number_at(added_highest, row, False)
            together = max(one, other)
            old, new = exp2(one - together), exp2(other - together)
            grown = number_at(added_mass, row, False) * new
            put_number(highest, row, together, False)
            put_number(mass, row, fma(number_at(mass, row, False), old, grown), False)
            # From here on these are factors.
            put_number(added_highest, row, old, False)
            put_number(added_mass, row, new, False)
        for row in range(rows):
            old, new = number_at(added_highest, row, False), number_at(added_mass, row, False)
            target, source = sums + row * head_dim * 4, added + row * head_dim * 4
            for d in range(head_dim):
                grown = number_at(source, d, False) * new
                put_number(target, d, fma(number_at(target, d, False), old, grown), False)

    return compiled(merge_rows, 8)


@cache
def clear_routine() -> Any:
    """The state of rows before any split."""

    def clear_rows(sums: int, highest: int, mass: int, rows: int, head_dim: int) -> None:
        """Writes all three."""
        for i in range(rows * head_dim):
            put_number(sums, i, np.float32(0.0), False)
        for row in range(rows):
            put_number(highest, row, LOWEST, False)
            put_number(mass, row, np.float32(0.0), False)

    return compiled(clear_rows, 5)


@cache
def save_routine() -> Any:
    """Put a split's piece where it is merged later."""

    def save_rows(
        parts: int, part_bytes: int, starts: int, split: int, tokens: int, count: int,
        first_head: int, end_head: int, num_kv_heads: int, group_size: int, head_dim: int,
        sums: int, highest: int, mass: int,
    ) -> None:  # fmt: skip
        """Part starts[tokens[t]] + split is the state of one token's rows, of all heads."""
        numbers = num_kv_heads * group_size
        row = 0
        for head in range(first_head, end_head):
            for t in range(count):
                part = (
                    parts + (integer_at(starts, integer_at(tokens, t, 64), 64) + split) * part_bytes
                )
                for g in range(group_size):
                    query = head * group_size + g
                    for d in range(head_dim):
                        value = number_at(sums, row * head_dim + d, False)
                        put_number(part, query * head_dim + d, value, False)
                    end = numbers * head_dim
                    put_number(part, end + query, number_at(highest, row, False), False)
                    put_number(part, end + numbers + query, number_at(mass, row, False), False)
                    row += 1

    return compiled(save_rows, 14)


@njit(error_model="numpy")
def joined_inverse(highest: np.float32, mass: np.float32, sink_logit: np.float32) -> np.float32:
    """What sums relative to `highest` are multiplied with once a logit has joined their mass."""
    together = max(highest, sink_logit)
    factor = exp2(highest - together)
    return factor / fma(mass, factor, exp2(sink_logit - together))


@cache
def finish_routine(paired: bool) -> Any:
    """For results in bfloat16, which come in pairs, or float32."""

    def finish_rows(
        out: int, row_bytes: int, tokens: int, count: int, first_head: int, end_head: int,
        group_size: int, head_dim: int, sums: int, highest: int, mass: int, sink_logits: int,
    ) -> None:  # fmt: skip
        """out: rows tokens[t], all heads in each; written: sums divided by their mass.

        sink_logits: [num_heads] float32, each of which joins the mass of its head's rows; or at 0:
        none.
        """
        row = 0
        for head in range(first_head, end_head):
            for t in range(count):
                target = out + integer_at(tokens, t, 64) * row_bytes
                for g in range(group_size):
                    start = (head * group_size + g) * head_dim
                    if sink_logits == 0:
                        inverse = np.float32(1.0) / number_at(mass, row, False)
                    else:
                        inverse = joined_inverse(
                            number_at(highest, row, False), number_at(mass, row, False),
                            number_at(sink_logits, head * group_size + g, False),
                        )  # fmt: skip
                    for d in range(head_dim):
                        value = number_at(sums, row * head_dim + d, False) * inverse
                        put_number(target, start + d, value, paired)
                    row += 1

    return compiled(finish_rows, 12)
