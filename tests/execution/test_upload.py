"""Numbers on their way to a device, and where they lie there."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagoda.execution.gpu.upload import InputUpload, bytes_of, lay_out
from pagoda.sizing.alignment import ALIGNMENT
from triton_device import DEVICE

shapes = st.lists(
    st.tuples(
        st.sampled_from([np.int32, np.int64]),
        st.lists(st.integers(0, 40), min_size=1, max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=8,
)


@given(shapes=shapes, seed=st.integers(0, 99))
def test_arrays_arrive_as_they_were_sent(shapes: list, seed: int) -> None:
    draw = np.random.default_rng(seed)
    arrays = [draw.integers(-9, 2**31 - 1, shape).astype(dtype) for dtype, shape in shapes]
    kept = [array.copy() for array in arrays]
    upload = InputUpload(bytes_of(arrays), DEVICE)
    places = upload.send(arrays)
    for array in arrays:
        array.fill(0)  # the caller may use its memory again
    for before, place in zip(kept, places, strict=True):
        assert place.offset % ALIGNMENT == 0
        assert np.array_equal(upload.at(place).cpu().numpy(), before)
    assert places == lay_out([(array.dtype, array.shape) for array in arrays])


def test_the_same_shapes_have_the_same_addresses_call_after_call() -> None:
    upload = InputUpload(4096, DEVICE)
    addresses, seen = set(), []
    for number in range(5):
        first = np.full(7, number, np.int32)
        second = np.arange(number, number + 3)
        places = upload.send([first, second])
        addresses.add(tuple(upload.at(place).data_ptr() for place in places))
        seen.append(torch.cat([upload.at(place).long() for place in places]).tolist())
    assert len(addresses) == 1
    assert seen == [[n] * 7 + [n, n + 1, n + 2] for n in range(5)]
