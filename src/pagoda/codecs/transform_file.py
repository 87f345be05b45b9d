"""Calibrated transforms on disk: the arrays of each run of layers and side, and steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pagoda.codecs.array_file import digest_of, read_arrays, write_arrays
from pagoda.codecs.transform import RunTransform, SideTransform
from pagoda.kernels.array import Array

_STEP = "step "
_LAYERS = "layer_ids"
_SIDES = ("key", "value")
_FIELDS = ("mean", "forward", "back", "sigma")


class FoundTransforms(NamedTuple):
    """What calibration finds."""

    runs: tuple[RunTransform, ...]
    steps: Mapping[str, float]
    """Of all codes, by the name of the form."""

    @property
    def digest(self) -> str:
        """Hex digits that stand for all of it."""
        return digest_of(self._arrays)

    def save(self, path: Path) -> None:
        """Whole, or not at all. Raises `OSError`."""
        write_arrays(path, self._arrays)

    @classmethod
    def load(cls, path: Path) -> FoundTransforms | None:
        """What `save` wrote; None where there is nothing, or not that."""
        arrays = read_arrays(path)
        if arrays is None:
            return None
        try:
            names = [name for name in arrays if name.startswith(_STEP)]
            steps = {name.removeprefix(_STEP): float(arrays.pop(name)[0]) for name in names}
            num_runs = len([name for name in arrays if name.endswith(_LAYERS)])
            return cls(tuple(_run(arrays, number) for number in range(num_runs)), steps)
        except (KeyError, ValueError, TypeError, IndexError):
            return None

    @property
    def _arrays(self) -> dict[str, Array]:
        found = {f"{_STEP}{form}": np.array([step]) for form, step in self.steps.items()}
        for number, run in enumerate(self.runs):
            found[f"{number}.{_LAYERS}"] = np.array(run.layer_ids, np.int64)
            for side in _SIDES:
                for name in _FIELDS:
                    found[f"{number}.{side}.{name}"] = getattr(getattr(run, side), name)
        return found


def _run(arrays: dict[str, Array], number: int) -> RunTransform:
    sides = (
        SideTransform(*(arrays[f"{number}.{side}.{name}"] for name in _FIELDS)) for side in _SIDES
    )
    return RunTransform(tuple(arrays[f"{number}.{_LAYERS}"].tolist()), *sides)
