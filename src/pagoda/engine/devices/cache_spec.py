"""The cache of a model: as options ask for it, or with its layers in given formats."""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.cache.retention import require_retention
from pagoda.cache.spec import CacheSpec
from pagoda.engine.options import EngineOptions
from pagoda.models.decoder import AttentionSpec, DecoderSpec, LatentAttentionSpec
from pagoda.sizing.cache_formats import require_heads
from pagoda.sizing.device_policy import DevicePolicy, require_kept_latents, under_way_tokens
from pagoda.sizing.lossy_form import require_lossy_form, require_runs
from pagoda.sizing.readable_blocks import require_readable
from pagoda.tiers.tier_option import FORM_FIELD


def asked_cache_spec(
    spec: DecoderSpec, options: EngineOptions, policy: DevicePolicy, dtype: str
) -> CacheSpec:
    """The cache that options ask for, beside weights of a dtype.

    Raises as `cache_spec_of` does, and `InvalidOptionError` where its blocks do not suit the lossy
    form of tiers.
    """
    cache = cache_spec_of(spec, options, policy, asked_formats(spec, options, dtype))
    form = options.kv_tier_form
    if form is not None:
        require_lossy_form(FORM_FIELD, form, policy, cache.layers)
        require_runs(FORM_FIELD, form, cache, spec.cache_spec(options.block_size, dtype))
    return cache


def asked_formats(spec: DecoderSpec, options: EngineOptions, dtype: str) -> tuple[str, ...]:
    """The format of each layer; raises as `CacheFormats.of_layers` does."""
    attentions = [layer.attention for layer in spec.layers]
    windowed = [
        isinstance(each, AttentionSpec) and each.sliding_window is not None for each in attentions
    ]
    return options.cache_formats.of_layers(windowed, dtype)


def cache_spec_of(
    spec: DecoderSpec,
    options: EngineOptions,
    policy: DevicePolicy,
    formats: Sequence[str],
) -> CacheSpec:
    """Bytes and groups of its blocks, on a device. formats: of each layer.

    Raises `InvalidOptionError` for heads or latents that a format cannot code, for a retention
    that the model or the block size cannot follow, and for blocks that the device could not read.
    """
    require_heads(formats, [_head_size(layer.attention) for layer in spec.layers])
    require_retention(
        options.retention,
        block_size=options.block_size,
        most_tokens=spec.max_position_embeddings,
    )
    limits = policy.default_limits.or_given(options.max_num_batched_tokens, options.max_num_seqs)
    under_way = under_way_tokens(
        policy,
        limits.max_num_batched_tokens,
        options.block_size,
        requests_choose=options.request_kv_retention,
    )
    kept = spec.cache_spec(
        options.block_size, formats, retention=options.retention, under_way_tokens=under_way
    )
    require_kept_latents(
        policy, kept.layers, options.retention, requests_choose=options.request_kv_retention
    )
    require_readable(policy, kept)
    return kept


def _head_size(attention: AttentionSpec | LatentAttentionSpec) -> int | None:
    """None: it keeps latents."""
    return attention.head_dim if isinstance(attention, AttentionSpec) else None
