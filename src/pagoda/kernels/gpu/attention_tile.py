"""What attention over a paged cache does with one tile of tokens; decode and prefill share it.

A tile is a run of tokens whose keys, and whose values, are read at once. Where tiles start depends
on positions alone: at multiples of their length. A tile may span several blocks, or be a part of
one; each of its tokens finds its own block, so any block size is right.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

LOG2_E = math.log2(math.e)
"""The scale of scores is multiplied by it, and powers of two stand for those of e."""

NOTHING_YET = tl.constexpr(-3.0e38)
"""The highest score before the first; finite, so that no difference of two infinities arises."""

ON_AMD = torch.version.hip is not None

NUM_STAGES = 2 if ON_AMD else 3
"""Stages of the pipeline. On NVIDIA two tiles are on their way while one is worked on. On AMD
it is one, in registers: two would fill the shared memory of a compute unit with one program."""


@triton.jit
def block_ids_of(table, tokens, visible, block_size: tl.constexpr):
    """The blocks that tokens lie in, read from a sequence's block table; 0 where not visible."""
    return tl.load(table + tokens.to(tl.uint32) // block_size, mask=visible, other=0)


@triton.jit
def key_offsets(
    block_ids, tokens, head,
    num_kv_heads: tl.constexpr, block_size: tl.constexpr, head_dim: tl.constexpr,
):  # fmt: skip
    """Where keys of tokens start in `blocks`, int64; values are num_kv_heads runs further on."""
    # Unsigned: the remainder of a number that may be negative takes three times the instructions.
    in_block = (head * block_size + tokens.to(tl.uint32) % block_size) * head_dim
    return block_ids.to(tl.int64) * (2 * num_kv_heads * block_size * head_dim) + in_block


@triton.jit
def load_rows(pointers, visible, head_dim: tl.constexpr, padded_dim: tl.constexpr):
    """Rows of head_dim numbers, padded with zeros; `visible`: [rows] bool, or None for all."""
    dims = tl.arange(0, padded_dim)
    places = pointers[:, None] + dims[None, :]
    if head_dim == padded_dim:
        if visible is None:
            tile = tl.load(places)
        else:
            tile = tl.load(places, mask=visible[:, None], other=0.0)
    else:
        inside = (dims < head_dim)[None, :]
        if visible is not None:
            inside = visible[:, None] & inside
        tile = tl.load(places, mask=inside, other=0.0)
    return tile


@triton.jit
def attend_tile(sums, mass, highest, query, keys, values, seen, scale):
    """The online softmax over one more tile of tokens (Milakov & Gimelshein, 2018).

    sums: [rows, dim] float32, Σ 2 ** (score - highest) · value; mass: [rows], Σ of the weights;
    highest: [rows]. seen: [rows or 1, tokens] bool, or None where every row sees every token.
    A tile of which a row sees nothing changes that row in no bit. scale > 0. Returns the three.
    """
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
    if seen is not None:
        scores = tl.where(seen, scores, float("-inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - new_highest[:, None])
    decay = tl.exp2(highest - new_highest)
    mass = mass * decay + tl.sum(weights, 1)
    sums = tl.dot(weights.to(values.dtype), values, sums * decay[:, None], input_precision="ieee")
    return sums, mass, new_highest
