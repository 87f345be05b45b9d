"""Where sessions are saved, restored, exported and imported: piece by piece, between steps.

    save      pool ──copied──> tiers, and a manifest        restore   tiers ──> pool
    export    pool ──copied──> a file                       import    a file, verified ──> pool

Everything here waits: for the engine's thread to be between two steps, for tiers, for files. So it
is for threads of whoever asks, and what is done between two steps is never more than a piece.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import BinaryIO, Protocol, TypeVar

from pagoda.engine.sessions.blocks import CopiedRow, SessionBlocks
from pagoda.engine.sessions.course import Course
from pagoda.engine.sessions.errors import (
    NoCachingError,
    NoKeyError,
    NothingCachedError,
    NoTierError,
    SessionFailedError,
    UnknownSessionError,
)
from pagoda.engine.sessions.file import SessionFiles
from pagoda.engine.sessions.reports import (
    NO_ROOM,
    NOT_FOUND,
    NOT_IN_FILE,
    ExportedSession,
    PresentSession,
    SavedSession,
)
from pagoda.engine.sessions.session import Session
from pagoda.engine.sessions.shelves import NOTHING_THERE, SessionShelves
from pagoda.engine.sessions.support import SessionSupport
from pagoda.errors import InvalidRequestError
from pagoda.request import require_session_id
from pagoda.tiers.names import BlockName
from pagoda.tiers.segment import Row
from pagoda.tiers.shelf import Payloads
from pagoda.tiers.tier import FrameBytes

Result = TypeVar("Result")

_ASKED = 512
"""Rows that tiers are asked for at once."""


class UseCache(Protocol):
    """Has something done with the cache while the engine takes no step, and waits for what comes of
    it. Where it breaks off everybody starts over: see `Engine.use_cache`."""

    def __call__(self, do: Callable[[], Result], /) -> Result: ...


class SessionDesk:
    """Any thread may call it but the engine's own, and those that must not wait.

    What raises `NoTierError` or `NoKeyError` raises `NoCachingError` where prefix caching is off.
    """

    def __init__(self, support: SessionSupport, use_cache: UseCache) -> None:
        self._support = support
        self._use_cache = use_cache

    # ---- what does not wait ------------------------------------------------------------------

    def known(self, tenant: str) -> list[Session]:
        """A tenant's sessions that the engine remembers, the one that was used last first."""
        return self._support.known.of(tenant)

    @property
    def max_file_bytes(self) -> int:
        """Of the longest file that can be imported. Raises `NoKeyError`."""
        return self._files.max_bytes

    def file_bytes(self, file: BinaryIO, num_bytes: int) -> int | None:
        """How many bytes a file to be imported has at most, by its head, once that has come; until
        then None. `num_bytes` of it are there. Raises `NoKeyError` and `SessionFileError`."""
        return self._files.bytes_of(file, num_bytes)

    # ---- what waits --------------------------------------------------------------------------

    def forget(self, tenant: str, session_id: str) -> None:
        """Forget a session, in memory and in the tiers; its blocks stay as long as any others.

        Raises `UnknownSessionError`, and `SessionFailedError` where a tier may have it still.
        """
        was_known = self._support.known.forget(tenant, session_id)
        shelves = self._support.shelves
        removal = NOTHING_THERE if shelves is None else shelves.forget(tenant, session_id)
        if removal.remaining:
            where = ", ".join(removal.remaining)
            raise SessionFailedError(f"it may still be in {where}, which did not remove it: repeat")
        if not was_known and not removal.was_there:
            raise UnknownSessionError(session_id)

    def save(self, tenant: str, session_id: str) -> SavedSession:
        """Store a session's full blocks, up to the first that is neither in the cache nor in a
        tier, and what it is.

        Raises `NoTierError`, `UnknownSessionError`, and `SessionFailedError` where no tier takes
        it or its blocks cannot be copied.
        """
        shelves = self._shelves
        course = Course(self._blocks, self._support.known.get(tenant, session_id))
        for start in course.pieces:
            rows = self._use_cache(partial(course.copy, start)).wait()
            names = course.names[start : start + len(rows)]
            num_whole = self._num_whole(tenant, names, rows, shelves)
            shelves.store(tenant, _present(names[:num_whole], rows[:num_whole]))
            if num_whole < len(rows):
                break  # nobody would find those behind it
        if not shelves.keep(course.session):
            raise SessionFailedError(f"it could not be saved: {shelves.kinds} did not take it")
        num_held = self._num_held(course, shelves)
        return SavedSession(session_id, course.session.num_tokens, course.num_tokens_of(num_held))

    def restore(self, tenant: str, session_id: str) -> PresentSession:
        """Bring a session that was saved into the cache, as much of it as is free there.

        Raises `NoTierError` and `UnknownSessionError`.
        """
        shelves = self._shelves
        found = self._support.known.find(tenant, session_id), shelves.kept(tenant, session_id)
        session = max(
            (each for each in found if each is not None),
            key=lambda each: each.used_at,
            default=None,
        )
        if session is None:
            raise UnknownSessionError(session_id)
        course = Course(self._blocks, session)
        with self._held(course) as start:
            self._bring(course, start, shelves.load(tenant, course.names[start:], course.most))
        self._support.known.put_unless_newer(session)
        return self._present(course, NOT_FOUND)

    def export(self, tenant: str, session_id: str) -> ExportedSession:
        """A session and its leading blocks that are in the cache, as a file.

        Raises `NoKeyError`, `UnknownSessionError`, `NothingCachedError`, and `SessionFailedError`
        where its blocks cannot be copied or the file cannot be written.
        """
        files = self._files
        course = Course(self._blocks, self._support.known.get(tenant, session_id))
        file: BinaryIO | None = None
        try:
            file = tempfile.TemporaryFile()  # noqa: SIM115 - the receiver's
            num_blocks = files.write(file, course.session, self._copied(course))
            if num_blocks == 0:
                raise NothingCachedError(session_id)
            num_bytes = file.tell()
            file.seek(0)
        except BaseException as error:
            if file is not None:
                file.close()
            if isinstance(error, OSError):
                raise SessionFailedError(f"it could not be written: {error.strerror}") from None
            raise
        num_tokens = course.session.num_tokens
        num_exported = course.num_tokens_of(num_blocks)
        return ExportedSession(session_id, num_tokens, num_exported, file, num_bytes)

    def import_file(
        self, tenant: str, file: BinaryIO, session_id: str | None = None
    ) -> PresentSession:
        """Bring a session into the cache out of a file, once all of that has been verified.

        The tenant's own session of that id, or of the exported one's, is another one then. Raises
        `NoKeyError`, `SessionFileError`, and `InvalidRequestError` for an id that cannot be or for
        what is no file opened to read bytes, a path for one.
        """
        files = self._files
        _require_binary(file)
        if session_id is not None:
            require_session_id(session_id)
        opened = files.open(file, tenant)
        for _ in files.rows(file, opened):
            pass
        session = replace(opened.session, session_id=session_id or opened.session.session_id)
        course = Course(self._blocks, session)
        with self._held(course):
            self._bring(course, 0, _in_pieces(files.rows(file, opened), course.most))
        self._support.known.put(session)
        return self._present(course, NOT_IN_FILE)

    # ---- inside ------------------------------------------------------------------------------

    def _num_whole(
        self, tenant: str, names: Sequence[Row], rows: Sequence[CopiedRow], shelves: SessionShelves
    ) -> int:
        """Leading rows of a piece that are in the pool in all groups, or in a tier."""
        lacking = [
            number for number, row in enumerate(rows) if any(payload is None for payload in row)
        ]
        num_held = shelves.num_held(tenant, [names[number] for number in lacking])
        return lacking[num_held] if num_held < len(lacking) else len(rows)

    def _num_held(self, course: Course, shelves: SessionShelves) -> int:
        """Leading rows that are in the tiers, each of them asked for."""
        num_held = 0
        for start in range(0, len(course.names), _ASKED):
            asked = course.names[start : start + _ASKED]
            num_held += shelves.num_held(course.session.tenant, asked)
            if num_held < start + len(asked):
                break
        return num_held

    @contextmanager
    def _held(self, course: Course) -> Iterator[int]:
        """While a session is brought in, the cache holds what is there of it, unless somebody needs
        the room: so many leading rows at first."""
        start = self._use_cache(course.begin)
        try:
            yield start
        finally:
            self._use_cache(course.end)

    def _bring(self, course: Course, start: int, pieces: Iterator[list[Payloads]]) -> None:
        """Publish the blocks from number `start` on, as long as there is room."""
        for rows in pieces:
            stop = start + len(rows)
            if self._use_cache(partial(course.put, start, rows)) < stop:
                course.reason = NO_ROOM
                return
            start = stop

    def _present(self, course: Course, missing: str) -> PresentSession:
        """Tell how much of a session is there. `missing`: why no more had come."""
        num_cached = self._use_cache(course.num_cached)
        is_whole = num_cached == len(course.names)
        return PresentSession(
            course.session.session_id,
            course.session.num_tokens,
            course.num_tokens_of(num_cached),
            None if is_whole else course.reason or missing,
        )

    def _copied(self, course: Course) -> Iterator[Payloads]:
        """Leading rows that are in the cache."""
        for start in course.pieces:
            for row in self._use_cache(partial(course.copy, start)).wait():
                whole = tuple(payload for payload in row if payload is not None)
                if len(whole) < len(row):
                    return
                yield whole

    @property
    def _blocks(self) -> SessionBlocks:
        assert self._support.blocks is not None
        return self._support.blocks

    @property
    def _shelves(self) -> SessionShelves:
        self._require_caching()
        if self._support.shelves is None:
            raise NoTierError
        return self._support.shelves

    @property
    def _files(self) -> SessionFiles:
        self._require_caching()
        if self._support.files is None:
            raise NoKeyError
        return self._support.files

    def _require_caching(self) -> None:
        if self._support.blocks is not None and not self._support.blocks.are_found:
            raise NoCachingError


def _require_binary(file: BinaryIO) -> None:
    try:
        gives_bytes = file.read(0) == b""
    except (AttributeError, OSError, ValueError):
        gives_bytes = False
    if not gives_bytes:
        raise InvalidRequestError("file", file, 'must be a file, opened as by open(path, "rb")')


def _present(names: Sequence[Row], rows: Sequence[CopiedRow]) -> list[tuple[BlockName, FrameBytes]]:
    """Of a piece, the blocks that were in the pool."""
    return [
        (name, payload)
        for row_names, row in zip(names, rows, strict=True)
        for name, payload in zip(row_names, row, strict=True)
        if payload is not None
    ]


def _in_pieces(rows: Iterator[Payloads], most: int) -> Iterator[list[Payloads]]:
    """So many at a time."""
    piece = list(islice(rows, most))
    while piece:
        yield piece
        piece = list(islice(rows, most))
