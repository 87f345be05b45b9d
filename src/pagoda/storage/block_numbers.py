"""The plain numbers of one block in main memory, layer by layer: out of its bytes and back."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from pagoda.cache.spec import CacheSpec
from pagoda.kernels.array import Array
from pagoda.storage.block_storage import BlockBytes
from pagoda.storage.cpu_storage import TORCH_DTYPES


@dataclass(frozen=True, slots=True)
class LayerNumbers:
    """Where one layer's numbers lie in a block."""

    layer_id: int
    start: int
    """Of its place, in bytes."""
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class BlockNumbers:
    """Of blocks that `CPUStorage` lays out; plain keys and values alone."""

    block_size: int
    block_bytes: int
    groups: tuple[tuple[LayerNumbers, ...], ...]
    """Of each group its layers, by their places."""

    @classmethod
    def of(cls, spec: CacheSpec) -> BlockNumbers:
        starts = [0, *accumulate(spec.place_bytes)]
        layers = [
            _layer(spec, layer_id, starts[place])
            for layer_id, place in enumerate(spec.place_of_layers)
        ]
        of_groups = (tuple(layers[each] for each in group.layer_ids) for group in spec.groups)
        return cls(spec.block_size, spec.block_bytes, tuple(of_groups))

    def read(self, layer: LayerNumbers, block: BlockBytes) -> tuple[Array, Array]:
        """Keys and values, each [block_size, num_kv_heads, head_size] float32."""
        own = bytearray(block[layer.start : layer.start + self._size(layer)])
        keys, values = self._views(layer, torch.frombuffer(own, dtype=torch.uint8))
        shape = (self.block_size, layer.num_kv_heads, layer.head_size)
        return keys.float().numpy().reshape(shape), values.float().numpy().reshape(shape)

    def write(self, layer: LayerNumbers, block: bytearray, keys: Array, values: Array) -> None:
        """What `read` gives, into a block's bytes."""
        own = torch.frombuffer(block, dtype=torch.uint8)[layer.start :][: self._size(layer)]
        views = self._views(layer, own)
        for view, numbers in zip(views, (keys, values), strict=True):
            view.copy_(torch.from_numpy(np.ascontiguousarray(numbers)).view(view.shape))

    def _size(self, layer: LayerNumbers) -> int:
        """Bytes of its place."""
        count = layer.num_kv_heads * layer.head_size * self.block_size
        return 2 * count * layer.dtype.itemsize

    def _views(self, layer: LayerNumbers, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """On the memory of its place: numbers of tokens in order, in the axes they lie in."""
        heads, size, tokens = layer.num_kv_heads, layer.head_size, self.block_size
        group = 4 // layer.dtype.itemsize
        count = heads * size * tokens
        numbers = own.view(layer.dtype)
        keys = numbers[:count].view(heads, size // group, tokens, group)
        values = numbers[count:].view(heads, tokens // group, size, group)
        return keys.permute(2, 0, 1, 3), values.permute(1, 3, 0, 2)


def _layer(spec: CacheSpec, layer_id: int, start: int) -> LayerNumbers:
    vectors = spec.layers[layer_id].vectors
    assert vectors is not None
    dtype = TORCH_DTYPES[vectors.dtype]
    return LayerNumbers(layer_id, start, vectors.num_kv_heads, vectors.head_size, dtype)
