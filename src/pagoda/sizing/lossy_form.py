"""Which caches a lossy form of tiers can be made of. Engine and lab ask the same.

It is told by a device and by what layers keep, before weights are read.
"""

from __future__ import annotations

from collections.abc import Iterable

from pagoda.cache.formats import FLOAT_DTYPES
from pagoda.cache.layer import CachedLayer
from pagoda.errors import InvalidOptionError
from pagoda.sizing.device_policy import DevicePolicy

MOST_NUMBERS = 1024
"""Of the keys, or values, of a token that share a basis, which takes the square of it: of one layer
or of several neighbours, which are alike."""


def require_lossy_form(
    of_field: str, form: str, policy: DevicePolicy, layers: Iterable[CachedLayer]
) -> None:
    """Raises `InvalidOptionError`, of the field, where the device or what one of its cache's
    layers keeps does not suit a form. `layers`: as far as they are known, none of them at first."""
    if not policy.packs_blocks:
        limit = "is made of blocks as a CPU's cache lays them out, and of no GPU's yet"
        raise InvalidOptionError(of_field, form, limit)
    for number, layer in enumerate(layers):
        obstacle = _obstacle(number, layer)
        if obstacle is not None:
            raise InvalidOptionError(of_field, form, obstacle)


def _obstacle(number: int, layer: CachedLayer) -> str | None:
    """Why the layer does not suit any form; None where it does."""
    vectors = layer.vectors
    if vectors is None:
        return f"stores plain keys and values anew, and layer {number} keeps latents"
    if vectors.dtype not in FLOAT_DTYPES:
        return f"stores plain keys and values anew, not those of kv_cache_dtype {vectors.dtype}"
    numbers = vectors.num_kv_heads * vectors.head_size
    if numbers > MOST_NUMBERS:
        return f"takes up to {MOST_NUMBERS:,} numbers of keys, and layer {number} has {numbers:,}"
    return None
