"""A tier in S3, or in any store that speaks as it does: what many machines share.

A frame is an object, named by the tier's prefix and the frame's name. Objects are made once and
never changed. A store of objects has no least recent use: let a rule of its own life cycle delete
what is old. Each request takes a round trip and, with most who sell them, a price: whoever wants
fewer of them takes larger blocks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pagoda.tiers.deadline import Deadline
from pagoda.tiers.event_loop import EventLoop
from pagoda.tiers.names import is_frame_name
from pagoda.tiers.s3_errors import is_broken_off, is_unsupported, tier_error
from pagoda.tiers.tier import FrameBytes, Tier, TierEntry, TierError, TierUsage

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_NUM_REQUESTS = 16
"""At once, of one call."""
_PAUSES_S = (0.01, 0.1)
"""Before a request that was broken off is made again."""
_USAGE_TIMEOUT_S = 1.0
_USAGE_AGE_S = 300.0
"""Counting objects takes a request for each thousand: it is not done again for so long."""


class S3Tier(Tier):
    """No request is made before the first call."""

    kind = "s3"
    is_shared = True

    def __init__(self, store: ObjectStore, max_frame_bytes: int, *, told: str = "s3") -> None:
        """
        store: of obstore's; `pagoda.tiers.s3_address` makes one of a bucket.
        max_frame_bytes: what is longer is none of ours.
        told: how errors call it.
        """
        import obstore

        self._obstore = obstore
        self._store = store
        self._max_frame_bytes = max_frame_bytes
        self._told = told
        self._loop = EventLoop("pagoda-s3")
        self._makes_new_only = True
        self._usage: TierUsage | TierError | None = None
        """As listed last, be it in vain; None: not yet."""
        self._listed_at = 0.0

    def holds(self, names: Sequence[str], timeout_s: float) -> list[bool]:
        """A HEAD for each name."""
        return list(self._map(self._is_there, names, timeout_s))

    def load(self, names: Sequence[str], timeout_s: float) -> Iterator[FrameBytes | None]:
        """A GET for each name; an object that is too long is not read to its end."""
        yield from self._map(self._get, names, timeout_s)

    def store(self, frames: Sequence[tuple[str, FrameBytes]], timeout_s: float) -> None:
        """A PUT for each frame, on the condition that nothing is there."""
        for _ in self._map(self._put, frames, timeout_s):
            pass

    def remove(self, names: Sequence[str], timeout_s: float) -> None:
        """A DELETE for each name."""
        for _ in self._map(self._delete, names, timeout_s):
            pass

    def entries(self, timeout_s: float) -> Iterator[TierEntry]:
        """By a listing. Nothing keeps when an object was used: told is when it was made."""
        listing = self._obstore.list(self._store)
        chunks = aiter(listing)
        while True:
            deadline = self._deadline(timeout_s)
            with self._faults():
                chunk = self._loop.run(_next(chunks), deadline)
            if chunk is None:
                return
            for each in chunk:
                name = each["path"].rpartition("/")[2]
                if each["path"] == name and is_frame_name(name):
                    yield TierEntry(name, each["size"], each["last_modified"].timestamp())

    def usage(self) -> TierUsage:
        """By a listing, a second of it at most and not again within five minutes."""
        if self._usage is None or time.monotonic() >= self._listed_at + _USAGE_AGE_S:
            self._listed_at = time.monotonic()
            try:
                self._usage = self._listed()
            except TierError as error:
                self._usage = error
        if isinstance(self._usage, TierError):
            raise self._usage
        return self._usage

    def _listed(self) -> TierUsage:
        deadline, sizes = self._deadline(_USAGE_TIMEOUT_S), list[int]()
        for each in self.entries(_USAGE_TIMEOUT_S):
            deadline.left_s()
            sizes.append(each.num_bytes)
        return TierUsage(len(sizes), sum(sizes), None)

    def close(self) -> None:
        """Requests that are under way are given up."""
        self._loop.close()

    # ---- inside ------------------------------------------------------------------------------

    def _deadline(self, timeout_s: float) -> Deadline:
        return Deadline(timeout_s, self._told)

    def _map(self, work: Any, items: Sequence[Any], timeout_s: float) -> Generator[Any]:
        with self._faults():
            yield from self._loop.map(work, items, _NUM_REQUESTS, self._deadline(timeout_s))

    @contextmanager
    def _faults(self) -> Generator[None]:
        """Whatever the library raises is a TierError."""
        try:
            yield
        except (TierError, GeneratorExit):
            raise
        except Exception as error:
            raise tier_error(error, self._told) from None

    async def _is_there(self, name: str) -> bool:
        try:
            await self._obstore.head_async(self._store, name)
        except FileNotFoundError:
            return False
        return True

    async def _get(self, name: str) -> FrameBytes | None:
        try:
            answer = await self._obstore.get_async(self._store, name)
        except FileNotFoundError:
            return None
        if answer.meta["size"] <= self._max_frame_bytes:
            return memoryview(await answer.bytes_async())
        return await self._beginning(answer.stream())

    async def _beginning(self, chunks: AsyncIterator[Any]) -> bytes:
        """One byte more than a frame can have."""
        read = bytearray()
        async for chunk in chunks:
            read += chunk
            if len(read) > self._max_frame_bytes:
                break
        return bytes(read[: self._max_frame_bytes + 1])

    async def _put(self, frame: tuple[str, FrameBytes]) -> None:
        name, content = frame
        if self._makes_new_only:
            try:
                await self._put_as(name, content, "create")
                return
            except self._obstore.exceptions.AlreadyExistsError:
                return
            except Exception as error:
                if not is_unsupported(error):
                    raise
                self._makes_new_only = False
        if not await self._is_there(name):
            await self._put_as(name, content, "overwrite")

    async def _put_as(self, name: str, content: FrameBytes, mode: Any) -> None:
        put = self._obstore.put_async
        await _again(lambda: put(self._store, name, content, mode=mode, use_multipart=False))

    async def _delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            await _again(lambda: self._obstore.delete_async(self._store, name))


async def _again(request: Callable[[], Awaitable[object]]) -> None:
    """Until it is not broken off, some times.

    The library itself repeats only what changes nothing; but a server that was begun anew has cut
    off the connections that are kept for the next requests, which is noticed after a moment, and
    here a request can be repeated without harm.
    """
    for pause_s in _PAUSES_S:
        try:
            await request()
            return
        except Exception as error:
            if not is_broken_off(error):
                raise
        await asyncio.sleep(pause_s)
    await request()


async def _next(chunks: AsyncIterator[Any]) -> Any:
    return await anext(chunks, None)
