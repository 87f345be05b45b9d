"""The tensors of one linear layer in safetensors files, as NumPy's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from pagoda.errors import ModelError
from pagoda.models.stored_tensors import StoredTensor

Array = npt.NDArray[Any]

SCALES: Mapping[str, str] = MappingProxyType({"F16": "f16", "BF16": "bf16", "F32": "f32"})
"""Dtypes of scales, and what they are called in types of blocks."""
_ARRAYS = {
    "I64": "<i8", "I32": "<i4", "I8": "i1", "U8": "u1", "F8_E4M3": "u1",
    "F32": "<f4", "F16": "<f2", "BF16": "<u2",
}  # fmt: skip
"""What NumPy calls them; it has no bfloat16 and no float8, so these are their bits."""


@dataclass(frozen=True, slots=True)
class StoredModule:
    """A layer's tensors by what stands behind its name: weight, qweight, weight.absmax, …"""

    name: str
    tensors: Mapping[str, StoredTensor]
    separator: str = "."
    """Between its name and what stands behind."""

    def __contains__(self, kind: str) -> bool:
        return kind in self.tensors

    def array(
        self, kind: str, *dtypes: str, shape: tuple[int, ...] | None = None, dims: int | None = None
    ) -> Array:
        """A tensor, not copied and not to be written.

        Raises `ModelError` naming it where it is missing, or has another dtype, another shape or
        another number of dimensions.
        """
        tensor = self._tensor(kind)
        if tensor.dtype not in dtypes:
            raise self.error(f"{kind} dtype", tensor.dtype, f"must be {' or '.join(dtypes)}")
        if shape is not None and tensor.shape != shape:
            raise self.error(kind, tensor.shape, f"its shape must be {shape}")
        if dims is not None and len(tensor.shape) != dims:
            raise self.error(kind, tensor.shape, f"must have {dims} dimensions")
        if 0 in tensor.shape:
            raise self.error(kind, tensor.shape, "must not be empty")
        stored = np.dtype(_ARRAYS[tensor.dtype])
        count = tensor.size_bytes // stored.itemsize
        return np.frombuffer(tensor.data, stored, count, tensor.start).reshape(tensor.shape)

    def raw(self, kind: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor of any dtype. Raises `ModelError` where it is missing."""
        tensor = self._tensor(kind)
        return np.frombuffer(tensor.data, np.uint8, tensor.size_bytes, tensor.start)

    def _tensor(self, kind: str) -> StoredTensor:
        if kind not in self.tensors:
            raise self.error(kind, None, "the files lack this tensor")
        return self.tensors[kind]

    def scale(self, kind: str) -> str:
        """What the dtype of scales is called in types of blocks; they are there."""
        return SCALES[self.tensors[kind].dtype]

    def tensor(self, kind: str) -> str:
        """The whole name of a tensor."""
        return f"{self.name}{self.separator}{kind}"

    def error(self, kind: str, value: object, limit: str) -> ModelError:
        """The refusal of one of its tensors."""
        return ModelError(self.tensor(kind), value, limit)
