"""Blocks copied to blocks of the same memory, in all layers at once.

A block may be the source of one copy and the target of another, so there are two launches: all
sources go to a place of their own before any target is written.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024


# One compiled form whatever is copied: ids of targets begin anywhere behind those of sources, and
# the last layers may be fewer.
@triton.jit(do_not_specialize=["num_layers"], do_not_specialize_on_alignment=["block_ids"])
def copy_kernel(
    memory, staging, layers, block_ids, num_layers, width,
    tile: tl.constexpr, back: tl.constexpr,
):  # fmt: skip
    """One program moves tile words of one block in one layer: out of memory, or back into it."""
    copy, layer = tl.program_id(0).to(tl.int64), tl.program_id(1)
    word = tl.program_id(2) * tile + tl.arange(0, tile)
    first = tl.load(layers + 2 * layer)
    num_words = tl.load(layers + 2 * layer + 1)
    inside = word < num_words
    in_memory = memory + first + tl.load(block_ids + copy) * num_words + word
    staged = staging + (copy * num_layers + layer) * width + word
    if back:
        tl.store(in_memory, tl.load(staged, mask=inside), mask=inside)
    else:
        tl.store(staged, tl.load(in_memory, mask=inside), mask=inside)


def copy_blocks(
    memory: Tensor, staging: Tensor, layers: Tensor, sources: Tensor, targets: Tensor
) -> None:
    """Copy block `sources[i]` to block `targets[i]`, in every one of `layers`. Changes staging.

    memory: the words of all layers; staging: [n or more, L, width] of the same, width at least
    the words of a block in any of the layers; layers: [L, 2] int64: where a layer begins in the
    memory, and how many words a block of it takes; sources, targets: [n] int64; targets are
    distinct. All are contiguous.
    """
    num_copies, num_layers = len(sources), len(layers)
    width = staging.shape[2]
    assert len(targets) == num_copies <= len(staging)
    assert staging.shape[1] == num_layers
    assert staging.is_contiguous()
    grid = (num_copies, num_layers, triton.cdiv(width, _TILE))
    for block_ids, back in ((sources, False), (targets, True)):
        copy_kernel[grid](
            memory, staging, layers, block_ids, num_layers, width, tile=_TILE, back=back
        )
