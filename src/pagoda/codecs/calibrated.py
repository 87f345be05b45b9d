"""Keys, or values, in a basis and with levels that were found for one layer of one model.

The basis puts what counts most first, in units of what an error there costs, and chunks get fewer
bits from front to back: those of few bits are a `trellis`. `calibrate` finds all of it. A scale is
one byte, of those beside the root mean square the best for the nearest levels, each on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from pagoda.codecs.array_file import digest_of
from pagoda.codecs.codec import Basis, Fit
from pagoda.codecs.levels import LevelTable, kernel_tables
from pagoda.codecs.nearest import nearest_places
from pagoda.codecs.trellis import level_places, nearest_path
from pagoda.kernels.array import Array
from pagoda.kernels.vector_code import (
    CHUNK,
    MOST_PATH_BITS,
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
    return VectorCode("levels", repeated, "ufloat8", has_paths=True)


def path_widths(widths: tuple[int, ...]) -> list[int]:
    """Those that are paths, each once."""
    return sorted({width for width in widths if 0 < width <= MOST_PATH_BITS})


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
    """By their bits; where these are paths, for scales to be found by."""
    paths: Mapping[int, Array]
    """Levels of chunks that are paths, by their bits: [2 ** (bits + 1)] int8, ascending."""
    unit: float
    """The root mean square of vectors whose scale is 1."""

    @property
    def fit(self) -> Fit:
        """See `SideCodec`."""
        return "weighted"

    @property
    def tables(self) -> tuple[Array, Array]:
        """See `SideCodec`."""
        return kernel_tables(self.levels, self.unit, self.paths)

    @property
    def arrays(self) -> dict[str, Array]:
        """All of what was found, by name."""
        levels = {f"levels_{bits}": table.values for bits, table in self.levels.items()}
        paths = {f"paths_{bits}": values for bits, values in self.paths.items()}
        return {
            "vectors": self.vectors,
            "queries": self.queries,
            "weights": self.weights,
            "unit": np.array([self.unit]),
            **levels,
            **paths,
        }

    @property
    def digest(self) -> str:
        """See `SideCodec`."""
        return digest_of(self.arrays)

    def code(self, head_size: int) -> VectorCode:
        """See `code_of`."""
        return code_of(self.widths, head_size)

    def basis(self, head_size: int) -> Basis:
        """See `SideCodec`."""
        return Basis(self.vectors, self.queries, front=head_size // QUARTERS)

    def recall(self, vectors: Array) -> Array:
        """See `SideCodec`."""
        found = self.decode(*self.encode(np.matmul(vectors, self.vectors).astype(np.float32)))
        return np.matmul(found, self.queries.swapaxes(-1, -2)).astype(np.float32)

    def encode(self, turned: Array) -> tuple[Array, Array]:
        """The plain truth: codes [..., head_size] and scales [...], uint8.

        turned: [num_kv_heads, tokens, head_size] float32, in the basis.
        """
        scales = self.scales(turned)
        scaled = turned * _factors(scales)
        parts = []
        for chunk, width in self._chunks(turned.shape[-1]):
            if width in self.paths:
                weights = self.weights[:, None, chunk]
                parts.append(nearest_path(scaled[..., chunk], weights, self.paths[width]))
            else:
                parts.append(self._nearest(scaled[..., chunk], width))
        return np.concatenate(parts, axis=-1), scales

    def scales(self, turned: Array) -> Array:
        """[...] uint8: of the vectors of `encode`."""
        rms = np.sqrt(np.square(turned).mean(-1, dtype=np.float32))
        middle = _nearest_ufloat8(rms * np.float32(1 / self.unit), ufloat8_values())
        best, least = middle, np.full(middle.shape, np.inf, np.float32)
        for step in range(-SCALE_REACH, SCALE_REACH + 1):
            scales = (middle.astype(np.int64) + step).clip(0, 255).astype(np.uint8)
            error = (np.square(turned - self._beside(turned, scales)) * self.weights[:, None]).sum(
                -1
            )
            best = np.where(error < least, scales, best)
            least = np.minimum(error, least)
        return best

    def decode(self, codes: Array, scales: Array) -> Array:
        """What codes stand for, still in the basis: float32."""
        parts = [
            self.paths[width][level_places(codes[..., chunk])]
            if width in self.paths
            else self.levels[width].values[codes[..., chunk]]
            for chunk, width in self._chunks(codes.shape[-1])
        ]
        levels = np.concatenate(parts, axis=-1).astype(np.float32)
        return levels * ufloat8_values()[scales][..., None]

    def _beside(self, turned: Array, scales: Array) -> Array:
        """The nearest levels, each on its own, with their scales."""
        scaled = turned * _factors(scales)
        parts = [
            self.levels[width].values[self._nearest(scaled[..., chunk], width)]
            for chunk, width in self._chunks(turned.shape[-1])
        ]
        return np.concatenate(parts, axis=-1) * ufloat8_values()[scales][..., None]

    def _nearest(self, scaled: Array, width: int) -> Array:
        return nearest_places(scaled, self.levels[width].bounds)

    def _chunks(self, head_size: int) -> list[tuple[slice, int]]:
        """Numbers of each chunk, and its width."""
        widths = self.code(head_size).widths
        return [
            (slice(chunk * CHUNK, chunk * CHUNK + CHUNK), width)
            for chunk, width in enumerate(widths)
        ]


def _factors(scales: Array) -> Array:
    """[..., 1] float32: what brings vectors of those scales to the units of levels."""
    values = ufloat8_values()[scales]
    found = np.where(values > 0, 1 / np.where(values > 0, values, 1), 0).astype(np.float32)
    return found[..., None]


def _nearest_ufloat8(numbers: Array, values: Array) -> Array:
    bounds = (values[1:] + values[:-1]) / 2
    return np.searchsorted(bounds, numbers, side="right").astype(np.uint8)
