"""Compiled code on disk: of each form of a function a file, under a name that tells which.

Numba keeps an index of a function's forms and numbers their files. Of two processes that meet there
one may leave its code under the number that the other's index names, and a start that finds a file
cut off ends. Here a name is a digest of all that a form is made from, so that whoever writes it
writes the same, and a file begins with a digest of the rest: what is damaged, or another form's, is
compiled anew. Where nothing can be kept that is said once, and each process compiles for itself.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import secrets
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import FunctionCache
from numba.core.serialize import dumps

logger = logging.getLogger(__name__)
_DIGEST_BYTES = hashlib.sha256().digest_size


def keep(compiled: Any, function: Callable[..., Any]) -> Any:
    """Have what compiles `function`, a dispatcher or a `CFunc`, keep code on disk; returns it.

    The folder is NUMBA_CACHE_DIR, `__pycache__` beside the source, or ~/.cache/numba: the first of
    them that can be written.
    """
    try:
        compiled._cache = _KeptCode(function)
    except RuntimeError:  # Numba has found no folder
        _tell_unkept("no folder for it can be written; NUMBA_CACHE_DIR names another")
    return compiled


class _KeptCode(FunctionCache):
    """A function's, as Numba asks for it before it compiles."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        locator = self._impl.locator
        self._cache_file: Any = _Forms(
            Path(locator.get_cache_path(), self._impl.filename_base), locator.get_source_stamp()
        )

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _tell_unkept(f"{error.strerror}: {self.cache_path}")


class _Forms:
    """The files of a function's forms, in place of Numba's with their index."""

    def __init__(self, base: Path, stamp: bytes) -> None:
        """base: what the files' paths begin with; stamp: of the function's source."""
        self._base, self._made_of = base, (numba.__version__, llvmlite.__version__, stamp)

    def load(self, key: Any) -> Any:
        """What was kept of a form; None: nothing, or not all of it."""
        text = self._text(key)
        try:
            kept = self._path(text).read_bytes()
        except OSError:
            return None
        digest, code = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
        return pickle.loads(code) if digest == _digest(text, code).digest() else None

    def save(self, key: Any, data: Any) -> None:
        """Keep a form: its whole file is there, or none. Raises OSError."""
        text, code = self._text(key), dumps(data)
        path = self._path(text)
        part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            part.write_bytes(_digest(text, code).digest() + code)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def _text(self, key: Any) -> bytes:
        """All that a form is made from, beside the function's name."""
        signature, target, content = key
        return repr((str(signature), target, content, *self._made_of)).encode()

    def _path(self, text: bytes) -> Path:
        return Path(f"{self._base}.{_digest(text).hexdigest()[:16]}.nbc")


def _digest(*parts: bytes) -> Any:
    return hashlib.sha256(b"".join(parts))


@cache
def _tell_unkept(why: str) -> None:
    logger.warning("compiled kernels are not kept, each process compiles them anew: %s", why)
