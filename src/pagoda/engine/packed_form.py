"""Which blocks a lossy form of tiers can be made of, as far as a model's shape tells.

Told before weights are read.
"""

from __future__ import annotations

from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError
from pagoda.models.decoder import AttentionSpec, DecoderSpec
from pagoda.sizing.cache_formats import AUTO
from pagoda.sizing.device_policy import DevicePolicy
from pagoda.tiers.tier_option import FORM_FIELD

MOST_NUMBERS = 1024
"""Of the keys, or values, of a token that share a basis, which takes the square of it: of one layer
or of several neighbours, which are alike."""


def require_packed(options: EngineOptions, spec: DecoderSpec, policy: DevicePolicy) -> None:
    """Raises `InvalidOptionError` where the device, the cache's format or a layer does not suit the
    form that options ask for."""
    form = options.kv_tier_form
    if not policy.packs_blocks:
        limit = "is made of blocks as a CPU's cache lays them out, and of no GPU's yet"
        raise InvalidOptionError(FORM_FIELD, form, limit)
    own = options.cache_formats.kv_cache_dtype
    if own not in (AUTO, "float32", "bfloat16", "float16"):
        limit = f"stores plain keys and values anew, not those of kv_cache_dtype {own}"
        raise InvalidOptionError(FORM_FIELD, form, limit)
    for number, layer in enumerate(spec.layers):
        attention = layer.attention
        if not isinstance(attention, AttentionSpec):
            limit = f"stores plain keys and values anew, and layer {number} keeps latents"
            raise InvalidOptionError(FORM_FIELD, form, limit)
        numbers = attention.num_kv_heads * attention.head_dim
        if numbers > MOST_NUMBERS:
            limit = (
                f"takes up to {MOST_NUMBERS:,} numbers of keys, and layer {number} has {numbers:,}"
            )
            raise InvalidOptionError(FORM_FIELD, form, limit)
