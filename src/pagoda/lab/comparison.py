"""Windows of text, read by every method side by side.

    chunk of a window    full cache ── what may follow ─┬─ scores of each method
                         method 1   ── what may follow ─┤
                         …                              │
                         full cache, other chunks ──────┘  the noise floor

A chunk is read by all before the next one, so that no more than a chunk's logits are held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pagoda.errors import EngineError
from pagoda.lab.method import FULL, Method
from pagoda.lab.proof import prove
from pagoda.lab.quality import Quality
from pagoda.lab.reader import Reader
from pagoda.lab.scores import Distributions, Scores
from pagoda.lab.sizes import Sizes
from pagoda.lab.subject import Subject

OnPart = Callable[[str], None]
"""Hears which part of the work begins."""

_LEAST_WINDOWS = 2
"""For an interval."""


class Comparison:
    """A reader for each method, and what they have read."""

    def __init__(self, subject: Subject, methods: Sequence[Method], sizes: Sizes) -> None:
        """`methods`: the full cache first. Allocates a cache of one window for each.

        Raises `InvalidOptionError` as `Subject.packings` does, and `CapacityError` where memory is
        short.
        """
        self.noise_chunk = max(1, sizes.chunk // 4)
        self._chunk = sizes.chunk
        chunks = [(method, sizes.chunk) for method in methods] + [(FULL, self.noise_chunk)]
        packings = subject.packings(methods)
        self._readers = [
            Reader(
                subject,
                method,
                longest=sizes.window,
                chunk=chunk,
                packing=packings.get(method),
            )
            for method, chunk in chunks
        ]
        self._windows: list[list[Scores]] = []
        """Of each window that was read: the scores of each reader."""

    @property
    def bytes_per_token(self) -> list[float]:
        """Of each method's pool, as it is allocated."""
        return [reader.bytes_per_token for reader in self._readers[:-1]]

    def prove(self, token_ids: Sequence[int], on_part: OnPart) -> None:
        """Raises `IntegrityError` unless every method reads what its pool holds, and nothing else.

        `on_part` hears of each method.
        """
        for reader in self._readers[:-1]:
            on_part(f"{reader.method}: is the pool what is read?")
            prove(reader, token_ids)

    def read(self, window: Sequence[int], on_chunk: Callable[[], None]) -> None:
        """Read a window; it counts once all have read all of it.

        Raises `EngineError` for logits that are no numbers.
        """
        streams = [reader.read_by(self._chunk, window) for reader in self._readers]
        parts: list[list[Scores]] = [[] for _ in streams]
        for first in range(0, len(window), self._chunk):
            on_chunk()
            following = window[first + 1 : first + 1 + self._chunk]
            full: Distributions | None = None
            for stream, own in zip(streams, parts, strict=True):
                found = Distributions.of(next(stream)[: len(following)])
                full = full or found
                own.append(found.scores(full, following))
        scores = [Scores.joined(own) for own in parts]
        for reader, each in zip(self._readers, scores, strict=True):
            if not np.isfinite(each.divergences).all():
                raise EngineError(f"{reader.method}: the model's logits are not finite")
        self._windows.append(scores)

    def qualities(self) -> tuple[Sequence[Quality | None], Quality | None]:
        """Of each method, and of the full cache in other chunks; None before two windows."""
        if len(self._windows) < _LEAST_WINDOWS:
            return [None for _ in self._readers[:-1]], None
        of_readers = list(zip(*self._windows, strict=True))
        *methods, noise = [Quality.of(own, of_readers[0]) for own in of_readers]
        return methods, noise
