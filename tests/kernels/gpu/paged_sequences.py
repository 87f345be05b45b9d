"""Sequences in a paged cache for the tests of attention, and the plain truth of what tokens see.

Blocks are [num_blocks, 2, num_kv_heads, block_size, head_dim], keys and then values. They lie in
any order, and all that no token of a test may see is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from pagoda.cache import AttentionWindow
from pagoda.cache.block import HOLE
from pagoda.cache.window import FULL_ATTENTION
from pagoda.kernels.array import Array
from pagoda.kernels.gpu.windows import Windows
from triton_device import DEVICE, HAS_GPU

# Products of bfloat16 do not work in the interpreter.
DTYPES = (torch.float32, torch.float16) + ((torch.bfloat16,) if HAS_GPU else ())
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Largest error, relative to the largest value."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one layer's heads and blocks are like."""

    head_dim: int
    group_size: int
    num_kv_heads: int
    block_size: int
    dtype: torch.dtype

    @property
    def num_heads(self) -> int:
        """Heads of queries."""
        return self.group_size * self.num_kv_heads

    @property
    def scale(self) -> float:
        """The factor of q · k."""
        return self.head_dim**-0.5


cache_shapes = st.builds(
    CacheShape,
    head_dim=st.sampled_from([16, 32, 64, 80, 96, 112, 128, 160, 256]),
    group_size=st.integers(1, 16),
    num_kv_heads=st.integers(1, 2),
    block_size=st.sampled_from([1, 5, 16, 24, 32, 64]),
    dtype=st.sampled_from(DTYPES),
)


windows = st.one_of(
    st.none(),
    st.builds(AttentionWindow, st.integers(1, 300)),
    st.builds(AttentionWindow, st.integers(1, 200), st.integers(1, 150)),
)


@dataclass(frozen=True, slots=True)
class PagedSequences:
    """Sequences with the last `num_queries` tokens of each as queries, on the device."""

    shape: CacheShape
    window: AttentionWindow | None
    """None: kernels are asked without any."""
    blocks: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    query_starts: torch.Tensor
    query: torch.Tensor
    """[Σ num_queries, num_heads, head_dim]"""
    sink_query: torch.Tensor
    """Likewise"""
    logit_cap: float | None = None
    sink_logits: torch.Tensor | None = None
    """[num_heads]"""

    @property
    def windows(self) -> Windows | None:
        """What kernels are told."""
        if self.window is None:
            return None
        sizes = torch.tensor([[self.window.window, self.window.sinks]], dtype=torch.int32)
        sizes = sizes.repeat(len(self.context_lens), 1).to(self.query.device)
        return Windows(sizes, self.sink_query if self.window.sinks else None)

    @property
    def softmax(self) -> dict[str, Any]:
        """What kernels are told of it by name."""
        return {"logit_cap": self.logit_cap, "sink_logits": self.sink_logits}

    def empty(self) -> torch.Tensor:
        """Where results go: NaN, so that what is not written shows."""
        return torch.full_like(self.query, float("nan"))

    def expected(self, sequence: int) -> Array:
        """[num_queries, num_heads, head_dim] float64: what a sequence's queries see."""
        first, end = self.query_starts[sequence : sequence + 2].tolist()
        context_len = int(self.context_lens[sequence])
        return np.array(
            [self._seen(row, sequence, context_len - end + row) for row in range(first, end)]
        )

    def _seen(self, row: int, sequence: int, position: int) -> Array:
        tokens = torch.tensor(seen_tokens(self.window, position))
        block_ids = self.block_tables[sequence].cpu()[tokens // self.shape.block_size]
        cached = self.blocks.cpu()[block_ids.long(), :, :, tokens % self.shape.block_size]
        keys, values = np.moveaxis(cached.double().numpy(), 1, 0)  # [tokens, num_kv_heads, dim]
        is_sink = tokens.numpy() < (self.window.sinks if self.window else 0)
        own, of_sinks = (x[row].cpu().double().numpy() for x in (self.query, self.sink_query))
        out = np.zeros(own.shape)
        for head in range(len(own)):
            kv_head = head // self.shape.group_size
            queries = np.where(is_sink[:, None], of_sinks[head], own[head])
            scores = (keys[:, kv_head] * queries).sum(1) * self.shape.scale
            if self.logit_cap is not None:
                scores = self.logit_cap * np.tanh(scores / self.logit_cap)
            if self.sink_logits is not None:
                scores = np.append(scores, float(self.sink_logits[head]))
            weights = np.exp(scores - scores.max())
            out[head] = weights[: len(values)] @ values[:, kv_head] / weights.sum()
        return out


def seen_tokens(window: AttentionWindow | None, position: int) -> list[int]:
    """What the row at a position sees."""
    window = window or FULL_ATTENTION
    first = max(window.first_in_window(position), window.sinks)
    return [*range(min(window.sinks, position + 1)), *range(first, position + 1)]


def paged_sequences(
    shape: CacheShape,
    context_lens: list[int],
    num_queries: list[int],
    window: int | AttentionWindow | None = None,
    seed: int = 0,
) -> PagedSequences:
    """Random sequences. What their queries cannot see, and every unused slot, is NaN; a block of
    which they see nothing has a hole in its place, or a number that must not be followed."""
    if isinstance(window, int):
        window = AttentionWindow(window)
    rng = np.random.default_rng(seed)
    most_blocks = max(1, -(-max(context_lens) // shape.block_size))
    num_blocks = len(context_lens) * most_blocks + 1
    block_tables = rng.permutation(num_blocks)[:-1].reshape(-1, most_blocks).astype(np.int32)
    cached = np.full(
        (num_blocks, 2, shape.num_kv_heads, shape.block_size, shape.head_dim), np.nan, np.float32
    )
    for sequence, (context_len, length) in enumerate(zip(context_lens, num_queries, strict=True)):
        lowest = max(context_len - length, 0)
        seen = {*seen_tokens(window, lowest), *range(lowest, context_len)}
        if window is not None:
            seen |= set(range(min(window.sinks, context_len)))
        for token in seen & set(range(context_len)):
            block = block_tables[sequence, token // shape.block_size]
            place = cached[block, :, :, token % shape.block_size]
            place[:] = rng.normal(size=place.shape)
        used = -(-context_len // shape.block_size)
        block_tables[sequence, used:] = num_blocks + 1_000_000  # never to be followed
        if window is not None:
            for number in window.unseen_blocks(lowest, shape.block_size):
                block_tables[sequence, number] = HOLE if number % 2 else -1_000_000
    starts = np.concatenate([[0], np.cumsum(num_queries)]).astype(np.int32)
    queries = rng.normal(size=(2, starts[-1], shape.num_heads, shape.head_dim))
    return PagedSequences(
        shape,
        window,
        torch.from_numpy(cached).to(DEVICE, shape.dtype),
        torch.from_numpy(block_tables).to(DEVICE),
        torch.tensor(context_lens, dtype=torch.int32, device=DEVICE),
        torch.from_numpy(starts).to(DEVICE),
        *torch.from_numpy(queries).to(DEVICE, shape.dtype),
    )


softmaxes = st.one_of(
    st.just((None, None)),
    st.tuples(st.sampled_from([None, 0.5, 5.0, 50.0]), st.sampled_from([None, -3.0, 0.0, 6.0])),
)


def with_softmax(
    case: PagedSequences, logit_cap: float | None, level: float | None
) -> PagedSequences:
    """A case with a cap, and with random sink logits near a level."""
    if level is None:
        return replace(case, logit_cap=logit_cap)
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=case.shape.num_heads) + level)
    own = logits.to(case.query.device, torch.float32)
    return replace(case, logit_cap=logit_cap, sink_logits=own)


def assert_near(got: torch.Tensor, expected: Array) -> None:
    """Equal within what the dtype allows; NaN is equal to nothing."""
    error = np.abs(got.cpu().double().numpy() - expected)
    assert (error <= TOLERANCE[got.dtype] * np.abs(expected).max(initial=1e-3)).all()
