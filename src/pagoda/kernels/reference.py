"""The plain truth that kernels are compared with: loops over rows and heads, in float64.

Blocks are taken as `[num_blocks, 2, num_kv_heads, head_dim * block_size]`: keys and values, each
head's keys kept as `[head_dim / group, block_size, group]` and its values as
`[block_size / group, head_dim, group]`, where a group is one number, or two neighbours where
numbers are bfloat16.
"""

from __future__ import annotations

import math

import numpy as np

from pagoda.kernels.array import Array


def bfloat16_bits(x: Array) -> Array:
    """float32 rounded to bfloat16, to nearest with ties to even, as uint16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bfloat16_values(bits: Array) -> Array:
    """What bfloat16 bits stand for, float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def read_token(
    blocks: Array, slot: int, head: int, head_dim: int, group: int
) -> tuple[Array, Array]:
    """The key and the value, [head_dim] each, that one KV head keeps in a slot."""
    key, value = _places(blocks, slot, head, head_dim, group)
    return key.reshape(-1), value.copy()


def write_token(blocks: Array, slot: int, head: int, key: Array, value: Array, group: int) -> None:
    """Write one KV head's key and value, [head_dim] each, to a slot. Changes blocks."""
    key_place, value_place = _places(blocks, slot, head, len(key), group)
    key_place[:] = key.reshape(-1, group)
    value_place[:] = value


def _places(blocks: Array, slot: int, head: int, head_dim: int, group: int) -> tuple[Array, Array]:
    """Views on a slot's key, [head_dim / group, group], and value, [head_dim]."""
    block_size = blocks.shape[3] // head_dim
    block, offset = divmod(slot, block_size)
    keys = blocks[block, 0, head].reshape(head_dim // group, block_size, group)
    values = blocks[block, 1, head].reshape(block_size // group, head_dim, group)
    return keys[:, offset], values[offset // group, :, offset % group]


def paged_attention(
    query: Array,
    blocks: Array,
    block_table: Array,
    position: int,
    scale: float,
    group: int,
    window: int | None = None,
    sinks: int = 0,
    sink_query: Array | None = None,
    logit_cap: float | None = None,
    sink_logits: Array | None = None,
) -> Array:
    """What one token sees: [num_heads, head_dim] float64 for query: [num_heads, head_dim].

    Query head h reads KV head h // (num_heads / num_kv_heads). The token at `position` sees
    itself, and before it all tokens or the last `window - 1`; and the first `sinks`, which meet
    `sink_query`. logit_cap: a score s becomes cap · tanh(s / cap). sink_logits: [num_heads], each
    one more logit of its head's softmax, without a value.
    """
    num_heads, head_dim = query.shape
    num_kv_heads = blocks.shape[2]
    block_size = blocks.shape[3] // head_dim
    begin = 0 if window is None else max(0, position - window + 1)
    sink_query = query if sink_query is None else sink_query
    out = np.zeros((num_heads, head_dim))
    for h in range(num_heads):
        scores, values = [], []
        for token in range(position + 1):
            if sinks <= token < begin:
                continue
            own = sink_query if token < sinks else query
            slot = int(block_table[token // block_size]) * block_size + token % block_size
            key, value = read_token(blocks, slot, h // (num_heads // num_kv_heads), head_dim, group)
            scores.append(np.dot(own[h].astype(np.float64), key) * scale)
            values.append(value.astype(np.float64))
        if logit_cap is not None:
            scores = [logit_cap * np.tanh(score / logit_cap) for score in scores]
        extra = [] if sink_logits is None else [float(sink_logits[h])]
        weights = np.exp(np.array(scores + extra) - max(scores + extra))
        out[h] = weights[: len(scores)] @ np.array(values) / weights.sum()
    return out


def latent_attention(
    query: Array, blocks: Array, block_table: Array, position: int, scale: float, rank: int,
    block_size: int, group: int,
) -> Array:  # fmt: skip
    """What one token sees of latents: [num_heads, rank] float64 for query: [num_heads, width].

    blocks: [num_blocks, width * block_size], each [width / group, block_size, group], of vectors
    that are keys of all heads, and in their first `rank` numbers values.
    """
    num_heads, width = query.shape
    vectors = []
    for token in range(position + 1):
        block = blocks[int(block_table[token // block_size])].reshape(-1, block_size, group)
        assert block.size == width * block_size
        vectors.append(block[:, token % block_size].reshape(-1).astype(np.float64))
    out = np.zeros((num_heads, rank))
    for h in range(num_heads):
        scores = [np.dot(query[h].astype(np.float64), vector) * scale for vector in vectors]
        weights = np.exp(np.array(scores) - max(scores))
        out[h] = weights @ np.array(vectors)[:, :rank] / weights.sum()
    return out


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x²) + eps) · weight over the last axis, float64."""
    wide = x.astype(np.float64)
    return wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps) * weight


def layer_norm(x: Array, weight: Array, eps: float) -> Array:
    """`rms_norm` of x with the mean of the last axis taken off, float64."""
    wide = x.astype(np.float64)
    return rms_norm(wide - wide.mean(axis=-1, keepdims=True), weight, eps)


def rotate(x: Array, cosine: Array, sine: Array) -> Array:
    """x: [..., head_dim] with value i turned against value i + len(cosine), float64."""
    half = len(cosine)
    out = x.astype(np.float64)
    first, second = out[..., :half].copy(), out[..., half : 2 * half].copy()
    out[..., :half] = first * cosine - second * sine
    out[..., half : 2 * half] = second * cosine + first * sine
    return out


def gated(gate_up: Array, activation: str) -> Array:
    """What an activation makes of gate and up, the halves of the last axis, float64."""
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=-1)
    if activation == CLAMPED:
        low = np.minimum(gate, 7)
        return low / (1 + np.exp(-1.702 * low)) * (np.clip(up, -7, 7) + 1)
    return activated(gate, activation) * up


def activated(x: Array, activation: str) -> Array:
    """What an activation makes of x, float64."""
    return ACTIVATIONS[activation](x.astype(np.float64))


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return x / 2 * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / np.sqrt(2)))


def _gelu_tanh(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh}
"""By name."""
CLAMPED = "clamped_swiglu"
"""The activation of gate and up."""


def product(x: Array, weight: Array) -> Array:
    """x · weightᵀ of rows [rows, in] and a weight [out, in], in float64."""
    return np.array([[np.dot(row, column) for column in weight] for row in x.astype(np.float64)])


def is_sound(row: Array) -> bool:
    """Logits [vocab] that a token can be chosen from: no NaN, no plus infinity, one finite."""
    return bool(np.isfinite(row[row != -np.inf]).all() and (row != -np.inf).any())


def ranked(row: Array) -> list[int]:
    """The ids of logits [vocab], the largest first, equal ones by ascending id."""
    return np.argsort(-row, kind="stable").tolist()


def drawable(
    row: Array, temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[int, float]:
    """What may be drawn from logits [vocab], in the order of the draw: id to weight, float64."""
    values = row.astype(np.float64)
    weights = np.exp((values - values.max()) / temperature)
    if top_k == 0 and top_p == 1.0 and min_p == 0.0:
        return dict(enumerate(weights.tolist()))
    order = np.array(ranked(row))
    kept = order[weights[order] >= min_p]
    kept = kept[:top_k] if top_k > 0 else kept
    limit, before = top_p * weights[kept].sum(), 0.0
    found: dict[int, float] = {}
    for token_id, weight in zip(kept.tolist(), weights[kept].tolist(), strict=True):
        if before >= limit:
            break
        found[token_id] = weight
        before += weight
    return found
