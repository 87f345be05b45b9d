"""What all storages promise alike."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.spec import CacheSpec
from pagoda.errors import InvalidOptionError
from pagoda.storage import gpu_storage
from pagoda.storage.block_storage import BlockStorage
from pagoda.storage.cpu_storage import CPUStorage
from pagoda.storage.gpu_storage import GPUStorage
from triton_device import DEVICE, one_by_one

Make = Callable[[CacheSpec, int], BlockStorage]

STORAGES: dict[str, Make] = {
    "main memory": CPUStorage,
    "device": lambda spec, num_blocks: GPUStorage(spec, num_blocks, DEVICE),
}


@pytest.fixture(params=STORAGES)
def make(request: pytest.FixtureRequest) -> Make:
    return STORAGES[request.param]


def cache_spec(dtype: str = "bfloat16", block_size: int = 8) -> CacheSpec:
    layers = (
        AttentionLayerSpec(2, 16, dtype),
        AttentionLayerSpec(3, 20, dtype),
        AttentionLayerSpec(1, 32, "float32"),
    )
    return CacheSpec(layers, block_size)


def filled(make: Make, num_blocks: int, seed: int = 0) -> BlockStorage:
    rng = np.random.default_rng(seed)
    storage = make(cache_spec(), num_blocks)
    for block_id in range(num_blocks):
        content = rng.integers(0, 256, storage.spec.block_bytes, dtype=np.uint8)
        storage.import_block(block_id, content)
    return storage


def contents(storage: BlockStorage) -> list[np.ndarray]:
    return [storage.export_block(block) for block in range(storage.num_blocks)]


def same(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


def test_many_blocks_go_out_and_come_in_at_once(make: Make):
    storage = filled(make, 6)
    before = contents(storage)
    copies = storage.begin_export([4, 1, 3])
    storage.import_blocks([1, 3], [before[0].tobytes(), memoryview(before[5])])
    exported = list(copies.wait())
    assert copies.is_done
    assert [each.shape for each in exported] == 3 * [(storage.spec.block_bytes,)]
    assert same(exported, [before[4], before[1], before[3]]), "as they were at the call"
    expected = [before[number] for number in (0, 0, 2, 5, 4, 5)]
    assert same(contents(storage), expected)
    storage.import_blocks([], [])
    with pytest.raises(InvalidOptionError, match="a block of this cache takes"):
        storage.import_blocks([0, 1], [before[3], before[4][:-1]])
    assert same(contents(storage), expected), "none of them"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("block_size", [2, 8, 48])
def test_the_size_is_what_the_spec_says_and_all_is_zero(make: Make, dtype: str, block_size: int):
    spec = cache_spec(dtype, block_size)
    storage = make(spec, 5)
    assert storage.size_bytes == 5 * spec.block_bytes
    assert (storage.num_blocks, storage.block_size, storage.spec) == (5, block_size, spec)
    assert not np.concatenate(contents(storage)).any()


def test_copies_read_everything_before_they_write(make: Make):
    storage = filled(make, 6)
    before = contents(storage)
    with one_by_one():
        storage.copy_blocks([0, 1, 2, 0], [1, 2, 0, 5])
    expected = [before[2], before[0], before[1], before[3], before[4], before[0]]
    assert same(contents(storage), expected)
    storage.copy_blocks([], [])
    storage.copy_blocks(np.array([4]), np.array([4]))
    assert same(contents(storage), expected)


def test_random_copies_are_those_of_arrays(make: Make, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    storage = filled(make, 9)
    expected = np.array(contents(storage))
    for most_bytes in (gpu_storage.MAX_STAGING_BYTES, 1, 20_000):
        monkeypatch.setattr(gpu_storage, "MAX_STAGING_BYTES", most_bytes)
        sources = rng.integers(9, size=7)
        targets = rng.permutation(9)[:7]
        expected[targets] = expected[sources]
        with one_by_one():
            storage.copy_blocks(sources, targets)
        assert same(contents(storage), list(expected))


def test_a_block_goes_out_and_comes_back_in_another_storage(make: Make):
    here, there = filled(make, 3), filled(make, 4, seed=1)
    before = contents(there)
    data = here.export_block(1)
    assert data.nbytes == here.spec.block_bytes
    assert data.dtype == np.uint8
    there.import_block(2, data)
    assert np.array_equal(there.export_block(2), here.export_block(1))
    there.import_block(0, data.tobytes())
    assert np.array_equal(there.export_block(0), here.export_block(1))
    for untouched in (1, 3):
        assert np.array_equal(there.export_block(untouched), before[untouched])
    here.import_block(1, before[3])
    assert not np.array_equal(data, here.export_block(1)), "what was exported must be a copy"


def test_data_of_another_size_is_refused_and_changes_nothing(make: Make):
    storage = filled(make, 2)
    before = contents(storage)
    with pytest.raises(InvalidOptionError) as refusal:
        storage.import_block(0, bytes(storage.spec.block_bytes - 1))
    assert refusal.value.field == "data"
    assert same(contents(storage), before)


@pytest.mark.parametrize(
    ("layer", "num_blocks", "field"),
    [
        (AttentionLayerSpec(1, 8, "float32"), 0, "num_blocks"),
        (AttentionLayerSpec(1, 8, "int8"), 1, "dtype"),
        (AttentionLayerSpec(1, 8, "float32", head_size_v=4), 1, "head_size_v"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(
    make: Make, layer: AttentionLayerSpec, num_blocks: int, field: str
):
    with pytest.raises(InvalidOptionError) as refusal:
        make(CacheSpec((layer,), 16), num_blocks)
    assert refusal.value.field == field
