"""GGUF files: metadata, the table of tensors, and de-quantised rows.

The file is memory-mapped, and the pages of a tensor are given back once it is read, so that reading
never holds more than one tensor of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize

from pagoda.errors import UnsupportedModelError
from pagoda.models.gguf_header import GGUFTensor, read_header
from pagoda.models.mapped import map_file, release_pages


class GGUFFile:
    """A GGUF file, opened and checked: every tensor it lists lies inside it.

    `metadata` and `tensors` are read at once. Raises `ModelError` naming the file where it is not
    GGUF, is truncated or contradicts itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = map_file(path)
        header = read_header(self._data, path.name)
        self.metadata: Mapping[str, Any] = header.metadata
        """By key. A value is decoded when it is looked up."""
        self.tensors: Mapping[str, GGUFTensor] = MappingProxyType(header.tensors)

    @property
    def types(self) -> dict[str, str]:
        """GGUF's name of each tensor's type, by the tensor's."""
        return {name: tensor.type.name for name, tensor in self.tensors.items()}

    def read_rows(self, name: str, first: int, num_rows: int) -> npt.NDArray[np.float32]:
        """Rows of a tensor as float32, [num_rows, columns]; a vector is one row.

        Raises `UnsupportedModelError` for a quantisation that cannot be undone.
        """
        tensor = self.tensors[name]
        try:
            rows = dequantize(self.stored_rows(name, first, num_rows), tensor.type)
        except NotImplementedError as error:
            raise UnsupportedModelError(
                name, tensor.type.name, "this quantisation is not covered"
            ) from error
        return rows

    def stored_rows(self, name: str, first: int, num_rows: int) -> npt.NDArray[np.uint8]:
        """Rows of a tensor as they lie in the file, [num_rows, bytes of a row], not copied."""
        tensor = self.tensors[name]
        start = tensor.offset + first * tensor.row_bytes
        size_bytes = num_rows * tensor.row_bytes
        stored = np.frombuffer(self._data, dtype=np.uint8, count=size_bytes, offset=start)
        return stored.reshape(num_rows, tensor.row_bytes)

    def release(self, name: str) -> None:
        """Give the pages of a tensor back."""
        tensor = self.tensors[name]
        release_pages(self._data, tensor.offset, tensor.size_bytes)
