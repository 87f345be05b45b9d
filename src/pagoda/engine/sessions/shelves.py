"""Sessions in the tiers: their blocks as any other's, and their manifests.

Calls wait for tiers, up to the timeouts of these: they are for threads of whoever asks. A shelf
whose breaker is open is not asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pagoda.engine.sessions.manifest import (
    manifest_name,
    manifest_of,
    most_frames,
    read_manifest,
)
from pagoda.engine.sessions.session import Session
from pagoda.tiers.names import BlockName
from pagoda.tiers.segment import Row
from pagoda.tiers.shelf import Payloads, Shelf
from pagoda.tiers.tier import FrameBytes

_NUM_LOCKS = 64
"""Sessions whose manifests are changed at once, at most; those of one lock wait for each other."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What came of removing a manifest."""

    was_there: bool
    """Some tier had it, or a part of it."""
    remaining: tuple[str, ...]
    """The tiers that may have it still, for people."""


NOTHING_THERE = Removal(was_there=False, remaining=())


class SessionShelves:
    """Any thread may call it. Nothing is raised: what goes wrong is a miss."""

    def __init__(self, shelves: Sequence[Shelf], block_bytes: int, most_bytes: int) -> None:
        """`shelves`: at least one, the nearest first. `block_bytes`: of a frame's payload.
        `most_bytes`: of a session that is written out."""
        self._shelves = tuple(shelves)
        self._block_bytes = block_bytes
        self._most_bytes = most_bytes
        self._changing = tuple(threading.Lock() for _ in range(_NUM_LOCKS))

    @property
    def kinds(self) -> str:
        """For people."""
        return ", ".join(shelf.name for shelf in self._shelves)

    # ---- blocks ------------------------------------------------------------------------------

    def store(self, tenant: str, blocks: Sequence[tuple[BlockName, FrameBytes]]) -> None:
        """Give blocks to all tiers, whatever they take otherwise."""
        for shelf in self._writable() if blocks else ():
            shelf.store(tenant, blocks)

    def num_held(self, tenant: str, rows: Sequence[Row]) -> int:
        """Leading rows of which some shelf has all groups: every one is asked for."""
        lacking = list(range(len(rows)))
        for shelf in self._readable() if rows else ():
            names = [name for number in lacking for name in rows[number]]
            held = shelf.holds(tenant, names) if names else None
            if held is not None:
                width = len(rows[0])
                whole = [all(held[at : at + width]) for at in range(0, len(held), width)]
                lacking = [
                    number for number, is_held in zip(lacking, whole, strict=True) if not is_held
                ]
        return min(lacking, default=len(rows))

    def load(self, tenant: str, rows: Sequence[Row], most: int) -> Iterator[list[Payloads]]:
        """Leading rows in their order, up to `most` at a time, as far as they are there."""
        start, barren = 0, list[Shelf]()  # shelves that have not given the row at `start`
        while start < len(rows):
            found = self._holder(tenant, rows[start:], barren)
            if found is None:
                return
            shelf, num_rows = found
            stop = start + num_rows
            for first in range(start, stop, most):
                asked = rows[first : min(first + most, stop)]
                come: list[Payloads] = []
                shelf.load(tenant, asked, _taken_into(come))
                if come:
                    yield come
                    start, barren = start + len(come), []
                if len(come) < len(asked):
                    barren.append(shelf)  # another one may have those that this one does not give
                    break

    # ---- manifests ---------------------------------------------------------------------------

    def keep(self, session: Session) -> bool:
        """Store a session's manifest in the place of an older one. False: no tier has it.

        What lies there afterwards is read: a tier may keep what was to be removed, and another
        server may save a session of that id just now.
        """
        tenant, session_id = session.tenant, session.session_id
        parts, kept = manifest_of(session, self._block_bytes), False
        with self._changing_of(tenant, session_id):
            for shelf in self._writable():
                shelf.remove(tenant, self._manifest_names(tenant, session_id))
                shelf.store(tenant, parts)
                kept |= self._read(shelf, tenant, session_id) == session
        return kept

    def kept(self, tenant: str, session_id: str) -> Session | None:
        """The session as it was kept last, by any of the shelves."""
        found = [self._read(shelf, tenant, session_id) for shelf in self._readable()]
        return max(
            (each for each in found if each is not None),
            key=lambda session: session.used_at,
            default=None,
        )

    def forget(self, tenant: str, session_id: str) -> Removal:
        """Remove a session's manifest, of which nothing is left where no tier is named."""
        names = self._manifest_names(tenant, session_id)
        was_there, remaining = False, list[str]()
        with self._changing_of(tenant, session_id):
            for shelf in self._shelves:
                before = shelf.holds(tenant, names) if shelf.reading.is_closed else None
                if before is not None and any(before):
                    was_there = True
                    shelf.remove(tenant, names)
                    before = shelf.holds(tenant, names)
                if before is None or any(before):
                    remaining.append(shelf.name)
        return Removal(was_there, tuple(remaining))

    # ---- inside ------------------------------------------------------------------------------

    def _readable(self) -> list[Shelf]:
        return [shelf for shelf in self._shelves if shelf.reading.is_closed]

    def _writable(self) -> list[Shelf]:
        return [shelf for shelf in self._shelves if shelf.writing.is_closed]

    def _holder(
        self, tenant: str, rows: Sequence[Row], barren: Sequence[Shelf]
    ) -> tuple[Shelf, int] | None:
        """The first shelf, but for those that are barren, that has the first of these rows, and
        how many it has."""
        for shelf in self._readable():
            num_rows = 0 if shelf in barren else shelf.find(tenant, rows)
            if num_rows:
                return shelf, num_rows
        return None

    def _read(self, shelf: Shelf, tenant: str, session_id: str) -> Session | None:
        def load(name: BlockName) -> bytes | None:
            return self._payload(shelf, tenant, name)

        return read_manifest(tenant, session_id, load, self._block_bytes, self._most_bytes)

    def _payload(self, shelf: Shelf, tenant: str, name: BlockName) -> bytes | None:
        come: list[Payloads] = []
        if shelf.find(tenant, [[name]]):
            shelf.load(tenant, [[name]], _taken_into(come))
        return bytes(come[0][0]) if come else None

    def _manifest_names(self, tenant: str, session_id: str) -> list[BlockName]:
        """All that a session of that id can have, which no frame has to be read for."""
        num_names = most_frames(self._block_bytes, self._most_bytes)
        return [manifest_name(tenant, session_id, number) for number in range(num_names)]

    def _changing_of(self, tenant: str, session_id: str) -> threading.Lock:
        return self._changing[hash((tenant, session_id)) % _NUM_LOCKS]


def _taken_into(come: list[Payloads]) -> Callable[[Payloads], bool]:
    def take(payloads: Payloads) -> bool:
        come.append(payloads)
        return True

    return take
