"""Sequences of latents in a paged cache for the tests of attention, and what their tokens see.

Blocks are [num_blocks, block_size, width]. They lie in any order, and all that no token of a test
may see is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from pagoda.kernels.array import Array
from triton_device import DEVICE, HAS_GPU

# Products of bfloat16 do not work in the interpreter.
DTYPES = (torch.float32, torch.float16) + ((torch.bfloat16,) if HAS_GPU else ())


@dataclass(frozen=True, slots=True)
class LatentLayer:
    """What one layer's heads and blocks are like."""

    num_heads: int
    rank: int
    rope_dim: int
    block_size: int
    dtype: torch.dtype

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return self.rank + self.rope_dim

    @property
    def scale(self) -> float:
        """The factor of q · k."""
        return self.width**-0.5


latent_layers = st.builds(
    LatentLayer,
    num_heads=st.sampled_from([1, 5, 16, 17, 40, 128]),
    rank=st.sampled_from([16, 32, 40, 96, 128, 256]),
    rope_dim=st.sampled_from([2, 8, 16, 20, 64]),
    block_size=st.sampled_from([1, 5, 16, 24, 64]),
    dtype=st.sampled_from(DTYPES),
)


@dataclass(frozen=True, slots=True)
class LatentSequences:
    """Sequences with the last `num_queries` tokens of each as queries, on the device."""

    layer: LatentLayer
    blocks: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    query_starts: torch.Tensor
    query: torch.Tensor
    """[Σ num_queries, num_heads, width]"""

    def empty(self) -> torch.Tensor:
        """Where results go: NaN, so that what is not written shows."""
        shape = (*self.query.shape[:2], self.layer.rank)
        return torch.full(shape, float("nan"), dtype=self.query.dtype, device=self.query.device)

    def expected(self, sequence: int) -> Array:
        """[num_queries, num_heads, rank] float64: what a sequence's queries see."""
        first, end = self.query_starts[sequence : sequence + 2].tolist()
        context_len, layer = int(self.context_lens[sequence]), self.layer
        tokens = torch.arange(context_len)
        block_ids = self.block_tables[sequence].cpu()[tokens // layer.block_size].long()
        cached = self.blocks.cpu()[block_ids, tokens % layer.block_size].double().numpy()
        query = self.query[first:end].cpu().double().numpy()
        scores = query @ cached.T * layer.scale
        positions = np.arange(context_len - end + first, context_len)
        unseen = np.arange(context_len) > positions[:, None]
        scores[np.broadcast_to(unseen[:, None], scores.shape)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        seen: Array = weights @ cached[:, : layer.rank] / weights.sum(-1, keepdims=True)
        return seen


def latent_sequences(
    layer: LatentLayer, context_lens: list[int], num_queries: list[int], seed: int = 0
) -> LatentSequences:
    """Random sequences; every unused slot is NaN, and unused entries of tables are far away."""
    rng = np.random.default_rng(seed)
    most_blocks = max(1, -(-max(context_lens) // layer.block_size))
    num_blocks = len(context_lens) * most_blocks + 1
    tables = rng.permutation(num_blocks)[:-1].reshape(-1, most_blocks).astype(np.int32)
    cached = np.full((num_blocks, layer.block_size, layer.width), np.nan, np.float32)
    for sequence, context_len in enumerate(context_lens):
        tokens = np.arange(context_len)
        places = tables[sequence, tokens // layer.block_size], tokens % layer.block_size
        cached[places] = rng.normal(size=(context_len, layer.width))
        used = -(-context_len // layer.block_size)
        tables[sequence, used:] = num_blocks + 1_000_000  # never to be followed
    starts = np.concatenate([[0], np.cumsum(num_queries)]).astype(np.int32)
    query = rng.normal(size=(starts[-1], layer.num_heads, layer.width))
    return LatentSequences(
        layer,
        torch.from_numpy(cached).to(DEVICE, layer.dtype),
        torch.from_numpy(tables).to(DEVICE),
        torch.tensor(context_lens, dtype=torch.int32, device=DEVICE),
        torch.from_numpy(starts).to(DEVICE),
        torch.from_numpy(query).to(DEVICE, layer.dtype),
    )
