from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import psutil
import pytest
import torch

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.spec import CacheSpec
from pagoda.codecs import CODECS
from pagoda.errors import InvalidOptionError
from pagoda.sizing.device_policy import CPUPolicy
from pagoda.sizing.readable_blocks import require_readable
from pagoda.storage.cpu_storage import CPUStorage


def cache_spec(dtype: str = "bfloat16", block_size: int = 8) -> CacheSpec:
    layers = (
        AttentionLayerSpec(2, 16, dtype),
        AttentionLayerSpec(3, 20, dtype),
        AttentionLayerSpec(1, 32, "float32"),
    )
    return CacheSpec(layers, block_size)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("block_size", [2, 8, 48])
def test_size_is_what_the_spec_says_and_views_lie_where_the_layout_says(
    dtype: str, block_size: int
):
    spec = cache_spec(dtype, block_size)
    storage = CPUStorage(spec, 5)
    assert storage.size_bytes == 5 * spec.block_bytes
    assert sum(layer.content.nbytes for layer in storage.layers) == storage.size_bytes
    for layer, layer_spec in zip(storage.layers, spec.layers, strict=True):
        heads, size = layer_spec.num_kv_heads, layer_spec.head_size
        group = 4 // layer.keys.dtype.itemsize
        assert layer.keys.shape == (5, heads, size // group, block_size, group)
        assert layer.values.shape == (5, heads, block_size // group, size, group)
        layer.keys[3, heads - 1, 1, block_size - 1, group - 1] = 1.5
        layer.values[3, heads - 1, block_size // group - 1, 2, group - 1] = 2.5
        numbers = layer.blocks[3].view(2, heads, -1)
        assert numbers[0, heads - 1, 2 * group * block_size - 1] == 1.5
        assert numbers[1, heads - 1, (block_size - group) * size + 3 * group - 1] == 2.5
        assert layer.array.dtype == (np.float32 if layer.keys.dtype == torch.float32 else np.uint16)
        assert np.count_nonzero(layer.array) == 2
        assert np.count_nonzero(layer.content[3]) > 0


def test_layers_lie_one_after_the_other_without_gaps():
    storage = CPUStorage(cache_spec(), 4)
    end = storage.layers[0].content.ctypes.data
    for layer in storage.layers:
        assert layer.content.ctypes.data == end
        end += layer.content.nbytes


def test_memory_is_not_committed_before_it_is_used():
    spec = CacheSpec.uniform(
        num_layers=4, num_kv_heads=4, head_size=64, dtype="float32", block_size=16
    )
    process = psutil.Process()
    before = process.memory_info().rss
    storage = CPUStorage(spec, (1 << 30) // spec.block_bytes)
    storage.copy_blocks([0], [1])
    assert process.memory_info().rss - before < 64 << 20
    assert storage.size_bytes > 900 << 20


@pytest.mark.parametrize(
    ("layer", "field"),
    [
        (AttentionLayerSpec(1, 8, "float16"), "dtype"),
        (AttentionLayerSpec(1, 9, "bfloat16"), "head_size"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(layer: AttentionLayerSpec, field: str):
    with pytest.raises(InvalidOptionError) as refusal:
        CPUStorage(CacheSpec((layer,), 16), 1)
    assert refusal.value.field == field


def test_a_block_of_odd_size_cannot_hold_pairs():
    with pytest.raises(InvalidOptionError) as refusal:
        CPUStorage(CacheSpec((AttentionLayerSpec(1, 8, "bfloat16"),), 15), 1)
    assert refusal.value.field == "block_size"
    assert CPUStorage(CacheSpec((AttentionLayerSpec(1, 8, "float32"),), 15), 1).num_blocks == 1


@pytest.mark.parametrize(
    "names", [("float32",), ("bfloat16",), *(("float32", name) for name in CODECS)]
)
def test_main_memory_holds_the_blocks_that_are_let_through_and_no_others(names: tuple[str, ...]):
    for block_size in range(1, 9):
        spec = CacheSpec(tuple(AttentionLayerSpec(2, 16, name) for name in names), block_size)
        assert refuses(partial(require_readable, CPUPolicy(), spec)) == refuses(
            partial(CPUStorage, spec, 1)
        )


def refuses(call: Callable[[], object]) -> bool:
    try:
        call()
    except InvalidOptionError as refusal:
        return refusal.field == "block_size"
    return False


def test_populate_takes_all_memory_and_leaves_what_is_stored():
    spec = CacheSpec.uniform(
        num_layers=3, num_kv_heads=2, head_size=64, dtype="bfloat16", block_size=16
    )
    storage = CPUStorage(spec, 5000)  # 40 MB a layer
    fill_first = storage.layers[1].content[7]
    fill_first[:] = 5
    before = psutil.Process().memory_info().rss
    turns = sum(1 for _ in storage.populate())
    grown = psutil.Process().memory_info().rss - before
    assert turns == 3 * -(-5000 * 16 * 2 * 2 * 64 * 2 // 2**21)
    assert grown > 0.9 * storage.size_bytes
    assert (storage.layers[1].content[7] == 5).all()
    assert not storage.layers[2].content.any()
