"""Numbers of a block are found in its bytes where the storage keeps them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.layers import SlidingWindowLayerSpec
from pagoda.cache.spec import CacheSpec
from pagoda.storage.block_numbers import BlockNumbers
from pagoda.storage.cpu_storage import CPUStorage

BLOCK = 4


def spec_of(dtype: str) -> CacheSpec:
    """Two groups, the second of a window's layers."""
    full = AttentionLayerSpec(2, 6, dtype)
    windowed = SlidingWindowLayerSpec(full, 8)
    return CacheSpec((full, windowed, full, windowed), BLOCK)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_they_are_those_of_the_storage(dtype: str) -> None:
    storage = CPUStorage(spec_of(dtype), 3)
    chance = torch.Generator().manual_seed(0)
    for layer in storage.layers:
        layer.blocks.copy_(torch.randn(layer.blocks.shape, generator=chance))
    numbers = BlockNumbers.of(storage.spec)
    assert sorted(each.layer_id for group in numbers.groups for each in group) == [0, 1, 2, 3]
    exported = storage.export_block(1)
    for own in (each for group in numbers.groups for each in group):
        layer = storage.layers[own.layer_id]
        keys, values = numbers.read(own, exported)
        assert keys.shape == values.shape == (BLOCK, 2, 6)
        for token in range(BLOCK):
            group = layer.keys.shape[-1]
            of_keys = layer.keys[1, :, :, token].reshape(2, 6)
            of_values = layer.values[1, :, token // group, :, token % group]
            assert (keys[token] == of_keys.float().numpy()).all()
            assert (values[token] == of_values.float().numpy()).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_was_read_is_written_back(dtype: str) -> None:
    numbers = BlockNumbers.of(spec_of(dtype))
    chance = np.random.default_rng(0)
    block = chance.standard_normal(numbers.block_bytes // 4).astype(np.float32).tobytes()
    for group in numbers.groups:
        written = bytearray(numbers.block_bytes)
        for layer in group:
            numbers.write(layer, written, *numbers.read(layer, block))
        if dtype == "float32":
            assert written == block
