"""What kernels are compiled for where latents are codes: where the parts of a block begin.

    codes [block_size, rank] | shared keys [block_size, rope_dim] | scales [block_size, groups]

The parts begin where `LatentCode` says; within each, tokens follow one another.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from pagoda.kernels.latent_code import LatentCode
from pagoda.kernels.vector_code import FLOAT8_FORMS, Float8Form


class LatentForm(NamedTuple):
    """A block of one layer."""

    numbers: str
    """As `LatentCode` has them."""
    float8: Float8Form | None
    """What a code is, of a float8."""
    group_size: int
    num_groups: int
    shared: int
    """Bytes of a block before the first shared key."""
    scales: int
    """Bytes of a block before the first token's scales."""
    scale_bytes: int
    """Of one scale, float32."""
    block_size: int
    block_bytes: int
    """From block to block."""

    @classmethod
    def of(cls, code: LatentCode, block_size: int, block_bytes: int) -> LatentForm:
        """For blocks that may be wider than they need to be."""
        assert code.token_bytes * block_size <= block_bytes
        return cls(
            code.numbers, FLOAT8_FORMS.get(code.numbers), code.group_size, code.num_groups,
            code.shared_start * block_size, code.scales_start * block_size, 4, block_size,
            block_bytes,
        )  # fmt: skip


class LatentPages(NamedTuple):
    """What kernels need to know of blocks of latents, plain or coded."""

    block_size: int
    block_numbers: int
    """From block to block, in what blocks are a tensor of."""


def latent_pages(blocks: torch.Tensor, width: int, form: LatentForm | None) -> LatentPages:
    """Of [num_blocks, block_size, width], a block's own numbers side by side, or [num_blocks,
    bytes] of that form."""
    if form is not None:
        assert blocks.is_contiguous()
        assert blocks.shape[1] == form.block_bytes
        return LatentPages(form.block_size, form.block_bytes)
    _, size, own_width = blocks.shape
    assert own_width == width
    assert blocks.stride()[1:] == (width, 1)
    return LatentPages(size, blocks.stride(0))
