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

from pagoda.models.gguf_header import GGUFTensor, read_header
from pagoda.models.gguf_mxfp4 import KEPT_AS, MXFP4
from pagoda.models.gguf_types import as_float32, require_read
from pagoda.models.mapped import map_file, release_pages
from pagoda.models.part import Rows


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
        """The type of each tensor, by its name, as `StoredRows` has it."""
        return {name: self.kept_type(name) for name in self.tensors}

    def kept_type(self, name: str) -> str:
        """GGUF's name of a tensor's type, or that of Pagoda's own in its place."""
        kind = self.tensors[name].type.name
        return KEPT_AS if kind == MXFP4 else kind

    def read_rows(self, name: str, rows: Rows) -> npt.NDArray[np.float32]:
        """Rows of a tensor as float32, [rows, columns]; a vector is one row.

        Raises `UnsupportedModelError` for a type that is not read.
        """
        tensor = self.tensors[name]
        require_read((tensor,))
        return as_float32(self.stored_rows(name, rows), tensor.type)

    def stored_rows(self, name: str, rows: Rows) -> npt.NDArray[np.uint8]:
        """Rows of a tensor as they lie in the file, [rows, bytes of a row], not copied if in order.

        All axes but the last count as rows.
        """
        tensor = self.tensors[name]
        stored = np.frombuffer(self._data, np.uint8, tensor.size_bytes, tensor.offset)
        return stored.reshape(-1, tensor.row_bytes)[rows]

    def release(self, name: str) -> None:
        """Give the pages of a tensor back."""
        tensor = self.tensors[name]
        release_pages(self._data, tensor.offset, tensor.size_bytes)
