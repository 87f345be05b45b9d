"""The memory that holds K and V of one GPU: where a block lies, how it is copied and moved.

One allocation; the layers lie one after the other, and a layer's blocks are
`[num_blocks, 2, num_kv_heads, block_size, head_size]`, keys before values, so that a tile of tokens
of one head is one piece of memory, whose rows are what a matrix product takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.cache.spec import AttentionLayerSpec, CacheSpec
from pagoda.kernels.gpu.copy import copy_blocks
from pagoda.kernels.gpu.pinned import to_device
from pagoda.storage.block_storage import BlockStorage, attention_layers, size_of

GPU_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""The dtypes that a storage on a device can hold."""

MAX_STAGING_BYTES = 64 * 2**20
"""Memory that copies of blocks take for a moment beside the storage.

The copies of one layer may take more, where they alone are more than this.
"""

_WORD_BYTES = 4
"""Blocks of whatever dtype are copied as words of this size: K and V are two numbers at least."""


@dataclass(frozen=True, slots=True)
class GPULayer:
    """One layer's part of the allocation: a view."""

    num_kv_heads: int
    head_size: int
    block_size: int
    blocks: torch.Tensor
    """[num_blocks, 2, num_kv_heads, block_size, head_size], contiguous: 0 are keys, 1 values"""


class GPUStorage(BlockStorage):
    """K and V of `num_blocks` blocks of every layer that `spec` names, in a device's memory.

    All of it is taken at once, and zero. Raises InvalidOptionError for a dtype that is no plain
    number here and for fewer than one block, torch.OutOfMemoryError where there is not so much.
    """

    def __init__(self, spec: CacheSpec, num_blocks: int, device: torch.device) -> None:
        size_bytes = size_of(spec, num_blocks)
        layer_specs = attention_layers(spec, GPU_DTYPES)
        memory = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        super().__init__(spec, num_blocks, memory)
        self.layers = tuple(
            _view_layer(layer, spec.block_size, content)
            for layer, content in zip(layer_specs, self._contents, strict=True)
        )
        self._words = memory.view(torch.int32)
        block_words = [content.shape[1] // _WORD_BYTES for content in self._contents]
        self._most_words = max(block_words)
        starts = num_blocks * (np.cumsum(block_words) - block_words)
        self._places = to_device(np.stack([starts, block_words], axis=1), device)
        """Where each layer begins, and what a block of it takes, in words."""

    def _copy(self, pairs: NDArray[np.int64]) -> None:
        sources, targets = to_device(pairs, self._words.device)
        layer_bytes = len(sources) * self._most_words * _WORD_BYTES
        num_layers = max(1, MAX_STAGING_BYTES // layer_bytes)
        for places in self._places.split(num_layers):
            staging = self._words.new_empty(len(sources), len(places), self._most_words)
            copy_blocks(self._words, staging, places, sources, targets)


def _view_layer(spec: AttentionLayerSpec, block_size: int, content: torch.Tensor) -> GPULayer:
    heads, size = spec.num_kv_heads, spec.head_size
    numbers = content.view(GPU_DTYPES[spec.dtype])
    return GPULayer(heads, size, block_size, numbers.view(-1, 2, heads, block_size, size))
