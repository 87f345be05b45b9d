"""Calibrated codecs on disk: a safetensors file with the arrays of each layer and side.

Beside them it has a digest of each side, so that a file that was damaged counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pagoda.codecs.calibrated import CalibratedCodec, Widths, path_widths
from pagoda.codecs.codec import Codec
from pagoda.codecs.levels import level_table
from pagoda.kernels.array import Array

_SIDES = ("key", "value")
_DIGESTS = "digests"
"""The file's word on its content: of each layer those of its keys and values, or null."""


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
    write_arrays(path, arrays, {_DIGESTS: json.dumps(_digests(codecs))})


def write_arrays(path: Path, arrays: Mapping[str, Array], told: dict[str, str]) -> None:
    """A safetensors file, whole or not at all; `told`: what it says of them. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        beside = Path(file.name)
        try:
            whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
            file.write(save(whole, told))
            file.close()
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def load_codecs(path: Path, widths: Widths) -> tuple[Codec | None, ...] | None:
    """What `save_codecs` wrote; None where there is nothing, or not that."""
    try:
        with safe_open(path, "np") as file:
            digests = json.loads((file.metadata() or {})[_DIGESTS])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        codecs = tuple(
            None if told is None else _codec(arrays, layer, widths)
            for layer, told in enumerate(digests)
        )
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, IndexError):
        return None
    return codecs if _digests(codecs) == digests else None


def _digests(codecs: Sequence[Codec | None]) -> list[list[str] | None]:
    return [
        None if codec is None else [side.digest for side in _sides(codec).values()]
        for codec in codecs
    ]


def _sides(codec: Codec | None) -> dict[str, CalibratedCodec]:
    """Keys and values, by what they are called in the file."""
    found = {}
    for name in _SIDES if codec is not None else ():
        side = getattr(codec, name)
        assert isinstance(side, CalibratedCodec)
        found[name] = side
    return found


def _codec(arrays: Mapping[str, Array], layer: int, widths: Widths) -> Codec:
    return Codec(*(_side(arrays, f"{layer}.{name}", getattr(widths, name)) for name in _SIDES))


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
