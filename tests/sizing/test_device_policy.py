"""The policy of devices: what engine and planner both go by."""

from __future__ import annotations

import pytest

from pagoda.errors import InvalidOptionError
from pagoda.sizing.cache_size import CacheSize
from pagoda.sizing.device_policy import CPUPolicy, DevicePolicy, GPUPolicy
from pagoda.sizing.gpu_memory import MemoryProfile
from pagoda.sizing.quantised_weights import RECIPES

GIB = 2**30
H100 = GPUPolicy("NVIDIA H100 80GB HBM3", 79 * GIB, (9, 0))


def test_the_default_cache_of_a_cpu_holds_the_longest_request() -> None:
    def available(asked: CacheSize, longest: int) -> int:
        return CPUPolicy().available_bytes(
            asked, 100 * GIB, block_bytes=1, blocks_of_longest=longest
        )

    assert available(CacheSize(), GIB) == 4 * GIB
    assert available(CacheSize(), 16 * GIB) == 16 * GIB
    assert available(CacheSize(), 80 * GIB) == 50 * GIB
    assert available(CacheSize(gpu_memory_utilization=0.9), 1) == 90 * GIB
    assert available(CacheSize(kv_cache_memory_bytes=7), 1) == 7
    assert available(CacheSize(num_gpu_blocks_override=5, kv_cache_memory_bytes=7), 1) == 5


def test_the_cache_of_a_gpu_is_what_is_left_of_its_share() -> None:
    profile = MemoryProfile(100 * GIB, 15 * GIB, GIB, 2 * GIB, GIB, GIB)
    assert H100.available_bytes(CacheSize(), profile) == 72 * GIB
    assert H100.available_bytes(CacheSize(gpu_memory_utilization=0.5), profile) == 30 * GIB


@pytest.mark.parametrize(
    ("policy", "asked", "own", "expected"),
    [
        (CPUPolicy(), "auto", "float16", "bfloat16"),
        (CPUPolicy(), "auto", "float32", "float32"),
        (CPUPolicy(), "bfloat16", "float32", "bfloat16"),
        (H100, "auto", "float16", "float16"),
        (H100, "auto", "float32", "float32"),
        (H100, "float16", "bfloat16", "float16"),
    ],
)
def test_the_dtype_is_the_checkpoints_where_the_device_computes_in_it(
    policy: DevicePolicy, asked: str, own: str, expected: str
) -> None:
    assert policy.dtype(asked, own) == expected


def test_beside_quantised_types_a_cpu_takes_bfloat16() -> None:
    assert CPUPolicy().dtype("auto", "float32", "q4_k") == "bfloat16"
    assert CPUPolicy().dtype("bfloat16", "float32", "q8_0") == "bfloat16"
    assert CPUPolicy().dtype("auto", "float32", "none") == "float32"


@pytest.mark.parametrize(
    ("policy", "dtype", "limit"),
    [
        (CPUPolicy(), "float32", "takes bfloat16 for all else: leave --dtype float32 out"),
        (H100, "auto", "weights are quantised on CPUs alone: --device cpu"),
        (H100, "bfloat16", "weights are quantised on CPUs alone: --device cpu"),
    ],
)
@pytest.mark.parametrize("name", RECIPES)
def test_weights_are_quantised_on_cpus_beside_bfloat16_alone(
    policy: DevicePolicy, dtype: str, limit: str, name: str
) -> None:
    with pytest.raises(InvalidOptionError, match=f"quantization='{name}': {limit}"):
        policy.dtype(dtype, "bfloat16", name)


@pytest.mark.parametrize(
    ("policy", "asked", "limit"),
    [
        (CPUPolicy(), "float16", "one of auto, float32, bfloat16 on a CPU"),
        (H100, "float64", "one of auto, float32, bfloat16, float16 on a GPU"),
    ],
)
def test_a_dtype_that_the_device_lacks_is_refused(
    policy: DevicePolicy, asked: str, limit: str
) -> None:
    with pytest.raises(InvalidOptionError) as refusal:
        policy.dtype(asked, "float32")
    assert (refusal.value.field, refusal.value.value) == ("dtype", asked)
    assert refusal.value.limit == limit


@pytest.mark.parametrize(
    ("policy", "limits"),
    [
        (CPUPolicy(), (512, 128)),
        (GPUPolicy("NVIDIA H200", 139 * GIB, (9, 0)), (8192, 1024)),
        (GPUPolicy("NVIDIA A100-SXM4-80GB", 79 * GIB, (8, 0)), (2048, 256)),
        (GPUPolicy("NVIDIA L4", 22 * GIB, (8, 9)), (2048, 256)),
    ],
)
def test_the_largest_step_suits_the_device(policy: DevicePolicy, limits: tuple[int, int]) -> None:
    assert policy.default_limits == limits
    assert policy.default_limits.or_given(limits[1], None) == (limits[1], limits[1])
    assert policy.default_limits.or_given(64, None) == (64, 64), "each sequence has a token"
    assert policy.default_limits.or_given(64, 100) == (64, 64)
    assert policy.default_limits.or_given(None, 2) == (limits[0], 2)
