"""The plain truth about a decoder: one sequence, no pages, no cache, every product written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from pagoda.cache.window import EVERY_TOKEN, FULL_ATTENTION, AttentionWindow
from pagoda.codecs import Codec, LatentCodec
from pagoda.execution.reference_experts import run_experts
from pagoda.execution.reference_gate import activated, gated
from pagoda.kernels.array import Array
from pagoda.models.decoder import (
    AttentionSpec,
    DecoderSpec,
    ExpertsSpec,
    LatentAttentionSpec,
    Learned,
    MLPSpec,
    NormSpec,
    QKNorm,
    RopeSpec,
)
from pagoda.models.weights import DecoderWeights, LayerWeights

AnyCodec = Codec | LatentCodec


@torch.inference_mode()
def reference_logits(
    spec: DecoderSpec,
    weights: DecoderWeights[torch.Tensor],
    token_ids: Sequence[int],
    dtype: torch.dtype = torch.float32,
    codec: AnyCodec | Sequence[AnyCodec | None] | None = None,
    retention: AttentionWindow = FULL_ATTENTION,
) -> torch.Tensor:
    """Logits after each of `token_ids`: [num_tokens, vocab_size], computed wholly in `dtype`.

    With a codec, of all layers or of each, attention takes keys and values, or latents, for what is
    left of them once they are stored. With a retention every row sees what is kept of the tokens
    before it, as if that were all there is: keys are rotated anew, by their places among those that
    are left.
    """
    codecs = codec if isinstance(codec, Sequence) else [codec] * len(spec.layers)
    x = weights.embedding[torch.tensor(token_ids)].to(dtype) * spec.embedding_scale
    norm = spec.norm
    for layer, own, codec in zip(spec.layers, weights.layers, codecs, strict=True):
        hidden = normed(x, own.attention_norm, norm)
        if isinstance(layer.attention, LatentAttentionSpec):
            assert not isinstance(codec, Codec)
            attended = latent_attention(hidden, layer.attention, own, codec, retention)
        else:
            assert not isinstance(codec, LatentCodec)
            attended = attention(hidden, layer.attention, own, norm, codec, retention)
        stream = x
        x = x + normed(attended, own.attention_output_norm, norm) * layer.residual_scale
        if not layer.norms.is_parallel:
            hidden = normed(x, own.mlp_norm, norm)
        elif own.mlp_norm is not None:
            hidden = normed(stream, own.mlp_norm, norm)
        added = feed_forward(hidden, layer.mlp, own)
        x = x + normed(added, own.mlp_output_norm, norm) * layer.residual_scale
    logits = linear(normed(x, weights.final_norm, norm), weights.lm_head, weights.logit_bias)
    return capped(logits * spec.logit_scale, spec.logit_cap)


def feed_forward(
    hidden: torch.Tensor, spec: MLPSpec | ExpertsSpec, weights: LayerWeights[torch.Tensor]
) -> torch.Tensor:
    """[num_tokens, hidden_size] to the same shape."""
    if isinstance(spec, ExpertsSpec):
        assert weights.experts is not None
        return run_experts(hidden, spec, weights.experts)
    assert weights.down is not None
    if weights.gate_up is not None:
        gate, up = linear(hidden, weights.gate_up, weights.gate_up_bias).chunk(2, dim=-1)
        inner = gated(gate, up, spec.activation)
    else:
        assert weights.up is not None
        inner = activated(linear(hidden, weights.up, weights.up_bias), spec.activation)
    return linear(inner, weights.down, weights.down_bias)


def capped(x: torch.Tensor, cap: float | None) -> torch.Tensor:
    """cap · tanh(x / cap), or x where there is no cap."""
    return x if cap is None else torch.tanh(x / cap) * cap


def attention(
    hidden: torch.Tensor,
    spec: AttentionSpec,
    weights: LayerWeights[torch.Tensor],
    norm: NormSpec,
    codec: Codec | None = None,
    retention: AttentionWindow = FULL_ATTENTION,
) -> torch.Tensor:
    """[num_tokens, hidden_size] to the same shape."""
    num_tokens = hidden.shape[0]
    q_width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    qkv = linear(hidden, weights.qkv, weights.qkv_bias)
    rows = qkv.split([q_width, kv_width, kv_width], dim=-1)
    norms = (weights.q_norm, weights.k_norm, None)
    if spec.qk_norm is QKNorm.ROW:
        rows = [_rms_normed(*each, norm) for each in zip(rows, norms, strict=True)]
    heads = [part.view(num_tokens, -1, spec.head_dim) for part in rows]
    if spec.qk_norm is QKNorm.HEAD:
        heads = [_rms_normed(*each, norm) for each in zip(heads, norms, strict=True)]
    q, k, v = (part.transpose(0, 1) for part in heads)  # each [heads, tokens, head_dim]
    group_size = spec.num_heads // spec.num_kv_heads
    window = AttentionWindow(spec.sliding_window or EVERY_TOKEN).narrowed(retention)
    plain_q, plain_k = q, k.repeat_interleave(group_size, dim=0)
    if spec.rope is not None:
        q, k = rotate(q, spec.rope), rotate(k, spec.rope)
    if codec is not None:
        k, v = _recalled(codec.recall_keys, k), _recalled(codec.value.recall, v)
    k, v = k.repeat_interleave(group_size, dim=0), v.repeat_interleave(group_size, dim=0)
    positions, sink_logits = torch.arange(num_tokens), weights.sink_logits
    is_sink, distance = positions < window.sinks, positions[:, None] - positions
    seen = (distance >= 0) & (is_sink | (distance < window.window))
    products, num_whole = q @ k.transpose(1, 2), window.sinks + window.window
    if codec is not None and window.sinks and spec.rope is not None:
        # Stored keys are not rotated anew: the query is, as far from the sinks as if the window
        # followed right behind them.
        nearer = rotate(plain_q, spec.rope, positions.clamp(max=num_whole - 1))
        products = torch.where(is_sink, nearer @ k.transpose(1, 2), products)
    scores = _scores(products, spec).masked_fill(~seen, -torch.inf)
    attended = _softmax(scores, sink_logits) @ v
    if codec is None and window.sinks:  # rows from here on do not see all that is before them
        for place in range(num_whole, num_tokens):
            attended[:, place] = _row(plain_q, plain_k, v, place, spec, window, sink_logits)
    return linear(attended.transpose(0, 1).reshape(num_tokens, q_width), weights.o, weights.o_bias)


def latent_attention(
    hidden: torch.Tensor,
    spec: LatentAttentionSpec,
    weights: LayerWeights[torch.Tensor],
    codec: LatentCodec | None = None,
    window: AttentionWindow = FULL_ATTENTION,
) -> torch.Tensor:
    """[num_tokens, hidden_size] to the same shape, of keys and values made for each head.

    Sinks meet a query that is as far from them as if the window followed right behind.
    """
    num_tokens, norm = hidden.shape[0], NormSpec(spec.norm_eps)
    queries = hidden
    if weights.q_down is not None:
        queries = normed(linear(hidden, weights.q_down, weights.q_down_bias), weights.q_norm, norm)
    q = linear(queries, weights.qkv, None).view(num_tokens, spec.num_heads, -1).transpose(0, 1)
    q_plain, q_turned = q.split([spec.nope_dim, spec.rope_dim], dim=-1)
    assert weights.kv_down is not None
    assert weights.key_up is not None
    assert weights.value_up is not None
    down = linear(hidden, weights.kv_down, weights.kv_down_bias)
    latent, shared = down.split([spec.rank, spec.rope_dim], dim=-1)
    latent, shared = normed(latent, weights.k_norm, norm), rotate(shared[None], spec.rope)[0]
    if codec is not None:
        written = torch.cat([latent, shared], dim=-1).float().numpy()
        read = torch.from_numpy(codec.recall(written, spec.rank)).to(latent.dtype)
        latent, shared = read.split([spec.rank, spec.rope_dim], dim=-1)
    keys, values = (
        torch.einsum("tr,hdr->htd", latent, matrix.to(latent.dtype))
        for matrix in (weights.key_up, weights.value_up)
    )
    positions = torch.arange(num_tokens)
    furthest = positions.clamp(max=window.sinks + window.window - 1)
    by_place, by_sinks = (rotate(q_turned, spec.rope, each) for each in (positions, furthest))
    is_sink, distance = positions < window.sinks, positions[:, None] - positions
    turned = torch.where(is_sink, by_sinks @ shared.mT, by_place @ shared.mT)
    scores = (q_plain @ keys.transpose(1, 2) + turned) * spec.scale
    seen = (distance >= 0) & (is_sink | (distance < window.window))
    weight = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
    attended = (weight @ values).transpose(0, 1).reshape(num_tokens, -1)
    return linear(attended, weights.o, weights.o_bias)


def _row(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    position: int,
    spec: AttentionSpec,
    window: AttentionWindow,
    sink_logits: torch.Tensor | None,
) -> torch.Tensor:
    """What one row gets, [heads, head_dim], of keys that are rotated by their places in the cache
    (StreamingLLM, arXiv 2309.17453); q, k and v: [heads, tokens, head_dim], not rotated."""
    first = max(window.sinks, window.first_in_window(position))
    kept = [*range(min(window.sinks, position + 1)), *range(first, position + 1)]
    query, keys = q[:, position : position + 1], k[:, kept]
    if spec.rope is not None:
        places = torch.arange(len(kept))
        query, keys = rotate(query, spec.rope, places[-1:]), rotate(keys, spec.rope, places)
    weights = _softmax(_scores(query @ keys.transpose(1, 2), spec), sink_logits)
    return (weights @ v[:, kept])[:, 0]


def _scores(products: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
    """From q · k to what the softmax takes: scaled, and capped where the layer has a cap."""
    scores, cap = products * spec.scale, spec.logit_cap
    return scores if cap is None else cap * torch.tanh(scores / cap)


def _softmax(scores: torch.Tensor, sink_logits: torch.Tensor | None) -> torch.Tensor:
    """Weights of [heads, rows, tokens]; sink logits, [heads], take their part and have no value."""
    if sink_logits is None:
        return scores.softmax(dim=-1)
    joined = sink_logits.to(scores.dtype)[:, None, None].expand(*scores.shape[:2], 1)
    return torch.cat([scores, joined], dim=-1).softmax(dim=-1)[..., :-1]


def _recalled(recall: Callable[[Array], Array], vectors: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(recall(vectors.float().numpy())).to(vectors.dtype)


def rotate(x: torch.Tensor, rope: RopeSpec, positions: torch.Tensor | None = None) -> torch.Tensor:
    """Rotate [heads, tokens, head_dim] by positions, 0, 1, … if None; i goes with i + half."""
    inv_freq = torch.tensor(rope.inv_freq, dtype=torch.float32)
    positions = torch.arange(x.shape[1]) if positions is None else positions
    angles = positions.float()[:, None] * inv_freq
    cosine = (angles.cos() * rope.attention_factor).to(x.dtype)
    sine = (angles.sin() * rope.attention_factor).to(x.dtype)
    half = len(rope.inv_freq)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    rotated = (first * cosine - second * sine, second * cosine + first * sine, rest)
    return torch.cat(rotated, dim=-1)


def normed(x: torch.Tensor, weight: torch.Tensor | None, norm: NormSpec) -> torch.Tensor:
    """x normed over the last axis (see `NormSpec`), or x where there are no weights."""
    if weight is None:
        return x
    if norm.is_centred:
        x = x - x.mean(dim=-1, keepdim=True)
    scaled = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + norm.eps)
    if norm.is_shifted:
        weight, bias = weight.to(x.dtype).chunk(2)
        return scaled * weight + bias
    return scaled * (weight.to(x.dtype) + norm.weight_offset)


def _rms_normed(x: torch.Tensor, weight: torch.Tensor | None, norm: NormSpec) -> torch.Tensor:
    return normed(x, weight, replace(norm, is_centred=False, learned=Learned.WEIGHT))


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x · weightᵀ + bias in x's dtype."""
    return functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
