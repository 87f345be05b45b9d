"""What programs leave that have each seen one split of a context, and how it becomes one result.

A part is one query head of one row over one split (Flash-Decoding, Dao et al., 2023): the sum of
the values it saw, divided by the sum of their weights, and the logarithm of that sum of weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from pagoda.kernels.gpu.attention_tile import joined, load_rows


class PartialSums(NamedTuple):
    """Memory for parts; only what one call wrote is read by the same call."""

    sums: torch.Tensor
    """[parts, head_dim] float32, divided by the sum of the weights."""
    masses: torch.Tensor
    """[parts] float32: log2 of Σ 2 ** (score · scale · log2(e))."""

    @classmethod
    def of(cls, num_parts: int, head_dim: int, device: torch.device) -> PartialSums:
        """Memory for up to so many parts of so many numbers."""
        return cls(
            torch.empty((num_parts, head_dim), dtype=torch.float32, device=device),
            torch.empty(num_parts, dtype=torch.float32, device=device),
        )


@triton.jit
def merged_parts(
    sums, masses, parts, used, head, sink_logits, head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
):  # fmt: skip
    """The result of `parts`, int64, those of one row and head in the order of their splits.

    used: [parts] bool; at least one of the used parts saw a token. sink_logits: [heads], of which
    that of `head` joins the mass, or None. Returns [padded_dim] float32.
    """
    log_masses = tl.load(masses + parts, mask=used, other=float("-inf"))
    rows = load_rows(sums + parts * head_dim, used, head_dim, padded_dim)
    highest = tl.max(log_masses, 0)
    weights = tl.exp2(log_masses - highest)
    mass = tl.sum(weights, 0)
    merged = tl.sum(rows * weights[:, None], 0)
    if sink_logits is not None:
        decay, mass = joined(mass, highest, tl.load(sink_logits + head))
        merged *= decay
    return merged / mass
