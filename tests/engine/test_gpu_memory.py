"""Where a GPU's memory goes, in figures alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.engine.devices.memory import require_memory
from pagoda.engine.options import EngineOptions
from pagoda.errors import CapacityError
from pagoda.sizing.gpu_memory import (
    GPUUsage,
    MemoryProfile,
    requested_bytes,
    require_free,
    require_share,
)

GIB = 2**30
SIZES = {
    "kv_cache_memory_bytes": {"kv_cache_memory_bytes": 77, "gpu_memory_utilization": 0.5},
    "num_gpu_blocks_override": {"num_gpu_blocks_override": 5, "kv_cache_memory_bytes": 77},
    "gpu_memory_utilization": {"gpu_memory_utilization": 0.5},
}
"""What may be given together, by what counts of it."""


def usage(free_gib: float, total_gib: float = 80.0) -> GPUUsage:
    return GPUUsage(int(total_gib * GIB), int(free_gib * GIB), 0, 0)


def test_the_cache_gets_what_the_rest_leaves_of_the_share() -> None:
    profile = MemoryProfile(80 * GIB, 15 * GIB, GIB, 2 * GIB, GIB, GIB // 2)
    assert profile.available_bytes(0.9) == 72 * GIB - 19 * GIB - GIB // 2
    assert profile.available_bytes(0.2) == 0
    assert str(profile) == (
        "weights 15.0 GiB, other tensors 1.0 GiB, peak of the largest step 2.0 GiB, CUDA graphs "
        "1.0 GiB, outside of PyTorch 0.5 GiB"
    )


@given(
    total=st.integers(1, 300 * GIB),
    utilization=st.floats(0.01, 1.0),
    shares=st.lists(st.floats(0, 0.3), min_size=5, max_size=5),
)
def test_all_parts_together_are_the_share(
    total: int, utilization: float, shares: list[float]
) -> None:
    parts = [int(total * share) for share in shares]
    available = MemoryProfile(total, *parts).available_bytes(utilization)
    requested = requested_bytes(total, utilization)
    assert total * utilization <= requested < total * utilization + 1
    assert available == max(0, requested - sum(parts))


def test_what_is_outside_of_pytorch_is_what_neither_is_free_nor_held() -> None:
    assert GPUUsage(100, 60, 30, 20).outside_bytes == 10


def test_an_engine_starts_only_where_its_share_is_free() -> None:
    require_share(usage(free_gib=73.7), 0.92)
    with pytest.raises(CapacityError) as refusal:
        require_share(usage(free_gib=73.5), 0.92)
    assert (refusal.value.field, refusal.value.value) == ("gpu_memory_utilization", 0.92)
    assert refusal.value.limit == (
        "that is 73.6 GiB, but of the device's 80.0 GiB only 73.5 GiB are free: lower it, or end "
        "what else uses the device"
    )


@pytest.mark.parametrize("field", SIZES)
def test_a_cache_that_does_not_fit_is_laid_to_the_option_that_sized_it(field: str) -> None:
    asked = EngineOptions(**SIZES[field]).cache_size  # type: ignore[arg-type]
    require_free(10 * GIB, asked, usage(free_gib=10))
    require_memory(GIB // 2, asked)
    for refuse, limit in (
        (
            lambda: require_free(11 * GIB, asked, usage(free_gib=10)),
            "a cache of 11.0 GiB is more than the 10.0 GiB that are free of the device's 80.0",
        ),
        (
            lambda: require_memory(2**20 * GIB, asked),
            "a cache of 1048576.0 GiB is more than this machine's memory of ",
        ),
    ):
        with pytest.raises(CapacityError) as refusal:
            refuse()
        assert (refusal.value.field, refusal.value.value) == (field, SIZES[field].get(field))
        assert refusal.value.limit.startswith(limit)
