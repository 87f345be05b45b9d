"""Loads and stores of all programs at once, by NumPy's own indexing of the machine's memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from triton.language import core
from triton.language.semantic import TritonSemantic

from triton_interpreter.blocks import aligned, lengths_of, numpy_dtype, shape_of, tensor_of

BASE = 4096
"""Where arrays of all memory begin: NumPy takes no address 0 for one."""
BYTES: Any = (ctypes.c_uint8 * (2**56 - BASE)).from_address(BASE)
MEMORY: dict[Any, Any] = {}
"""All of it, by the dtypes that it is read as."""
SPARE = np.zeros(1, np.int64)
"""What masked lanes read instead."""


class Stores:
    """What programs that run together have overwritten, while it is not sure that they do."""

    def __init__(self) -> None:
        self.is_sure, self.kept = True, list[tuple[Any, Any, Any]]()

    def begin(self, is_sure: bool) -> None:
        self.is_sure, self.kept = is_sure, []

    def store(self, numbers: Any, places: Any, values: Any) -> None:
        if not self.is_sure:
            self.kept.append((numbers, places, numbers[places]))
        numbers[places] = values

    def undo(self) -> None:
        """As it was before any of them ran."""
        for numbers, places, old in reversed(self.kept):
            numbers[places] = old


STORES = Stores()


def memory_of(kind: Any) -> Any:
    """All memory as numbers of a type."""
    dtype = numpy_dtype(kind)
    if dtype not in MEMORY:
        count = len(BYTES) // dtype.itemsize
        MEMORY[dtype] = np.frombuffer(BYTES, dtype=dtype, count=count)
    return MEMORY[dtype]


def places_of(addresses: Any, size: int) -> Any:
    """Where numbers of so many bytes are in `memory_of`."""
    low = np.bitwise_or.reduce(addresses, axis=None) & np.uint64(size - 1)
    assert not low, f"address is no multiple of {size}"
    return ((addresses - np.uint64(BASE)) >> np.uint64(size.bit_length() - 1)).view(np.int64)


def load(
    self: Any, pointer: Any, mask: Any, other: Any, boundary_check: Any, padding: Any, *_: Any
) -> Any:
    """0 where masked, if there is no `other`."""
    require_pointers(pointer, mask, other)
    assert (boundary_check, padding) == ((), "")
    assert other is None or mask is not None
    kind = pointer.dtype.element_ty
    stored = core.int8 if kind.is_bool() else kind
    numbers, size = memory_of(stored), numpy_dtype(stored).itemsize
    if mask is None:
        found = numbers[places_of(pointer.handle.data, size)]
    else:
        given = (pointer, mask) if other is None else (pointer, mask, self.cast(other, stored))
        rank = max(len(lengths_of(each)) for each in given)
        addresses, wanted, *rest = (aligned(each.handle.data, rank) for each in given)
        addresses = np.where(wanted, addresses, np.uint64(SPARE.ctypes.data))
        found = numbers[places_of(addresses, size)]
        found = np.where(wanted, found, rest[0] if rest else numbers.dtype.type(0))
    loaded = tensor_of(found, stored)
    return self.cast(loaded, core.int1) if kind.is_bool() else loaded


def store(self: Any, pointer: Any, value: Any, mask: Any, boundary_check: Any, *_: Any) -> Any:
    require_pointers(pointer, mask, value)
    assert not boundary_check
    kind = pointer.dtype.element_ty
    stored = core.int8 if kind.is_bool() else kind
    value = self.cast(value, stored)
    given = (pointer, value) if mask is None else (pointer, value, mask)
    rank = len(lengths_of(pointer))
    arrays = [aligned(each.handle.data, rank) for each in given]
    shape = shape_of(*(each.shape for each in arrays))
    if shape[1:] != lengths_of(pointer):
        raise ValueError(f"pointers {lengths_of(pointer)} to store {shape[1:]}")
    addresses, data, *masks = (np.broadcast_to(each, shape) for each in arrays)
    if masks:
        assert masks[0].dtype == np.bool_
        addresses, data = addresses[masks[0]], data[masks[0]]
    numbers, places = memory_of(stored), places_of(addresses, numpy_dtype(stored).itemsize)
    STORES.store(numbers, places, data)
    return self.tensor(None, core.void)


def require_pointers(pointer: Any, *others: Any) -> None:
    """A plain pointer has one number, and no block to it."""
    assert pointer.dtype.is_ptr()
    assert not pointer.dtype.element_ty.is_block()
    if not pointer.type.is_block():
        assert not any(each is not None and each.type.is_block() for each in others)


def patch() -> None:
    TritonSemantic.load = load
    TritonSemantic.store = store
