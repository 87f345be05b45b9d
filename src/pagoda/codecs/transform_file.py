"""Calibrated transforms on disk: a safetensors file with the arrays of each run of layers and side.

Beside them it has a digest of all, so that a file that was damaged counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from pagoda.codecs.calibration_file import write_arrays
from pagoda.codecs.transform import RunTransform, SideTransform, digest_of
from pagoda.kernels.array import Array

_DIGEST = "digest"
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
        return digest_of(sorted(self._arrays(), key=lambda each: each[0]))

    def save(self, path: Path) -> None:
        """Whole, or not at all. Raises `OSError`."""
        write_arrays(path, dict(self._arrays()), {_DIGEST: self.digest})

    @classmethod
    def load(cls, path: Path) -> FoundTransforms | None:
        """What `save` wrote; None where there is nothing, or not that."""
        try:
            with safe_open(path, "np") as file:
                digest = (file.metadata() or {})[_DIGEST]
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            names = [name for name in arrays if name.startswith(_STEP)]
            steps = {name.removeprefix(_STEP): float(arrays.pop(name)[0]) for name in names}
            num_runs = len([name for name in arrays if name.endswith(_LAYERS)])
            found = cls(tuple(_run(arrays, number) for number in range(num_runs)), steps)
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, IndexError):
            return None
        return found if found.digest == digest else None

    def _arrays(self) -> Iterator[tuple[str, Array]]:
        for form, step in self.steps.items():
            yield f"{_STEP}{form}", np.array([step])
        for number, run in enumerate(self.runs):
            yield f"{number}.{_LAYERS}", np.array(run.layer_ids, np.int64)
            for side in _SIDES:
                for name in _FIELDS:
                    yield f"{number}.{side}.{name}", getattr(getattr(run, side), name)


def _run(arrays: dict[str, Array], number: int) -> RunTransform:
    sides = (
        SideTransform(*(arrays[f"{number}.{side}.{name}"] for name in _FIELDS)) for side in _SIDES
    )
    return RunTransform(tuple(arrays[f"{number}.{_LAYERS}"].tolist()), *sides)
