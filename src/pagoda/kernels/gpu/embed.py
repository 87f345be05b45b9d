"""Where the residual stream begins: each token's row of the embedding.

A token that the step before has drawn is looked up here, so nobody has to wait for it: the host
knows only its place among those that were drawn.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def embed_kernel(
    stream, embedding, token_ids, takes_drawn, drawn_places, drawn,
    width: tl.constexpr, tile: tl.constexpr, scale: tl.constexpr,
):  # fmt: skip
    """See `embed`; one program has one row, and tile is a power of two from width on."""
    row = tl.program_id(0).to(tl.int64)
    known = tl.load(token_ids + row).to(tl.int64)
    is_drawn = tl.load(takes_drawn + row) != 0
    place = tl.load(drawn_places + row)
    token = tl.where(is_drawn, tl.load(drawn + place, mask=is_drawn, other=0).to(tl.int64), known)
    column = tl.arange(0, tile)
    inside = column < width
    x = tl.load(embedding + token * width + column, mask=inside, other=0.0)
    x = x.to(tl.float32)
    if scale != 1.0:
        x *= scale
    tl.store(stream + row * width + column, x, mask=inside)


def embed(
    stream: Tensor,
    embedding: Tensor,
    token_ids: Tensor,
    takes_drawn: Tensor,
    drawn_places: Tensor,
    drawn: Tensor,
    scale: float = 1.0,
) -> None:
    """Write scale · the embedding [vocab, width] of each row's token to stream: [T, width] float32.

    Row i's token is drawn[drawn_places[i]] where takes_drawn[i] is not 0, else token_ids[i]. These
    three are [T] int32; drawn: [any number] int64. All are contiguous.
    """
    num_rows, width = stream.shape
    assert token_ids.shape == takes_drawn.shape == drawn_places.shape == (num_rows,)
    assert embedding.shape[1] == width
    inputs = (stream, embedding, token_ids, takes_drawn, drawn_places, drawn)
    assert all(each.is_contiguous() for each in inputs)
    tile = triton.next_power_of_2(width)
    num_warps = min(16, max(1, tile // 512))
    embed_kernel[(num_rows,)](
        stream, embedding, token_ids, takes_drawn, drawn_places, drawn,
        width=width, tile=tile, scale=scale, num_warps=num_warps,
    )  # fmt: skip
