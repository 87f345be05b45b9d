"""The parameters of a language model, worked out from its config.json: `parameters(config)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from parameter_layers import (
    Family,
    after_the_first,
    by_kind,
    by_pattern,
    cross_attention_mixers,
    every,
    flag,
    gemma_4_feed_forward,
    granite_feed_forward,
    interleaved,
    jamba_feed_forwards,
    jamba_mixers,
    minimax_mixers,
    nothing,
    parallel_mixers,
    yes,
)
from parameter_parts import (
    Config,
    Part,
    attention,
    bamba_mamba,
    codestral_mamba,
    experts,
    feed_forward,
    gated_delta_net,
    global_attention,
    gpt_oss_attention,
    head_dim,
    latent_attention,
    mixture,
)

OLD_NAMES = {
    "n_embd": "hidden_size",
    "d_model": "hidden_size",
    "n_layer": "num_hidden_layers",
    "decoder_layers": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "decoder_attention_heads": "num_attention_heads",
    "ffn_dim": "intermediate_size",
    "decoder_ffn_dim": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "max_target_positions": "max_position_embeddings",
}
"""What some models call the fields that the others agree on."""


def per_layer_embeddings(c: Config) -> int:
    """Gemma 3n and 4: a small embedding for every layer, and how it enters each."""
    size, layers, hidden = (
        c["hidden_size_per_layer_input"],
        c["num_hidden_layers"],
        c["hidden_size"],
    )
    if not size:
        return 0
    tables = c["vocab_size_per_layer_input"] * layers * size + hidden * layers * size + size
    return tables + layers * (2 * hidden * size + hidden)


def gemma_3n_extra(c: Config) -> int:
    """Four streams of activations (AltUp), a low-rank detour (Laurel), per-layer embeddings."""
    hidden, streams, rank = c["hidden_size"], c["altup_num_inputs"], c["laurel_rank"]
    altup = hidden + streams**2 + streams**3 + hidden * streams + hidden
    laurel = 2 * hidden * rank + hidden
    streams_in_and_out = 2 * (streams - 1) * hidden**2
    return c["num_hidden_layers"] * (altup + laurel) + streams_in_and_out + per_layer_embeddings(c)


def whisper_encoder_and_crossing(c: Config) -> int:
    """The encoder's layers, two convolutions, attention of the decoder to the encoder; no bias
    on keys."""
    hidden, layers = c["hidden_size"], c["encoder_layers"]
    own = attention(c)
    layer = own + feed_forward(c, c["encoder_ffn_dim"]) + 4 * hidden
    convolutions = 3 * hidden * (c["num_mel_bins"] + hidden) + 2 * hidden
    positions = c["max_source_positions"] * hidden
    crossing = c["num_hidden_layers"] * (own + 2 * hidden)
    key_biases = (layers + 2 * c["num_hidden_layers"]) * hidden
    return layers * layer + convolutions + positions + 2 * hidden + crossing - key_biases


def always(norm: str) -> Callable[[Config], str]:
    return lambda c: norm


def falcon_kv_heads(c: Config) -> int:
    return 1 if c["multi_query"] else c["num_attention_heads"]


LLAMA = Family()
QWEN_2 = Family(qkv_bias=yes)
QWEN_3 = Family(query_norm=always("head"))
GEMMA_2 = Family(norms=4, tied=True)
GEMMA_3 = Family(norms=4, tied=True, query_norm=always("head"))
LATENT = Family(mixers=every(latent_attention), feed_forwards=after_the_first)
LATENT_WITHOUT_LOSS = replace(LATENT, router_bias=True)
"""From V3 on the load is balanced by a bias on the router (arXiv:2408.15664), not by a loss."""
MIXTRAL = Family(feed_forwards=every(mixture))
COHERE = Family(
    norms=1, tied=True, query_norm=lambda c: "whole" if c.get("use_qk_norm") else "none"
)
DELTA_NET = by_kind({"linear_attention": gated_delta_net, "full_attention": attention})
QWEN_NEXT = Family(
    mixers=DELTA_NET,
    feed_forwards=every(mixture),
    query_norm=always("head"),
    gated_queries=True,
    shared_gate=True,
)
GPT_2 = Family(
    norm_values=2,
    qkv_bias=yes,
    out_bias=yes,
    gated=False,
    mlp_bias=yes,
    learned_positions=1,
    tied=True,
)
FAMILIES: Mapping[str, Family] = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "ministral3": LLAMA,
    "phi3": LLAMA,
    "granite": Family(tied=True),
    "smollm3": LLAMA,
    "qwen2": QWEN_2,
    "qwen3": QWEN_3,
    "qwen3_moe": Family(feed_forwards=every(mixture), query_norm=always("head")),
    "qwen3_next": QWEN_NEXT,
    "qwen3_5_moe_text": QWEN_NEXT,
    "qwen3_5_text": Family(mixers=DELTA_NET, query_norm=always("head"), gated_queries=True),
    "gemma2": GEMMA_2,
    "gemma3_text": GEMMA_3,
    "gemma3n_text": Family(
        norms=4,
        tied=True,
        query_norm=always("head"),
        dense_width=lambda c: c["intermediate_size"][0],
        extra=gemma_3n_extra,
    ),
    "gemma4_text": Family(
        mixers=by_kind({"sliding_attention": attention, "full_attention": global_attention}),
        feed_forwards=gemma_4_feed_forward,
        norms=4,
        tied=True,
        query_norm=always("head"),
        values_are_keys=flag("attention_k_eq_v"),
        extra=per_layer_embeddings,
    ),
    "mixtral": MIXTRAL,
    "minimax_m2": Family(
        feed_forwards=every(mixture), query_norm=always("whole"), router_bias=True
    ),
    "minimax_m1": Family(mixers=minimax_mixers, feed_forwards=every(mixture)),
    "gpt_oss": Family(
        mixers=every(gpt_oss_attention),
        feed_forwards=every(mixture),
        qkv_bias=yes,
        out_bias=yes,
        mlp_bias=yes,
        router_bias=True,
    ),
    "llama4_text": Family(
        feed_forwards=interleaved,
        dense_width=lambda c: c["intermediate_size_mlp"],
        shared_width=lambda c: c["intermediate_size"],
    ),
    "mllama_text_model": Family(mixers=cross_attention_mixers),
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT_WITHOUT_LOSS,
    "deepseek_v32": LATENT_WITHOUT_LOSS,
    "kimi_k2": LATENT_WITHOUT_LOSS,
    "glm4_moe_lite": LATENT_WITHOUT_LOSS,
    "glm4_moe": Family(
        feed_forwards=after_the_first,
        qkv_bias=flag("attention_bias"),
        query_norm=lambda c: "head" if c["use_qk_norm"] else "none",
        router_bias=True,
    ),
    "cohere": COHERE,
    "cohere2": COHERE,
    "olmo": Family(norm_values=0),
    "olmo2": Family(query_norm=always("whole")),
    "stablelm": Family(norm_values=2, qkv_bias=flag("use_qkv_bias")),
    "starcoder2": Family(
        norm_values=2, qkv_bias=yes, out_bias=yes, gated=False, mlp_bias=yes, tied=True
    ),
    "falcon": Family(norms=1, norm_values=2, gated=False, tied=True, kv_heads=falcon_kv_heads),
    "falcon_h1": Family(mixers=every(parallel_mixers)),
    "granitemoehybrid": Family(
        mixers=by_kind({"mamba": bamba_mamba, "attention": attention}),
        feed_forwards=granite_feed_forward,
    ),
    "jamba": Family(mixers=jamba_mixers, feed_forwards=jamba_feed_forwards),
    "nemotron_h": Family(
        mixers=by_pattern,
        feed_forwards=every(nothing),
        norms=1,
        gated=False,
        router_bias=True,
    ),
    "mamba2": Family(mixers=every(codestral_mamba), feed_forwards=every(nothing), norms=1),
    "gpt2": GPT_2,
    "opt": Family(
        norm_values=2,
        qkv_bias=yes,
        out_bias=yes,
        gated=False,
        mlp_bias=yes,
        learned_positions=3,
        tied=True,
    ),
    "gptj": Family(norms=1, norm_values=2, gated=False, mlp_bias=yes, head_bias=True),
    "bloom": Family(
        norm_values=2,
        embedding_norm=True,
        qkv_bias=yes,
        out_bias=yes,
        gated=False,
        mlp_bias=yes,
        tied=True,
    ),
    "whisper": Family(
        norm_values=2,
        qkv_bias=yes,
        out_bias=yes,
        gated=False,
        mlp_bias=yes,
        learned_positions=1,
        tied=True,
        extra=whisper_encoder_and_crossing,
    ),
}


def text_config(config: Config) -> Config:
    """The text decoder's fields under one name each, with the family they belong to."""
    text = {**config, **config.get("text_config", {})}
    text |= {new: text[old] for old, new in OLD_NAMES.items() if old in text}
    model_type = text["model_type"]
    assert model_type in FAMILIES, f"model type {model_type} needs a row in FAMILIES of this file"
    return text | {"family": FAMILIES[model_type]}


def parameters(config: Config) -> int:
    """All parameters of the text model, a tied head counted once."""
    c = text_config(config)
    family, hidden, layers = c["family"], c["hidden_size"], c["num_hidden_layers"]
    parts: list[Part] = [*family.mixers(c), *family.feed_forwards(c)]
    norms = family.norms * layers + 1 + family.embedding_norm
    positions = family.learned_positions and (
        c["max_position_embeddings"] + family.learned_positions - 1
    )
    tables = 1 if c.get("tie_word_embeddings", family.tied) else 2
    head_bias = c["vocab_size"] if family.head_bias else 0
    return (
        sum(part(c) for part in parts)
        + norms * family.norm_values * hidden
        + tables * c["vocab_size"] * hidden
        + positions * hidden
        + head_bias
        + family.extra(c)
    )


def experts_at_rest(config: Config) -> int:
    """Parameters of the experts that a token does not visit."""
    c = text_config(config)
    parts = [*c["family"].mixers(c), *c["family"].feed_forwards(c)]
    with_experts = sum(part is mixture for part in parts)
    with_experts = with_experts or (c["num_hidden_layers"] if c.get("enable_moe_block") else 0)
    chosen = experts(c)
    return with_experts * (chosen.count - chosen.chosen) * feed_forward(c, chosen.width)


def kv_bytes_per_token(config: Config, value_bytes: int = 2) -> int:
    """Keys and values of one token in every layer, for models in which all layers are alike."""
    c = text_config(config)
    heads = c["family"].kv_heads(c)
    return 2 * c["num_hidden_layers"] * heads * head_dim(c) * value_bytes
