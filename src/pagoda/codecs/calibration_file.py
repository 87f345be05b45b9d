"""Calibrated codecs on disk: a safetensors file with the arrays of each layer and side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from pagoda.codecs.calibrated import CalibratedCodec, Widths
from pagoda.codecs.codec import Codec
from pagoda.codecs.levels import level_table
from pagoda.kernels.array import Array

_SIDES = ("key", "value")


def save_codecs(path: Path, codecs: Sequence[Codec]) -> None:
    """Write the codecs of all layers, whole or not at all. Raises `OSError`."""
    arrays = {
        f"{layer}.{side}.{name}": np.ascontiguousarray(array)
        for layer, codec in enumerate(codecs)
        for side in _SIDES
        for name, array in codec_arrays(getattr(codec, side)).items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        save_file(arrays, beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def load_codecs(path: Path, widths: Widths) -> tuple[Codec, ...] | None:
    """What `save_codecs` wrote; None where there is nothing, or not that."""
    try:
        arrays = load_file(path)
        count = 1 + max(int(name.partition(".")[0]) for name in arrays)
        return tuple(
            Codec(*(_codec(arrays, f"{layer}.{side}.", getattr(widths, side)) for side in _SIDES))
            for layer in range(count)
        )
    except (OSError, SafetensorError, KeyError, ValueError):
        return None


def codec_arrays(codec: CalibratedCodec) -> dict[str, Array]:
    """All of what was found, by name."""
    levels = {f"levels_{bits}": table.values for bits, table in codec.levels.items()}
    return {
        "vectors": codec.vectors,
        "queries": codec.queries,
        "errors": codec.errors,
        "unit": np.array([codec.unit], np.float64),
        **levels,
    }


def _codec(arrays: Mapping[str, Array], prefix: str, widths: tuple[int, ...]) -> CalibratedCodec:
    return CalibratedCodec(
        widths=widths,
        vectors=arrays[f"{prefix}vectors"],
        queries=arrays[f"{prefix}queries"],
        errors=arrays[f"{prefix}errors"],
        levels={bits: level_table(arrays[f"{prefix}levels_{bits}"]) for bits in set(widths)},
        unit=float(arrays[f"{prefix}unit"][0]),
    )
