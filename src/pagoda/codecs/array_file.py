"""What was found for a model, on disk: named arrays in a safetensors file.

Beside them it has a digest of all, so that a file that was damaged counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pagoda.kernels.array import Array

_DIGEST = "digest"


def digest_of(arrays: Mapping[str, Array]) -> str:
    """Hex digits that stand for arrays and their names, in whatever order."""
    found = blake2b(digest_size=16)
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.shape} {array.dtype}\n".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Whole, or not at all. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        beside = Path(file.name)
        try:
            whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
            file.write(save(whole, {_DIGEST: digest_of(whole)}))
            file.close()
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def read_arrays(path: Path) -> dict[str, Array] | None:
    """What `write_arrays` wrote; None where there is nothing, or not that."""
    try:
        with safe_open(path, "np") as file:
            digest = (file.metadata() or {})[_DIGEST]
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        return None
    return arrays if digest_of(arrays) == digest else None
