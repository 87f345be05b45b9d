"""Sessions in the tiers: their blocks as any other's, and their manifests.

Calls wait for tiers, up to the timeouts of these: they are for threads of whoever asks. A shelf
whose breaker is open is not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pagoda.engine.sessions.manifest import (
    manifest_name,
    manifest_of,
    num_frames,
    read_manifest,
)
from pagoda.engine.sessions.session import Session
from pagoda.tiers.names import BlockName
from pagoda.tiers.segment import Row
from pagoda.tiers.shelf import Payloads, Shelf
from pagoda.tiers.tier import FrameBytes


class SessionShelves:
    """Any thread may call it. Nothing is raised: what goes wrong is a miss."""

    def __init__(self, shelves: Sequence[Shelf], block_bytes: int, most_bytes: int) -> None:
        """`shelves`: at least one, the nearest first. `block_bytes`: of a frame's payload.
        `most_bytes`: of a session that is written out."""
        self._shelves = tuple(shelves)
        self._block_bytes = block_bytes
        self._most_bytes = most_bytes

    @property
    def kinds(self) -> str:
        """For people."""
        return ", ".join(shelf.name for shelf in self._shelves)

    # ---- blocks ------------------------------------------------------------------------------

    def store(self, tenant: str, blocks: Sequence[tuple[BlockName, FrameBytes]]) -> None:
        """Give blocks to all tiers, whatever they take otherwise."""
        for shelf in self._writable() if blocks else ():
            shelf.store(tenant, blocks)

    def find(self, tenant: str, rows: Sequence[Row]) -> int:
        """Leading rows that are there, on one shelf after the other."""
        found = 0
        for shelf in self._readable():
            if found < len(rows):
                found += shelf.find(tenant, rows[found:])
        return found

    def load(self, tenant: str, rows: Sequence[Row], most: int) -> Iterator[list[Payloads]]:
        """Leading rows in their order, up to `most` at a time, as far as they are there."""
        start = 0
        while start < len(rows):
            found = self._holder(tenant, rows[start:])
            if found is None:
                return
            shelf, num_rows = found
            for first in range(start, start + num_rows, most):
                asked = rows[first : min(first + most, start + num_rows)]
                come: list[Payloads] = []
                shelf.load(tenant, asked, _taken_into(come))
                yield come
                if len(come) < len(asked):
                    return
            start += num_rows

    # ---- manifests ---------------------------------------------------------------------------

    def keep(self, session: Session) -> bool:
        """Store a session's manifest in the place of an older one. False: no tier has it."""
        parts, tenant = manifest_of(session, self._block_bytes), session.tenant
        kept = False
        for shelf in self._writable():
            self._remove_from(shelf, tenant, session.session_id)
            shelf.store(tenant, parts)
            kept |= shelf.find(tenant, [[name] for name, _ in parts]) == len(parts)
        return kept

    def kept(self, tenant: str, session_id: str) -> Session | None:
        """The session as it was kept last, by any of the shelves."""
        found = [self._read(shelf, tenant, session_id) for shelf in self._readable()]
        return max(
            (each for each in found if each is not None),
            key=lambda session: session.used_at,
            default=None,
        )

    def forget(self, tenant: str, session_id: str) -> bool:
        """Remove a session's manifest. False: there was none."""
        removed = [self._remove_from(shelf, tenant, session_id) for shelf in self._readable()]
        return any(removed)

    # ---- inside ------------------------------------------------------------------------------

    def _readable(self) -> list[Shelf]:
        return [shelf for shelf in self._shelves if shelf.reading.is_closed]

    def _writable(self) -> list[Shelf]:
        return [shelf for shelf in self._shelves if shelf.writing.is_closed]

    def _holder(self, tenant: str, rows: Sequence[Row]) -> tuple[Shelf, int] | None:
        """The first shelf that has the first of these rows, and how many it has."""
        for shelf in self._readable():
            num_rows = shelf.find(tenant, rows)
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

    def _remove_from(self, shelf: Shelf, tenant: str, session_id: str) -> bool:
        first = self._payload(shelf, tenant, manifest_name(tenant, session_id, 0))
        if first is None:
            return False
        num = max(1, num_frames(first, self._block_bytes, self._most_bytes))
        shelf.remove(tenant, [manifest_name(tenant, session_id, number) for number in range(num)])
        return True


def _taken_into(come: list[Payloads]) -> Callable[[Payloads], bool]:
    def take(payloads: Payloads) -> bool:
        come.append(payloads)
        return True

    return take
