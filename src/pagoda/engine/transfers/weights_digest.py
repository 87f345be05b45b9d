"""Which weights a model has, by what its files hold.

Reading gigabytes takes a while, so what was found is kept for files that have not changed since, by
their path, size, times, inode and device. The time of the last change of any kind is one of them,
since the other can be set back:

    ~/.cache/pagoda/weights/DIGEST-OF-THE-LIST      or under XDG_CACHE_HOME

A digest lies there with a checksum, so that what a power failure leaves is not taken for one.
"""

from __future__ import annotations

import contextlib
import json
import os
from hashlib import sha256
from pathlib import Path

import xxhash

from pagoda.models.locate import ModelFiles
from pagoda.models.tensor_files import tensor_files

_PIECE_BYTES = 16 * 2**20
_VERSION = 3
"""Of digests: those that were kept by another are not taken."""


def weights_digest(files: ModelFiles) -> str:
    """Hex digits that stand for the content of all files that a model's weights are read from,
    whatever these and their folder are called."""
    paths = [files.path]
    if files.kind == "directory":
        paths = tensor_files(files.path)
    kept = _kept_at(paths)
    found = None if kept is None else _read(kept)
    if found is not None:
        return found
    digest = _digest(paths)
    if kept is not None:
        _keep(kept, digest)
    return digest


def _digest(paths: list[Path]) -> str:
    """Of what each of the files holds, in the order of their names."""
    found = []
    for path in paths:
        content = xxhash.xxh3_128()
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                content.update(piece)
        found.append(content.hexdigest())
    return sha256(json.dumps(found).encode()).hexdigest()


def _kept_at(paths: list[Path]) -> Path | None:
    """Where the digest of these very files is kept; None: there is no home."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(root) if root else Path.home() / ".cache") / "pagoda" / "weights"
    except RuntimeError:
        return None
    listed: list[list[str | int]] = [[_VERSION]]
    for path in paths:
        told = path.stat()
        times, place = (told.st_mtime_ns, told.st_ctime_ns), (told.st_ino, told.st_dev)
        listed.append([str(path.resolve()), told.st_size, *times, *place])
    return folder / sha256(json.dumps(listed).encode()).hexdigest()


def _read(kept: Path) -> str | None:
    """The digest there; None for anything else."""
    with contextlib.suppress(OSError):
        content = kept.read_bytes()
        digest = content[: 2 * sha256().digest_size].decode("ascii", "replace")
        if content == _line(kept, digest):
            return digest
    return None


def _line(kept: Path, digest: str) -> bytes:
    checksum = sha256(f"{kept.name} {digest}".encode()).hexdigest()
    return f"{digest} {checksum}\n".encode()


def _keep(kept: Path, digest: str) -> None:
    """Where it cannot be kept, the next start reads the files again."""
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_name(f"{kept.name}.{os.getpid()}")
        fresh.write_bytes(_line(kept, digest))
        fresh.replace(kept)
