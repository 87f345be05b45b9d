from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kept import kept
from kernel_arrays import DTYPES, assert_close, records_of, stored

from pagoda.kernels import reference
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.int8_rows import RECORD_BYTES, round_routine
from pagoda.kernels.cpu.norm import add_rows, norm_routine, norm_rows
from pagoda.kernels.cpu.team import phases


@kept
def run_norm(*args: Any) -> None:
    norm_rows(*args)


@kept
def run_add(*args: Any) -> None:
    add_rows(*args)


def norm(
    x: Array,
    rows: list[int],
    weight: Array | None,
    dtype: str,
    records: Array | None = None,
    *,
    is_centred: bool = False,
    is_shifted: bool = False,
) -> Array:
    out = stored(np.zeros((len(rows), x.shape[1])), dtype)
    chosen, eps, counters = np.array(rows), np.array([1e-5], np.float32), phases(1)
    routine = norm_routine(dtype == "bfloat16", is_centred, is_shifted)
    run_norm(
        counters.ctypes.data, routine.address, out.ctypes.data,
        out.itemsize, x.ctypes.data, chosen.ctypes.data, len(rows), x.shape[1],
        0 if weight is None else weight.ctypes.data, eps.ctypes.data, round_routine().address,
        0 if records is None else records.ctypes.data,
    )  # fmt: skip
    return out


def test_what_is_written_is_rounded_where_that_is_wanted():
    rng = np.random.default_rng(0)
    x, weight = (rng.normal(size=size).astype(np.float32) for size in ((9, 96), 96))
    records = np.empty((3, 9, RECORD_BYTES), np.uint8)
    out = norm(x, list(range(9)), weight, "bfloat16", records)
    assert np.array_equal(out, norm(x, list(range(9)), weight, "bfloat16"))
    assert np.array_equal(records, records_of(out))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (3, 20), (7, 576), (8, 33), (40, 128)])
def test_rows_are_those_of_the_reference(dtype: str, rows: int, width: int):
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, width)).astype(np.float32) * 3
    weight = rng.normal(size=width).astype(np.float32) + 1
    expected = reference.rms_norm(x, weight, 1e-5)
    assert_close(norm(x, list(range(rows)), weight, dtype), expected, dtype)
    chosen = list(range(rows))[::2]
    assert_close(norm(x, chosen, weight, dtype), expected[::2], dtype)
    centred = norm(x + 5, chosen, weight, dtype, is_centred=True)
    assert_close(centred, reference.layer_norm(x[::2] + 5, weight, 1e-5), dtype)
    assert np.array_equal(norm(x, chosen, None, dtype), stored(x[::2], dtype))
    bias = rng.normal(size=width).astype(np.float32)
    both = np.concatenate([weight, bias])
    shifted = norm(x + 5, chosen, both, dtype, is_centred=True, is_shifted=True)
    assert_close(shifted, reference.layer_norm(x[::2] + 5, weight, 1e-5) + bias, dtype)


@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (7, 33), (40, 128)])
def test_what_is_normed_and_scaled_is_added(rows: int, width: int, is_centred: bool):
    rng = np.random.default_rng(rows)
    stream, delta = (rng.normal(size=(rows, width)).astype(np.float32) for _ in range(2))
    weight, scale = rng.normal(size=width).astype(np.float32), np.array([0.3], np.float32)
    eps, numbers = np.array([1e-5], np.float32), np.arange(rows)
    reference_norm = reference.layer_norm if is_centred else reference.rms_norm
    for own, added in ((weight, reference_norm(delta, weight, 1e-5)), (None, delta)):
        out, taken, counters = stream.copy(), delta.copy(), phases(1)
        run_add(
            counters.ctypes.data, norm_routine(False, is_centred).address, out.ctypes.data,
            taken.ctypes.data, numbers.ctypes.data, rows, width,
            0 if own is None else own.ctypes.data, scale.ctypes.data, eps.ctypes.data,
        )  # fmt: skip
        assert_close(out, stream + 0.3 * added, "float32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_alone_and_among_others(dtype: str):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 96)).astype(np.float32)
    weight = rng.normal(size=96).astype(np.float32)
    together = norm(x, list(range(30)), weight, dtype)
    alone = np.concatenate([norm(x, [row], weight, dtype) for row in range(30)])
    assert np.array_equal(together, alone)
