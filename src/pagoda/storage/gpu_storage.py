"""The memory that holds K and V of one GPU: where a block lies, how it is copied and moved.

One allocation; the layers' places lie one after the other, and a layer's blocks are
`[num_blocks, 2, num_kv_heads, block_size, head_size]`, keys before values, so that a tile of tokens
of one head is one piece of memory, whose rows are what a matrix product takes. Where another group
has larger ones in the same place, there is a gap from block to block. What a codec makes
of them lies likewise, byte by byte: a head's keys `[block_size, bytes of a key]`, and so its
values, with their scales behind (`kernels.page_layout`). A layer of latents has blocks of
`[block_size, rank + rope size]`: a token's latent, and its shared key behind it; codes of them lie
as `kernels.gpu.latent_form` says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.latent import LatentLayerSpec
from pagoda.cache.spec import CacheSpec, WindowedLayer
from pagoda.codecs import CODECS, LATENT_CODECS, Codec, codec_of
from pagoda.errors import InvalidOptionError
from pagoda.kernels.gpu.copy import copy_blocks
from pagoda.kernels.gpu.pinned import to_device
from pagoda.kernels.latent_code import LatentCode
from pagoda.kernels.page_layout import coded_layout
from pagoda.kernels.vector_code import SCALE_BYTES
from pagoda.storage.block_storage import BlockStorage, require_format, size_of

GPU_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""The dtypes that a plain storage on a device can hold."""

MAX_STAGING_BYTES = 64 * 2**20
"""Memory that copies of blocks take for a moment beside the storage.

The copies of one layer may take more, where they alone are more than this.
"""

_WORDS = (torch.int32, torch.int16)
"""Blocks of whatever dtype are copied as words, of four bytes but where blocks of codes are odd
numbers of two: planes, scales, and two plain numbers, are no smaller."""


@dataclass(frozen=True, slots=True)
class GPULayer:
    """One layer's part of the allocation: a view."""

    num_kv_heads: int
    head_size: int
    block_size: int
    codec: Codec | None
    """None: plain numbers."""
    blocks: torch.Tensor
    """[num_blocks, 2, num_kv_heads, block_size, head_size]: 0 are keys, 1 values; a block's numbers
    lie together. Or [num_blocks, bytes] of codes, those of its place in a block. Of latents
    [num_blocks, block_size, head_size], or likewise bytes"""
    latent: LatentCode | None = None
    """How latents are coded; None: they are plain, or there are none."""


class GPUStorage(BlockStorage):
    """K and V of `num_blocks` blocks of every layer that `spec` names, in a device's memory.

    All of it is taken at once, and zero. Raises InvalidOptionError for a format that is none here,
    for heads that it cannot code and for fewer than one block, torch.OutOfMemoryError where there
    is not so much. Blocks are such as a device can read: `pagoda.sizing.readable_blocks` asked.
    """

    def __init__(self, spec: CacheSpec, num_blocks: int, device: torch.device) -> None:
        size_bytes = size_of(spec, num_blocks)
        for layer in spec.layers:
            _require_held(layer)
        memory = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        super().__init__(spec, num_blocks, memory)
        self.layers = tuple(
            _view_layer(layer, spec.block_size, content)
            for layer, content in zip(spec.layers, self._content_of_layers(), strict=True)
        )
        block_bytes = [content.shape[1] for content in self._contents]
        word = next(each for each in _WORDS if not any(b % each.itemsize for b in block_bytes))
        self._words = memory.view(word)
        block_words = [each // word.itemsize for each in block_bytes]
        self._most_words = max(block_words)
        starts = num_blocks * (np.cumsum(block_words) - block_words)
        self._places = to_device(np.stack([starts, block_words], axis=1), device)
        """Where each place begins, and what it takes of a block, in words."""

    def _copy(self, pairs: NDArray[np.int64]) -> None:
        sources, targets = to_device(pairs, self._words.device)
        layer_bytes = len(sources) * self._most_words * self._words.itemsize
        num_layers = max(1, MAX_STAGING_BYTES // layer_bytes)
        for places in self._places.split(num_layers):
            staging = self._words.new_empty(len(sources), len(places), self._most_words)
            copy_blocks(self._words, staging, places, sources, targets)


def _require_held(layer: WindowedLayer) -> None:
    """Raises InvalidOptionError for what a device does not hold so."""
    if layer.vectors is not None:
        require_format(layer.vectors, (*GPU_DTYPES, *CODECS), takes_own=True)
    elif layer.dtype not in (*GPU_DTYPES, *LATENT_CODECS):
        held = ", ".join((*GPU_DTYPES, *LATENT_CODECS))
        limit = f"a cache of latents holds one of {held}"
        raise InvalidOptionError("dtype", layer.dtype, limit)


def _view_layer(layer: WindowedLayer, block_size: int, content: torch.Tensor) -> GPULayer:
    if layer.latents is not None:
        return _view_latents(layer.latents, block_size, content)
    assert layer.vectors is not None
    return _view_vectors(layer.vectors, block_size, content)


def _view_vectors(spec: AttentionLayerSpec, block_size: int, content: torch.Tensor) -> GPULayer:
    heads, size, codec = spec.num_kv_heads, spec.head_size, codec_of(spec.dtype)
    if codec is None:
        numbers = content.view(GPU_DTYPES[spec.dtype])
        own = numbers[:, : 2 * heads * block_size * size]
        blocks = own.unflatten(1, (2, heads, block_size, size))
        return GPULayer(heads, size, block_size, None, blocks)
    layout = coded_layout(heads, block_size, codec.key.code(size), codec.value.code(size))
    assert layout.block_bytes == spec.block_bytes(block_size) <= content.shape[1]
    keys = (codec.key.code(size).scale, layout.key_scales, layout.key_scale_bytes)
    values = (codec.value.code(size).scale, layout.value_scales, layout.value_scale_bytes)
    for scale, start, head_bytes in (keys, values):
        assert scale is None or _is_readable(SCALE_BYTES[scale], content, start, head_bytes)
    return GPULayer(heads, size, block_size, codec, content)


def _is_readable(size: int, content: torch.Tensor, start: int, head_bytes: int) -> bool:
    """Whether scales of `size` bytes lie where a device reads them: at multiples of their size.

    start: of the first head's in a block; head_bytes: from there to the next head's.
    """
    places = (content.storage_offset() + start, head_bytes, content.stride(0))
    return not any(place % size for place in places)


def _view_latents(spec: LatentLayerSpec, block_size: int, content: torch.Tensor) -> GPULayer:
    width, codec = spec.rank + spec.rope_size, LATENT_CODECS.get(spec.dtype)
    if codec is not None:
        code = codec.code(spec.rank, spec.rope_size)
        return GPULayer(1, width, block_size, None, content, code)
    own = content.view(GPU_DTYPES[spec.dtype])[:, : width * block_size]
    blocks = own.unflatten(1, (block_size, width))
    return GPULayer(1, width, block_size, None, blocks)
