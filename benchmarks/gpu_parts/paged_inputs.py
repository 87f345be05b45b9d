"""Random sequences in a paged cache, with what attention should make of them in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pagoda.kernels.gpu.decode_attention import decode_attention
from pagoda.kernels.gpu.partial_sums import PartialSums
from pagoda.kernels.gpu.parts import PREFILL_PARTS, decode_parts
from pagoda.kernels.gpu.pinned import to_device
from pagoda.kernels.gpu.prefill_attention import prefill_attention
from pagoda.kernels.gpu.prefill_tiling import AttentionKind, PrefillTiling, tile_prefill
from pagoda.kernels.gpu.windows import Windows


@dataclass(frozen=True, slots=True)
class Heads:
    """What a layer's attention looks like."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 16
    window: int | None = None

    @property
    def group_size(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence: its context, of which the last tokens are computed in this step."""

    context: int
    num_queries: int

    @property
    def attended(self) -> int:
        """Tokens that its queries see, added up, without a window."""
        return self.num_queries * (2 * self.context - self.num_queries + 1) // 2


class PagedInputs:
    """Blocks, tables and queries of some sequences; blocks lie in random order."""

    def __init__(
        self, heads: Heads, spans: Sequence[Span], like: torch.Tensor, generator: torch.Generator
    ) -> None:
        """`like` gives dtype and device."""
        self.heads, self.spans = heads, spans
        num_blocks = [-(-span.context // heads.block_size) for span in spans]
        order = np.random.default_rng(generator.initial_seed()).permutation(sum(num_blocks))
        tables = np.zeros((len(spans), max(num_blocks)), np.int32)
        starts = [0, *itertools.accumulate(num_blocks)]
        for index, (first, last) in enumerate(itertools.pairwise(starts)):
            tables[index, : last - first] = order[first:last]
        shape = (sum(num_blocks), 2, heads.num_kv_heads, heads.block_size, heads.head_dim)
        self.blocks = like.new_empty(shape).normal_(generator=generator)
        num_tokens = sum(span.num_queries for span in spans)
        self.query = like.new_empty(num_tokens, heads.num_heads, heads.head_dim)
        self.query.normal_(generator=generator)
        self.out = torch.zeros_like(self.query)
        self.starts = [0, *itertools.accumulate(span.num_queries for span in spans)]
        self.tables = to_device(tables, like.device)
        contexts = np.array([span.context for span in spans], np.int32)
        self.context_lens = to_device(contexts, like.device)

    @property
    def windows(self) -> Windows | None:
        """What the sequences see; None: all."""
        if self.heads.window is None:
            return None
        sizes = np.array([(self.heads.window, 0)] * len(self.spans), np.int32)
        return Windows(to_device(sizes, self.query.device), None)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys and values that are seen, without a window."""
        numbers = 2 * self.heads.num_kv_heads * self.heads.head_dim
        return sum(span.context for span in self.spans) * numbers * self.blocks.element_size()

    @property
    def moved_bytes(self) -> int:
        """Keys, values and queries read, results written."""
        return self.kv_bytes + 2 * self.query.nbytes

    @property
    def operations(self) -> int:
        """Operations of both products of attention that the causal mask lets through."""
        numbers = 4 * self.heads.num_heads * self.heads.head_dim
        return numbers * sum(span.attended for span in self.spans)

    def decode(self) -> Callable[[], None]:
        """Launches decode attention of every sequence's one query."""
        heads, device, windows = self.heads, self.query.device, self.windows
        rows = torch.arange(len(self.spans), dtype=torch.int32, device=device)
        num_parts = decode_parts(len(self.spans), heads.num_heads)
        workspace = PartialSums.of(num_parts, heads.head_dim, device)
        return lambda: decode_attention(
            self.out, self.query, self.blocks, self.tables, self.context_lens, rows, rows,
            heads.scale, windows, workspace,
        )  # fmt: skip

    def prefill(self) -> Callable[[], None]:
        """Launches prefill attention of all queries."""
        heads, device = self.heads, self.query.device
        kind, windows = AttentionKind(heads.num_heads, heads.num_kv_heads), self.windows
        sizes = None if windows is None else windows.sizes.cpu().numpy()
        starts = np.array(self.starts, np.int32)
        contexts = np.array([span.context for span in self.spans], np.int32)
        on_host = tile_prefill(kind, starts, contexts, np.arange(len(self.spans)), sizes)
        tiles, merges = to_device(on_host.tiles, device), to_device(on_host.merges, device)
        plan = PrefillTiling(kind, tiles, merges, on_host.rounds)
        partial = PartialSums.of(PREFILL_PARTS, heads.head_dim, device)
        return lambda: prefill_attention(
            self.out, self.query, self.blocks, self.tables, plan, heads.scale, windows, partial
        )

    def rows(self, index: int, last: int) -> slice:
        """Where the last queries of a sequence lie among all."""
        end = self.starts[index + 1]
        return slice(max(self.starts[index], end - last), end)

    def dense(self, index: int) -> torch.Tensor:
        """Keys and values of one sequence without blocks: [2, Hkv, context, D]."""
        heads, context = self.heads, self.spans[index].context
        table = self.tables[index, : -(-context // heads.block_size)].long()
        picked = self.blocks[table].permute(1, 2, 0, 3, 4)
        flat = picked.reshape(2, heads.num_kv_heads, -1, heads.head_dim)
        return flat[:, :, :context].contiguous()

    def truth(self, index: int, last: int) -> torch.Tensor:
        """What a sequence's last queries see, in float64: [queries, Hq, D]."""
        heads, context = self.heads, self.spans[index].context
        rows = self.rows(index, last)
        query = self.query[rows].double().transpose(0, 1)
        keys, values = self.dense(index).double().repeat_interleave(heads.group_size, dim=1)
        tokens = torch.arange(context, device=query.device)
        positions = tokens[context - query.shape[1] :, None]
        seen = tokens <= positions
        if heads.window is not None:
            seen &= tokens > positions - heads.window
        scores = query @ keys.transpose(1, 2) * heads.scale
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return (weights @ values).transpose(0, 1)

    def error(self, out: torch.Tensor, *, sequences: int, last: int) -> float:
        """Relative error of the last queries of the first sequences; the largest of them."""
        count = min(sequences, len(self.spans))
        return max(
            relative_error(out[self.rows(index, last)], self.truth(index, last))
            for index in range(count)
        )


def relative_error(found: torch.Tensor, truth: torch.Tensor) -> float:
    """‖found − truth‖ ÷ ‖truth‖ (Frobenius), in float64; infinite where a number is missing."""
    error = (found.double() - truth).norm() / truth.norm()
    return float("inf") if torch.isnan(error) else error.item()
