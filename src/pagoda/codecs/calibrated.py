"""Keys, or values, in a basis and with levels that were found for one layer of one model.

The basis puts what counts most first, in units of what an error there costs, and chunks get fewer
bits from front to back. `calibrate` finds all of it. A scale is one byte, the best of those beside
the root mean square.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from pagoda.codecs.codec import Basis, Fit
from pagoda.codecs.levels import LevelTable, kernel_tables
from pagoda.kernels.array import Array
from pagoda.kernels.vector_code import (
    CHUNK,
    SCALE_REACH,
    VectorCode,
    require_multiple,
    ufloat8_values,
)

QUARTERS = 4
"""Parts of a vector that each have a width."""


class Widths(NamedTuple):
    """Bits of a number in each quarter of a vector."""

    key: tuple[int, ...]
    value: tuple[int, ...]


CALIBRATED = MappingProxyType(
    {
        "int4": Widths((6, 5, 4, 3), (5, 4, 4, 4)),
        "int3": Widths((6, 3, 2, 2), (4, 3, 3, 2)),
        "int2": Widths((5, 3, 1, 1), (4, 2, 2, 1)),
    }
)
"""What is calibrated for a model, by the name of `--kv-cache-dtype`."""


def code_of(widths: tuple[int, ...], head_size: int) -> VectorCode:
    """Where the bits of a vector lie. Raises `InvalidOptionError` unless it has whole quarters."""
    size = QUARTERS * CHUNK
    require_multiple(head_size, size)
    repeated = tuple(width for width in widths for _ in range(head_size // size))
    return VectorCode("levels", repeated, "ufloat8")


@dataclass(frozen=True, eq=False, slots=True)
class CalibratedCodec:
    """See `SideCodec`."""

    widths: tuple[int, ...]
    """Of its quarters."""
    vectors: Array
    """[num_kv_heads, head_size, head_size] float32: the basis, `Basis.vectors`."""
    queries: Array
    """Likewise, `Basis.queries`."""
    weights: Array
    """[num_kv_heads, head_size] float32: what a squared error of each number counts."""
    levels: Mapping[int, LevelTable]
    """By their bits."""
    unit: float
    """The root mean square of vectors whose scale is 1."""

    @property
    def fit(self) -> Fit:
        """See `SideCodec`."""
        return "weighted"

    @property
    def tables(self) -> tuple[Array, Array]:
        """See `SideCodec`."""
        return kernel_tables(self.levels, self.unit)

    @property
    def arrays(self) -> dict[str, Array]:
        """All of what was found, by name."""
        levels = {f"levels_{bits}": table.values for bits, table in self.levels.items()}
        return {
            "vectors": self.vectors,
            "queries": self.queries,
            "weights": self.weights,
            "unit": np.array([self.unit]),
            **levels,
        }

    @property
    def digest(self) -> str:
        """Of `arrays`."""
        found = blake2b(digest_size=16)
        for name, array in sorted(self.arrays.items()):
            found.update(f"{name} {array.shape} {array.dtype}\n".encode())
            found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()

    def code(self, head_size: int) -> VectorCode:
        """See `code_of`."""
        return code_of(self.widths, head_size)

    def basis(self, head_size: int) -> Basis:
        """See `SideCodec`."""
        return Basis(self.vectors, self.queries)

    def recall(self, vectors: Array) -> Array:
        """See `SideCodec`."""
        found = self.decode(*self.encode(np.matmul(vectors, self.vectors).astype(np.float32)))
        return np.matmul(found, self.queries.swapaxes(-1, -2)).astype(np.float32)

    def encode(self, turned: Array) -> tuple[Array, Array]:
        """The plain truth: codes [..., head_size] and scales [...], uint8.

        turned: [num_kv_heads, tokens, head_size] float32, in the basis.
        """
        values = ufloat8_values()
        rms = np.sqrt(np.square(turned).mean(-1, dtype=np.float32))
        middle = _nearest_ufloat8(rms * np.float32(1 / self.unit), values)
        best, least = middle, np.full(middle.shape, np.inf, np.float32)
        for step in range(-SCALE_REACH, SCALE_REACH + 1):
            scales = (middle.astype(np.int64) + step).clip(0, 255).astype(np.uint8)
            back = self.decode(self._codes(turned, scales), scales)
            error = (np.square(turned - back) * self.weights[:, None]).sum(-1)
            best = np.where(error < least, scales, best)
            least = np.minimum(error, least)
        return self._codes(turned, best), best

    def decode(self, codes: Array, scales: Array) -> Array:
        """What codes stand for, still in the basis: float32."""
        parts = [
            self.levels[width].values[codes[..., start : start + CHUNK]]
            for start, width in self._chunks(codes.shape[-1])
        ]
        levels = np.concatenate(parts, axis=-1).astype(np.float32)
        return levels * ufloat8_values()[scales][..., None]

    def _codes(self, turned: Array, scales: Array) -> Array:
        values = ufloat8_values()[scales]
        factors = np.where(values > 0, 1 / np.where(values > 0, values, 1), 0).astype(np.float32)
        scaled = turned * factors[..., None]
        parts = [
            np.searchsorted(self.levels[width].bounds, scaled[..., start : start + CHUNK])
            for start, width in self._chunks(turned.shape[-1])
        ]
        return np.concatenate(parts, axis=-1).astype(np.uint8)

    def _chunks(self, head_size: int) -> list[tuple[int, int]]:
        """The first number of each chunk, and its width."""
        widths = self.code(head_size).widths
        return [(chunk * CHUNK, width) for chunk, width in enumerate(widths)]


def _nearest_ufloat8(numbers: Array, values: Array) -> Array:
    bounds = (values[1:] + values[:-1]) / 2
    return np.searchsorted(bounds, numbers, side="right").astype(np.uint8)
