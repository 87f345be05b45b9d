"""Which caches a lossy form of tiers can be made of. Engine and lab ask the same.

It is told by a device and by what layers keep: the engine asks before weights are read, the lab
before anything is calibrated.
"""

from __future__ import annotations

from collections.abc import Iterable

from pagoda.cache.formats import FLOAT_DTYPES
from pagoda.cache.layer import CachedLayer
from pagoda.cache.spec import CacheSpec
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


def require_runs(of_field: str, form: str, cache: CacheSpec, plain: CacheSpec) -> None:
    """Raises `InvalidOptionError`, of the field, where layers that share a basis lie in several of
    the cache's groups, and so in several blocks. `plain`: the cache that forms are calibrated with,
    of one dtype and without a retention."""
    groups = [set(group.layer_ids) for group in cache.groups]
    for run in runs_of(plain):
        if not any(group.issuperset(run) for group in groups):
            limit = f"has a basis for layers {', '.join(map(str, run))}, which blocks keep apart"
            raise InvalidOptionError(of_field, form, limit)


def runs_of(cache: CacheSpec) -> list[tuple[int, ...]]:
    """The layers that share a basis: of one group and of heads of one size, one after the other.

    All keep keys and values.
    """
    runs = list[tuple[int, ...]]()
    for group in cache.groups:
        run, numbers, head_size = tuple[int, ...](), 0, 0
        for layer_id in group.layer_ids:
            vectors = cache.layers[layer_id].vectors
            assert vectors is not None
            size = vectors.num_kv_heads * vectors.head_size
            if run and (head_size != vectors.head_size or numbers + size > MOST_NUMBERS):
                runs.append(run)
                run, numbers = (), 0
            run, numbers, head_size = (*run, layer_id), numbers + size, vectors.head_size
        runs.append(run)
    return runs


def _obstacle(number: int, layer: CachedLayer) -> str | None:
    """Why the layer does not suit any form; None where it does."""
    vectors = layer.vectors
    if vectors is None:
        return f"stores plain keys and values anew, and layer {number} keeps latents"
    if vectors.dtype not in FLOAT_DTYPES:
        return f"stores plain keys and values anew, and layer {number} keeps {vectors.dtype}"
    numbers = vectors.num_kv_heads * vectors.head_size
    if numbers > MOST_NUMBERS:
        return f"takes up to {MOST_NUMBERS:,} numbers of keys, and layer {number} has {numbers:,}"
    return None
