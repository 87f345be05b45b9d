"""Calibrated codecs on disk: the arrays of each layer and side, and which layers have any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pagoda.codecs.array_file import read_arrays, write_arrays
from pagoda.codecs.calibrated import CalibratedCodec, Widths, path_widths
from pagoda.codecs.codec import Codec
from pagoda.codecs.levels import level_table
from pagoda.kernels.array import Array

_SIDES = ("key", "value")
_CODED = "coded"
"""[layers] bool: which have a codec."""


def save_codecs(path: Path, codecs: Sequence[Codec | None]) -> None:
    """Write the codecs of all layers, whole or not at all; None: a layer has none.

    Raises `OSError`.
    """
    arrays = {
        f"{layer}.{name}.{kind}": array
        for layer, codec in enumerate(codecs)
        for name, side in _sides(codec).items()
        for kind, array in side.arrays.items()
    }
    write_arrays(path, arrays | {_CODED: np.array([codec is not None for codec in codecs])})


def load_codecs(path: Path, widths: Widths) -> tuple[Codec | None, ...] | None:
    """What `save_codecs` wrote; None where there is nothing, or not that."""
    arrays = read_arrays(path)
    if arrays is None:
        return None
    try:
        return tuple(
            _codec(arrays, layer, widths) if is_coded else None
            for layer, is_coded in enumerate(arrays[_CODED])
        )
    except (KeyError, ValueError, IndexError):
        return None


def _sides(codec: Codec | None) -> dict[str, CalibratedCodec]:
    """Keys and values, by what they are called in the file."""
    found = {}
    for name in _SIDES if codec is not None else ():
        side = getattr(codec, name)
        assert isinstance(side, CalibratedCodec)
        found[name] = side
    return found


def _codec(arrays: Mapping[str, Array], layer: int, widths: Widths) -> Codec:
    key, value = (_side(arrays, f"{layer}.{name}", getattr(widths, name)) for name in _SIDES)
    return Codec(key, value)


def _side(arrays: Mapping[str, Array], prefix: str, widths: tuple[int, ...]) -> CalibratedCodec:
    return CalibratedCodec(
        widths=widths,
        vectors=arrays[f"{prefix}.vectors"],
        queries=arrays[f"{prefix}.queries"],
        weights=arrays[f"{prefix}.weights"],
        levels={bits: level_table(arrays[f"{prefix}.levels_{bits}"]) for bits in set(widths)},
        paths={bits: arrays[f"{prefix}.paths_{bits}"] for bits in path_widths(widths)},
        unit=float(arrays[f"{prefix}.unit"][0]),
    )
