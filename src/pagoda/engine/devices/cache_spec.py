"""The cache of a model whose layers are stored in given formats."""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.cache.retention import require_retention
from pagoda.cache.spec import CacheSpec
from pagoda.engine.options import EngineOptions
from pagoda.models.decoder import DecoderSpec
from pagoda.sizing.cache_formats import require_heads
from pagoda.sizing.device_policy import DevicePolicy, under_way_tokens


def cache_spec_of(
    spec: DecoderSpec,
    options: EngineOptions,
    policy: DevicePolicy,
    formats: Sequence[str],
) -> CacheSpec:
    """Bytes and groups of its blocks, on a device. formats: of each layer.

    Raises `InvalidOptionError` for heads that a format cannot code, and for a retention that the
    model or the block size cannot follow.
    """
    require_heads(formats, [layer.attention.head_dim for layer in spec.layers])
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
    return spec.cache_spec(
        options.block_size, formats, retention=options.retention, under_way_tokens=under_way
    )
