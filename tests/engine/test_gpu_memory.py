"""Where a GPU's memory goes, in figures alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.engine.devices.gpu_memory import (
    DeviceUsage,
    MemoryProfile,
    requested_bytes,
    require_free,
    require_share,
)
from pagoda.errors import CapacityError

GIB = 2**30


def usage(free_gib: float, total_gib: float = 80.0) -> DeviceUsage:
    return DeviceUsage(int(total_gib * GIB), int(free_gib * GIB), 0, 0)


def test_the_cache_gets_what_the_rest_leaves_of_the_share() -> None:
    profile = MemoryProfile(80 * GIB, 16 * GIB, 2 * GIB, GIB, GIB // 2)
    assert profile.available_bytes(0.9) == 72 * GIB - 19 * GIB - GIB // 2
    assert profile.available_bytes(0.2) == 0
    assert str(profile) == (
        "weights 16.0 GiB, peak of the largest step 2.0 GiB, CUDA graphs 1.0 GiB, "
        "outside of PyTorch 0.5 GiB"
    )


@given(
    total=st.integers(1, 300 * GIB),
    utilization=st.floats(0.01, 1.0),
    shares=st.lists(st.floats(0, 0.3), min_size=4, max_size=4),
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
    assert DeviceUsage(100, 60, 30, 20).outside_bytes == 10


def test_an_engine_starts_only_where_its_share_is_free() -> None:
    require_share(usage(free_gib=73.7), 0.92)
    with pytest.raises(CapacityError) as refusal:
        require_share(usage(free_gib=73.5), 0.92)
    assert (refusal.value.field, refusal.value.value) == ("gpu_memory_utilization", 0.92)
    assert refusal.value.limit == (
        "that is 73.6 GiB, but of the device's 80.0 GiB only 73.5 GiB are free: lower it, or end "
        "what else uses the device"
    )


def test_a_cache_that_was_sized_has_to_be_free() -> None:
    require_free(10 * GIB, usage(free_gib=10))
    with pytest.raises(CapacityError) as refusal:
        require_free(10 * GIB + 1, usage(free_gib=10))
    assert (refusal.value.field, refusal.value.value) == ("kv_cache_memory_bytes", 10 * GIB + 1)
    assert "10.0 of 80.0 GiB" in refusal.value.limit
