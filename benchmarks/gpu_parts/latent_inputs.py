"""Random sequences of latents in a paged cache, with what attention should make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from gpu_parts.paged_inputs import Heads, PagedInputs, Span
from pagoda.kernels.gpu.latent_decode import latent_decode
from pagoda.kernels.gpu.latent_prefill import latent_prefill
from pagoda.kernels.gpu.partial_sums import PartialSums
from pagoda.kernels.gpu.parts import PREFILL_PARTS, latent_decode_parts
from pagoda.kernels.gpu.pinned import to_device
from pagoda.kernels.gpu.prefill_tiling import AttentionKind, PrefillTiling, tile_prefill


class LatentInputs(PagedInputs):
    """Blocks, tables and absorbed queries: one KV head whose values are the first numbers of its
    keys."""

    def __init__(
        self, heads: Heads, rank: int, spans: Sequence[Span], like: torch.Tensor,
        generator: torch.Generator,
    ) -> None:  # fmt: skip
        super().__init__(heads, spans, like, generator)
        self.rank = rank
        self.blocks = self.blocks[:, 0, 0].contiguous()
        self.out = self.query.new_zeros(*self.query.shape[:2], rank)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the latents and shared keys that are seen."""
        numbers = sum(span.context for span in self.spans) * self.heads.head_dim
        return numbers * self.blocks.element_size()

    @property
    def moved_bytes(self) -> int:
        """Latents, shared keys and queries read, results written."""
        return self.kv_bytes + self.query.nbytes + self.out.nbytes

    @property
    def operations(self) -> int:
        """Of scores, and of sums of latents."""
        numbers = 2 * self.heads.num_heads * (self.heads.head_dim + self.rank)
        return numbers * sum(span.attended for span in self.spans)

    def decode(self) -> Callable[[], None]:
        """Launches decode attention of every sequence's one query."""
        device, scale = self.query.device, self.heads.scale
        rows = torch.arange(len(self.spans), dtype=torch.int32, device=device)
        num_parts = latent_decode_parts(len(self.spans), self.heads.num_heads)
        partial = PartialSums.of(num_parts, self.rank, device)
        return lambda: latent_decode(
            self.out, self.query, self.blocks, self.tables, self.context_lens, rows, rows, scale,
            partial,
        )  # fmt: skip

    def prefill(self) -> Callable[[], None]:
        """Launches prefill attention of all queries."""
        kind = AttentionKind(self.heads.num_heads, 1)
        device, scale = self.query.device, self.heads.scale
        starts = np.array(self.starts, np.int32)
        contexts = np.array([span.context for span in self.spans], np.int32)
        on_host = tile_prefill(kind, starts, contexts, np.arange(len(self.spans)))
        tiles, merges = to_device(on_host.tiles, device), to_device(on_host.merges, device)
        plan = PrefillTiling(kind, tiles, merges, on_host.rounds)
        partial = PartialSums.of(PREFILL_PARTS, self.rank, device)
        return lambda: latent_prefill(
            self.out, self.query, self.blocks, self.tables, plan, scale, partial
        )

    def dense(self, index: int) -> torch.Tensor:
        """Vectors of one sequence without blocks, as keys and as values: [2, 1, context, width]."""
        heads, context = self.heads, self.spans[index].context
        table = self.tables[index, : -(-context // heads.block_size)].long()
        vectors = self.blocks[table].reshape(-1, heads.head_dim)[:context]
        return torch.stack([vectors, vectors])[:, None]

    def truth(self, index: int, last: int) -> torch.Tensor:
        """What a sequence's last queries see, in float64: [queries, heads, rank]."""
        return super().truth(index, last)[..., : self.rank]
