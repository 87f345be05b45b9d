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

from pagoda.kernels.gpu.code_form import keys_of, values_of
from pagoda.kernels.gpu.read_codes import code_levels, vector_scales

LOG2_E = math.log2(math.e)
"""The scale of scores is multiplied by it, and powers of two stand for those of e."""

_LOG2_E = tl.constexpr(LOG2_E)

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
    block_numbers: tl.constexpr, block_size: tl.constexpr, head_dim: tl.constexpr,
):  # fmt: skip
    """Where keys of tokens start in `blocks`, int64; values are num_kv_heads runs further on."""
    # Unsigned: the remainder of a number that may be negative takes three times the instructions.
    in_block = (head * block_size + tokens.to(tl.uint32) % block_size) * head_dim
    return block_ids.to(tl.int64) * block_numbers + in_block


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
def capped(scores, cap):
    """cap · tanh(scores / cap), within 1e-6 relative: by its series where a score is small, since
    a power near 1 loses what tells it from 1."""
    x = scores / cap
    square = x * x
    series = 62.0 / 2835.0
    series = series * square - 17.0 / 315.0
    series = series * square + 2.0 / 15.0
    series = series * square - 1.0 / 3.0
    near = scores * (series * square + 1.0)
    power = tl.exp2(tl.abs(x) * (-2.0 * _LOG2_E))
    far = cap * (1.0 - power) / (1.0 + power)
    return tl.where(square < 0.0625, near, tl.where(x < 0, -far, far))


@triton.jit
def joined(mass, highest, sink_logits):
    """What sums relative to `highest` are multiplied with once a sink logit joins the mass of each
    row, and their mass then. Of -inf not a bit changes."""
    sinks = sink_logits.to(tl.float32) * _LOG2_E
    together = tl.maximum(highest, sinks)
    decay = tl.exp2(highest - together)
    return decay, mass * decay + tl.exp2(sinks - together)


@triton.jit
def weighed(scores, mass, highest, seen, scale):
    """A tile's scores as weights, relative to the highest score there is with them: see
    `attend_tile`. Returns weights, what sums are multiplied with, mass and highest."""
    if seen is not None:
        scores = tl.where(seen, scores, float("-inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - new_highest[:, None])
    decay = tl.exp2(highest - new_highest)
    mass = mass * decay + tl.sum(weights, 1)
    return weights, decay, mass, new_highest


@triton.jit
def attend_tile(
    sums, mass, highest, query, keys, values, seen, scale, cap,
    key_scales=None, key_shifts=None, value_scales=None, value_shifts=None,
):  # fmt: skip
    """The online softmax over one more tile of tokens (Milakov & Gimelshein, 2018).

    sums: [rows, dim] float32, Σ 2 ** (score - highest) · value; mass: [rows], Σ of the weights;
    highest: [rows]. seen: [rows or 1, tokens] bool, or None where every row sees every token.
    A tile of which a row sees nothing changes that row in no bit. scale > 0. cap: where scores are
    held below, times log2(e) as the scale; None: nowhere. Returns the three.

    Of codes, keys and values are levels, which scales and shifts, [tokens] float32 or None, make
    the vectors: they meet scores and weights. key_shifts: [rows, tokens], a query's part of each.
    """
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
    if key_scales is not None:
        scores *= key_scales[None, :]
    if key_shifts is not None:
        scores += key_shifts
    if cap is not None:
        scores = capped(scores * scale, cap)
        scale = 1.0
    weights, decay, mass, new_highest = weighed(scores, mass, highest, seen, scale)
    sums = sums * decay[:, None]
    if value_shifts is not None:
        sums += tl.sum(weights * value_shifts[None, :], 1)[:, None]
    if value_scales is not None:
        weights *= value_scales[None, :]
    sums = tl.dot(weights.to(values.dtype), values, sums, input_precision="ieee")
    return sums, mass, new_highest


@triton.jit
def attend_tokens(
    sums, mass, highest, query, query_sums, blocks, block_ids, tokens, kv_head, readable, seen,
    scale, cap, key_levels, value_levels,
    num_kv_heads: tl.constexpr, block_size: tl.constexpr, block_numbers: tl.constexpr,
    head_dim: tl.constexpr, padded_dim: tl.constexpr, form: tl.constexpr,
):  # fmt: skip
    """`attend_tile` of a tile of tokens in the cache, plain or coded.

    blocks: numbers, `block_numbers` from one to the next, or bytes of that form. readable: [tokens]
    bool, or None for all. query_sums: [rows] float32, Σ of each query's numbers; read where keys
    have offsets.
    """
    if form is None:
        keys_at = blocks + key_offsets(
            block_ids, tokens, kv_head, block_numbers, block_size, head_dim
        )
        values_at = keys_at + num_kv_heads * block_size * head_dim
        keys = load_rows(keys_at, readable, head_dim, padded_dim)
        values = load_rows(values_at, readable, head_dim, padded_dim)
        sums, mass, highest = attend_tile(
            sums, mass, highest, query, keys, values, seen, scale, cap
        )
    else:
        block = blocks + block_ids.to(tl.int64) * form.block_bytes
        place = (tokens.to(tl.uint32) % block_size).to(tl.int32)
        keys_at = block + (form.keys.start + kv_head * form.keys.head_bytes)
        values_at = block + (form.values.start + kv_head * form.values.head_bytes)
        keys = code_levels(
            keys_at + place * form.keys.code_bytes, readable, key_levels, kv_head,
            keys_of(form), padded_dim, query.dtype,
        )  # fmt: skip
        values = code_levels(
            values_at + place * form.values.code_bytes, readable, value_levels, kv_head,
            values_of(form), padded_dim, weight_dtype(query.dtype, form),
        )  # fmt: skip
        key_shifts = None
        if form.keys.has_offset:
            shifts = vector_scales(block, place, kv_head, readable, keys_of(form), block_size)
            key_shifts = query_sums[:, None] * shifts[None, :]
        value_shifts = None
        if form.values.has_offset:
            value_shifts = vector_scales(
                block, place, kv_head, readable, values_of(form), block_size
            )
        sums, mass, highest = attend_tile(
            sums, mass, highest, query, keys, values, seen, scale, cap,
            vector_scales(block, place, kv_head, readable, keys_of(form), 0), key_shifts,
            vector_scales(block, place, kv_head, readable, values_of(form), 0), value_shifts,
        )  # fmt: skip
    return sums, mass, highest


@triton.constexpr_function
def weight_dtype(dtype, form):
    """The dtype that weights meet values in: the queries', but no float16 with scales, which may
    be smaller than it can tell. Levels are exact in any."""
    return tl.bfloat16 if dtype == tl.float16 and form.values.scale_bytes else dtype
