from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.spec import CacheSpec
from pagoda.codecs import CODECS
from pagoda.errors import InvalidOptionError
from pagoda.sizing.device_policy import GPUPolicy
from pagoda.sizing.readable_blocks import require_readable
from pagoda.storage.gpu_storage import GPU_DTYPES, GPUStorage
from triton_device import DEVICE

CARD = GPUPolicy("Test Card", 16 * 2**30, (9, 0))


@pytest.mark.parametrize("dtype", GPU_DTYPES)
@pytest.mark.parametrize("block_size", [1, 7, 16])
def test_views_lie_where_the_layout_says(dtype: str, block_size: int):
    layers = (AttentionLayerSpec(2, 9, dtype), AttentionLayerSpec(3, 20, dtype))
    spec = CacheSpec(layers, block_size)
    storage = GPUStorage(spec, 5, DEVICE)
    assert storage.size_bytes == 5 * spec.block_bytes
    begin = storage.layers[0].blocks.data_ptr()
    for layer, layer_spec in zip(storage.layers, layers, strict=True):
        heads, size = layer_spec.num_kv_heads, layer_spec.head_size
        assert (layer.num_kv_heads, layer.head_size, layer.block_size) == (heads, size, block_size)
        assert layer.blocks.shape == (5, 2, heads, block_size, size)
        assert layer.blocks.dtype == GPU_DTYPES[dtype]
        assert layer.blocks.is_contiguous()
        assert layer.blocks.data_ptr() == begin, "layers lie one after the other without gaps"
        begin += layer.blocks.nbytes


def test_a_number_is_in_its_blocks_bytes_and_goes_where_its_block_goes():
    spec = CacheSpec((AttentionLayerSpec(2, 9, "float16"), AttentionLayerSpec(1, 5, "float16")), 3)
    storage = GPUStorage(spec, 4, DEVICE)
    storage.layers[1].blocks[2, 1, 0, 2, 4] = 1.5
    first = storage.layers[0].blocks[0].numel()
    numbers = torch.from_numpy(storage.export_block(2)).view(torch.float16)
    assert numbers[first + 29] == 1.5
    assert numbers.count_nonzero() == 1
    storage.copy_blocks([2], [0])
    assert storage.layers[1].blocks[0, 1, 0, 2, 4] == 1.5
    assert storage.layers[1].blocks.count_nonzero() == 2


@pytest.mark.parametrize("block_size", [1, 16])
def test_blocks_of_codes_are_as_large_as_the_spec_says_and_go_where_blocks_go(block_size: int):
    layers = tuple(AttentionLayerSpec(1, 16, name) for name in ("bfloat16", *CODECS))
    spec = CacheSpec(layers, block_size)
    storage = GPUStorage(spec, 4, DEVICE)
    rng = np.random.default_rng(0)
    content = rng.integers(0, 256, (4, spec.block_bytes), dtype=np.uint8)
    for block, data in enumerate(content):
        storage.import_block(block, data)
    storage.copy_blocks([0, 3], [1, 0])
    expected = content[[3, 0, 2, 3]]
    assert np.array_equal([storage.export_block(block) for block in range(4)], expected)
    begin = layers[0].block_bytes(block_size)
    for layer, layer_spec in zip(storage.layers[1:], layers[1:], strict=True):
        end = begin + layer_spec.block_bytes(block_size)
        assert layer.codec == CODECS[layer_spec.dtype]
        assert np.array_equal(layer.blocks.cpu().numpy(), expected[:, begin:end])
        begin = end
    assert begin == spec.block_bytes


HALF_AND_WHOLE = "levels5-float16-unbiased-signs/int8-float32-hadamard"
"""Scales of two bytes, and behind them scales of four."""
ODD_TOKENS = "levels5-float32-least/levels2-float16-least"
"""Of 16 numbers a token takes 20 bytes, and scales of four begin behind 14."""
MIXED = (
    (HALF_AND_WHOLE,), (ODD_TOKENS,), ("bfloat16", HALF_AND_WHOLE, "float16"),
    ("turboquant_3bit_nc", "float32"),
)  # fmt: skip
"""Of layers, formats that a device cannot read in blocks of every size."""
READ = (*((name, "bfloat16", name) for name in CODECS), ("e5m2/e5m2", "float16"))


@pytest.mark.parametrize("names", [*MIXED, *READ])
def test_a_device_holds_the_blocks_that_are_let_through(names: tuple[str, ...]):
    refused = set[int]()
    for heads, head_size, block_size in product((1, 2, 3), (16, 32), (1, 2, 3, 4, 5, 6, 8)):
        layers = tuple(AttentionLayerSpec(heads, head_size, name) for name in names)
        spec = CacheSpec(layers, block_size)
        if not does(partial(require_readable, CARD, spec), InvalidOptionError):
            refused.add(block_size)
            assert not does(partial(GPUStorage, spec, 3, DEVICE), AssertionError, RuntimeError)
        else:
            GPUStorage(spec, 3, DEVICE)
    assert refused == ({1, 3, 5} if names in MIXED else set())


def does(call: Callable[[], object], *errors: type[Exception]) -> bool:
    """Whether it raises none of `errors`."""
    try:
        call()
    except errors:
        return False
    return True
