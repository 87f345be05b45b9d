from __future__ import annotations

import numpy as np
import torch
from device_tensors import DEVICE
from hypothesis import given
from hypothesis import strategies as st

from pagoda.kernels.gpu.copy import copy_blocks
from triton_device import one_by_one

NUM_BLOCKS = 7


@given(
    st.lists(st.sampled_from((1, 3, 64, 1000, 1024, 1025, 2500)), min_size=1, max_size=3),
    st.permutations(range(NUM_BLOCKS)),
    st.lists(st.integers(0, NUM_BLOCKS - 1), max_size=NUM_BLOCKS),
)
def test_all_sources_are_read_before_any_target_is_written(
    widths: list[int], order: list[int], sources: list[int]
) -> None:
    rng = np.random.default_rng(len(sources))
    targets = order[: len(sources)]
    starts = np.cumsum([0, *(NUM_BLOCKS * width for width in widths)])
    memory = rng.integers(-(2**31), 2**31, size=starts[-1], dtype=np.int32)
    expected = memory.copy()
    for start, width in zip(starts, widths, strict=False):
        blocks = expected[start : start + NUM_BLOCKS * width].reshape(NUM_BLOCKS, width)
        blocks[targets] = blocks[sources]
    on_device = torch.from_numpy(memory).to(DEVICE)
    staging = torch.zeros(
        len(sources) + 1, len(widths), max(widths) + 5, dtype=torch.int32, device=DEVICE
    )
    layers = torch.tensor(list(zip(starts.tolist(), widths, strict=False)), device=DEVICE)
    ids = [torch.tensor(each, dtype=torch.int64, device=DEVICE) for each in (sources, targets)]
    with one_by_one():
        copy_blocks(on_device, staging, layers, *ids)
    assert np.array_equal(on_device.cpu().numpy(), expected)
