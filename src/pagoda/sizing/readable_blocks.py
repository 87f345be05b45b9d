"""Whether a device can read the blocks of a cache: how numbers lie in them, and where.

Engine and planner ask the same, before any weight is read. A CPU keeps plain numbers in groups of
four bytes, of tokens too, and reads them anywhere. A GPU reads a number at multiples of its size.
The layers' places lie one after the other, each of all blocks, so a number of a place is found at

    blocks of the pool × bytes of the places before + block × bytes of the place + its own start

and all three are to be multiples of its size, however many blocks there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.formats import FLOAT_DTYPES, PLAIN_BITS
from pagoda.cache.own_format import SideFormat, is_own, own_sides
from pagoda.cache.spec import CacheSpec
from pagoda.errors import InvalidOptionError
from pagoda.kernels.page_layout import coded_layout
from pagoda.kernels.vector_code import CHUNK, SCALE_BYTES, VectorCode
from pagoda.sizing.device_policy import DevicePolicy

_ALWAYS_READ = 4
"""Tokens: every part of a block of a multiple of them is a multiple of the widest number."""


class _Read(NamedTuple):
    """Numbers of a layer that are read at once."""

    noun: str
    num_bytes: int
    """Of one of them."""
    starts: tuple[int, ...] = ()
    """Bytes of a block before the first head's, and from head to head."""


def require_readable(policy: DevicePolicy, spec: CacheSpec) -> None:
    """Raises `InvalidOptionError` for blocks with numbers that the device could not read."""
    for dtype in dict.fromkeys(layer.dtype for layer in spec.layers):
        _require_groups(policy, dtype, spec.block_size)
    if policy.reads_anywhere or spec.block_size % _ALWAYS_READ == 0:
        return
    place_bytes = spec.place_bytes
    before = list(accumulate(place_bytes, initial=0))
    for layer, place in zip(spec.layers, spec.place_of_layers, strict=True):
        if layer.vectors is None:  # any token of latents takes a multiple
            continue
        for read in _reads(layer.vectors, spec.block_size):
            found = (before[place], place_bytes[place], *read.starts)
            if any(each % read.num_bytes for each in found):
                limit = (
                    f"a {policy.kind} reads a {read.noun} of {read.num_bytes} bytes only at a "
                    f"multiple of {read.num_bytes} bytes: take a multiple of {_ALWAYS_READ}"
                )
                raise InvalidOptionError("block_size", spec.block_size, limit)


def _require_groups(policy: DevicePolicy, dtype: str, block_size: int) -> None:
    """Raises `InvalidOptionError` for tokens that do not make whole groups of plain numbers."""
    if dtype not in FLOAT_DTYPES:
        return
    num_tokens = policy.group_bytes // (PLAIN_BITS[dtype] // 8)
    if num_tokens and block_size % num_tokens:
        limit = f"a {policy.kind} keeps {dtype} in groups: take a multiple of {num_tokens}"
        raise InvalidOptionError("block_size", block_size, limit)


def _reads(layer: AttentionLayerSpec, block_size: int) -> Iterator[_Read]:
    """None of named codes: their scales lie right in blocks of any size."""
    if layer.dtype in FLOAT_DTYPES:
        yield _Read("number", PLAIN_BITS[layer.dtype] // 8)
    if not is_own(layer.dtype):
        return
    key, value = (_code(side, layer.head_size) for side in own_sides(layer.dtype))
    layout = coded_layout(layer.num_kv_heads, block_size, key, value)
    for code, *starts in (
        (key, layout.key_scales, layout.key_scale_bytes),
        (value, layout.value_scales, layout.value_scale_bytes),
    ):
        if code.scale is not None:
            yield _Read("scale", SCALE_BYTES[code.scale], tuple(starts))


def _code(side: SideFormat, head_size: int) -> VectorCode:
    widths = (side.bits,) * (head_size // CHUNK)
    return VectorCode(side.numbers, widths, side.scale, side.has_offset)
