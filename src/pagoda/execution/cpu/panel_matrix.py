"""A weight in panels, of whatever kinds, as products take it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pagoda.errors import ModelError
from pagoda.kernels.array import Array
from pagoda.kernels.block_types import BYTE_TYPES, PANEL, panel_bytes
from pagoda.kernels.cpu.embed import embed_routine
from pagoda.kernels.cpu.few_rows import FEW_ROWS, few_rows_routine
from pagoda.kernels.cpu.int8_product import int8_routine
from pagoda.kernels.cpu.pack_stored import pack_stored
from pagoda.kernels.cpu.panels import SLICE_BYTES, PanelEntry, pack
from pagoda.kernels.cpu.stored_panels import decode_routine
from pagoda.models.stored_rows import StoredRows
from pagoda.models.weight_memory import HostMemory
from pagoda.sizing.kept_weights import KEPT_TYPES
from pagoda.storage.cpu_storage import as_array

OnPacked = Callable[[int], None]
"""Called with bytes of a file that were stored there and now lie in panels."""

_CHUNK_BYTES = 1 << 24
"""Of panels that are packed at once: few beside a matrix, many for each thread."""


@dataclass(frozen=True, slots=True)
class Panels:
    """Rows of a weight in panels of one kind, one panel after the other."""

    num_rows: int
    memory: Array
    """What they lie in; they begin with it."""
    panel_bytes: int
    decode: int
    """As `PanelEntry`'s."""
    few: int
    """As `PanelEntry`'s."""
    rounded: int
    """As `PanelEntry`'s."""

    @classmethod
    def plain(cls, matrix: torch.Tensor) -> Panels:
        """Turn a matrix into panels where it lies: it must not be used otherwise again."""
        array = as_array(matrix)
        pack(array)
        return cls(len(array), array, PANEL * array.strides[0], 0, 0, 0)

    @classmethod
    def stored(cls, rows: StoredRows, memory: HostMemory, on_packed: OnPacked) -> Panels:
        """Put rows into panels that keep their type.

        Raises `ModelError` for a scale that is not finite, and as their blocks do.
        """
        size = panel_bytes(rows.type, rows.shape[1])
        count = -(-rows.shape[0] // PANEL)
        panels = memory.tensor((count, size), torch.uint8).numpy()
        step = -(-_CHUNK_BYTES // size)
        for first in range(0, count, step):
            chunk = panels[first : first + step]
            num_rows = min(len(chunk) * PANEL, rows.shape[0] - first * PANEL)
            if not pack_stored(rows.type, rows.blocks(first * PANEL, num_rows), chunk):
                limit = "its scales must be finite"
                raise ModelError(rows.name, rows.type, limit)
            on_packed(num_rows * rows.nbytes // rows.shape[0])
        rows.release()
        decode = decode_routine(rows.type).address
        rounded = int8_routine(rows.type).address if rows.type in BYTE_TYPES else 0
        few = few_rows_routine(rows.type).address if FEW_ROWS else 0
        return cls(rows.shape[0], panels, size, decode, few, rounded)

    def entries(self) -> Array:
        """Their rows of a table, but for what is left of it: [panels, `TABLE_FIELDS`] int64."""
        count = -(-self.num_rows // PANEL)
        first = PanelEntry(self.memory.ctypes.data, self.decode, self.few, self.rounded, left=0)
        table = np.tile(np.array(first, np.int64), (count, 1))
        table[:, 0] += self.panel_bytes * np.arange(count)
        return table


@dataclass(frozen=True, slots=True)
class PanelMatrix:
    """A weight [out, in] in panels."""

    shape: tuple[int, int]
    table: Array
    """[panels + 1, `TABLE_FIELDS`] int64: every panel, and the last one once more."""
    parts: tuple[Panels, ...]

    @classmethod
    def of(cls, width: int, parts: Sequence[Panels]) -> PanelMatrix:
        """Parts one below the other; each but the last fills its panels."""
        entries = [part.entries() for part in parts]
        table = np.concatenate([*entries, entries[-1][-1:]])
        table[:, -1] = np.arange(len(table) - 1, -1, -1)
        return cls((sum(part.num_rows for part in parts), width), table, tuple(parts))

    @classmethod
    def plain(cls, matrix: torch.Tensor) -> PanelMatrix:
        """See `Panels.plain`."""
        return cls.of(matrix.shape[1], [Panels.plain(matrix)])

    @classmethod
    def stored(
        cls,
        parts: Sequence[StoredRows | torch.Tensor],
        dtype: torch.dtype,
        memory: HostMemory,
        on_packed: OnPacked = lambda num_bytes: None,
    ) -> PanelMatrix:
        """Parts of a type in `KEPT_TYPES` keep it; others are de-quantised to `dtype`.

        Raises `ModelError` as `Panels.stored`.
        """
        packer = _PartPacker(dtype, memory, on_packed)
        return cls.of(parts[0].shape[1], [packer.panels(part) for part in parts])

    @property
    def address(self) -> int:
        """Of the table."""
        return int(self.table.ctypes.data)

    def numbers(self, *, paired: bool) -> Array:
        """The weight as it was: [out, in] float32. paired: plain parts are bfloat16."""
        out = np.empty(self.shape, np.float32)
        rows, memory = np.arange(len(out)), np.empty(SLICE_BYTES, np.uint8)
        one = np.ones(1, np.float32)
        embed_routine(paired).ctypes(
            out.ctypes.data, rows.ctypes.data, len(out), self.address, *self.shape,
            one.ctypes.data, memory.ctypes.data,
        )  # fmt: skip
        return out

    @property
    def nbytes(self) -> int:
        """Of all panels."""
        return sum(part.memory.nbytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class _PartPacker:
    """Puts parts of a matrix into panels, whatever they come as."""

    dtype: torch.dtype
    memory: HostMemory
    on_packed: OnPacked

    def panels(self, part: StoredRows | torch.Tensor) -> Panels:
        if isinstance(part, torch.Tensor):
            return Panels.plain(part)
        if part.type in KEPT_TYPES:
            return Panels.stored(part, self.memory, self.on_packed)
        matrix = self.memory.tensor(part.shape, self.dtype)
        part.read(matrix)
        self.on_packed(part.nbytes)
        return Panels.plain(matrix)
