"""The cache of a model whose layers are stored in given formats."""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.cache.spec import CacheSpec
from pagoda.models.decoder import DecoderSpec
from pagoda.sizing.cache_formats import require_heads


def cache_spec_of(spec: DecoderSpec, block_size: int, formats: Sequence[str]) -> CacheSpec:
    """Bytes of its blocks. formats: of each layer.

    Raises `InvalidOptionError` for heads that a format cannot code.
    """
    require_heads(formats, [layer.attention.head_dim for layer in spec.layers])
    return spec.cache_spec(block_size, formats)
