"""A tier in Redis or Valkey: what several processes and machines share.

Frames lie under `pagoda:` and their name, set once and never changed. How much memory they may
take is the server's own to say: give it a `maxmemory` and the policy `allkeys-lru`, or, where other
programs' keys are on the same server, `volatile-lru` and the tier a `ttl_s`.

A server is told ahead which frames to send, as many as are under way in a round trip, on several
connections where those are many. More would only make it pile up answers that nobody reads yet: on
one machine that halves its speed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from pagoda.tiers.deadline import Deadline
from pagoda.tiers.names import is_frame_name
from pagoda.tiers.redis_address import RedisAddress
from pagoda.tiers.redis_link import RedisLink, require_hiredis
from pagoda.tiers.tier import FrameBytes, Tier, TierEntry, TierError, TierFault, TierUsage

PREFIX = "pagoda:"
_NUM_LINKS = 4
"""Connections of one call at most."""
_LINK_BYTES = 4 * 2**20
"""Of frames under way for which one connection is enough."""
_LINE_BYTES_PER_S = 10**9
"""Of a line that is not to be kept waiting: in a round trip, so much is under way."""
_MOST_UNDER_WAY = 32 * 2**20
"""Bytes."""
_NUM_SMALL = 512
"""Commands without frames that are sent ahead of their answers."""
_USAGE_TIMEOUT_S = 1.0
_NUM_IDLE = 16
"""Connections that are kept for the next calls."""


class RedisTier(Tier):
    """No connection is made before the first call."""

    kind = "redis"
    is_shared = True

    def __init__(
        self,
        url: str,
        max_frame_bytes: int,
        *,
        ttl_s: float | None = None,
        ca_file: str | None = None,
        option: str = "kv_tier",
    ) -> None:
        """
        url: `redis://[user:password@]host[:port][/database]`, `rediss://` for TLS.
        max_frame_bytes: what is longer is none of ours.
        ttl_s: the server forgets a frame that was neither stored nor loaded for so long.
        ca_file: whose certificates are trusted, for TLS; None: those that the machine trusts.
        option: how an InvalidOptionError calls the URL; raised where it says something else, and
            where the library is missing.
        """
        self._address = RedisAddress.parse(url, ca_file=ca_file, option=option)
        require_hiredis(option, str(self._address))
        self._max_frame_bytes = max_frame_bytes
        self._ttl_ms = None if ttl_s is None else max(1, round(1000 * ttl_s))
        self._lock = threading.Lock()
        self._idle: list[RedisLink] = []
        self._is_closed = False

    def holds(self, names: Sequence[str], timeout_s: float) -> list[bool]:
        """One EXISTS for each name."""
        commands = [("EXISTS", _key(name)) for name in names]
        return [bool(answer) for answer in self._small(commands, timeout_s)]

    def load(self, names: Sequence[str], timeout_s: float) -> Iterator[FrameBytes | None]:
        """A GETRANGE for each name: it reads no more of a value than a frame can have."""
        if not names:
            return
        deadline = self._deadline(timeout_s)
        with self._links(deadline) as links:
            num_ahead = self._num_ahead(links[0].round_trip_s)
            num_bytes = min(num_ahead, len(names)) * self._max_frame_bytes
            self._add_links(links, num_bytes, deadline)
            ahead = deque[RedisLink]()
            for number, name in enumerate(names):
                link = links[number % len(links)]
                self._ask_for(name, link, deadline)
                ahead.append(link)
                if len(ahead) == num_ahead:
                    yield self._take(ahead.popleft(), deadline)
            while ahead:
                yield self._take(ahead.popleft(), deadline)

    def store(self, frames: Sequence[tuple[str, FrameBytes]], timeout_s: float) -> None:
        """A SET NX for each frame; answers are short, so all are sent ahead of them."""
        if not frames:
            return
        deadline = self._deadline(timeout_s)
        expiry = () if self._ttl_ms is None else ("PX", self._ttl_ms)
        with self._links(deadline) as links:
            self._add_links(links, sum(len(frame) for _, frame in frames), deadline)
            for number, (name, frame) in enumerate(frames):
                link = links[number % len(links)]
                link.send("SET", _key(name), _packable(frame), "NX", *expiry, deadline=deadline)
            for number in range(len(frames)):
                links[number % len(links)].receive(deadline)

    def remove(self, names: Sequence[str], timeout_s: float) -> None:
        """An UNLINK for each name: the server gives back the memory when it has time."""
        self._small([("UNLINK", _key(name)) for name in names], timeout_s)

    def entries(self, timeout_s: float) -> Iterator[TierEntry]:
        """By SCAN. When a frame was used last is told unless the server's policy counts uses."""
        cursor = b"0"
        while True:
            deadline = self._deadline(timeout_s)
            with self._links(deadline) as [link]:
                scan = ("SCAN", cursor, "MATCH", f"{PREFIX}*", "COUNT", 1000)
                cursor, keys = link.ask(*scan, deadline=deadline)
                entries = _describe([key.decode(errors="replace") for key in keys], link, deadline)
            yield from entries
            if cursor == b"0":
                return

    def usage(self) -> TierUsage:
        """Of the whole server: the bytes of all its keys; frames are all keys of the database."""
        deadline = self._deadline(_USAGE_TIMEOUT_S)
        with self._links(deadline) as [link]:
            link.send("DBSIZE", deadline=deadline)
            link.send("INFO", "memory", deadline=deadline)
            num_frames, told = link.receive(deadline), link.receive(deadline)
        info = dict(line.split(":", 1) for line in told.decode().splitlines() if ":" in line)
        capacity = int(info.get("maxmemory", 0))
        return TierUsage(num_frames, int(info.get("used_memory", 0)), capacity or None)

    def close(self) -> None:
        """Hang up; connections that are in use are given up after their call."""
        with self._lock:
            self._is_closed = True
            links, self._idle = self._idle, []
        for link in links:
            link.close()

    # ---- inside ------------------------------------------------------------------------------

    def _deadline(self, timeout_s: float) -> Deadline:
        return Deadline(timeout_s, str(self._address))

    def _ask_for(self, name: str, link: RedisLink, deadline: Deadline) -> None:
        link.send("GETRANGE", _key(name), 0, self._max_frame_bytes, deadline=deadline)
        if self._ttl_ms is not None:
            link.send("PEXPIRE", _key(name), self._ttl_ms, deadline=deadline)

    def _take(self, link: RedisLink, deadline: Deadline) -> FrameBytes | None:
        """Of a key that is not there a server tells that it is empty, which no frame is."""
        frame: bytes = link.receive(deadline)
        if self._ttl_ms is not None:
            link.receive(deadline)
        return frame or None

    def _small(self, commands: Sequence[tuple[str, str]], timeout_s: float) -> list[int]:
        """Answers, all numbers, of commands that carry no frames."""
        if not commands:
            return []
        deadline, answers = self._deadline(timeout_s), list[int]()
        with self._links(deadline) as [link]:
            for start in range(0, len(commands), _NUM_SMALL):
                some = commands[start : start + _NUM_SMALL]
                for command in some:
                    link.send(*command, deadline=deadline)
                answers += [link.receive(deadline) for _ in some]
        return answers

    @contextmanager
    def _links(self, deadline: Deadline) -> Generator[list[RedisLink]]:
        """A connection for one call, which may add others.

        They are kept for the next one if all of their answers were read, and closed where anything
        went wrong or the caller stopped early.
        """
        links = list[RedisLink]()
        try:
            links.append(self._link(deadline))
            yield links
        except BaseException:
            for link in links:
                link.close()
            raise
        self._keep(links)

    def _num_ahead(self, round_trip_s: float) -> int:
        """Frames that are asked for before the first one is there."""
        under_way = min(round_trip_s * _LINE_BYTES_PER_S, _MOST_UNDER_WAY)
        return max(2, int(under_way / self._max_frame_bytes))

    def _add_links(self, links: list[RedisLink], num_bytes: int, deadline: Deadline) -> None:
        """As many as so many bytes under way are worth."""
        while len(links) < min(_NUM_LINKS, -(-num_bytes // _LINK_BYTES)):
            links.append(self._link(deadline))

    def _link(self, deadline: Deadline) -> RedisLink:
        return self._idle_link() or RedisLink(self._address, deadline)

    def _idle_link(self) -> RedisLink | None:
        """One that the server has not hung up meanwhile."""
        while True:
            with self._lock:
                if self._is_closed:
                    raise TierError(TierFault.ERROR, f"{self._address} was closed")
                link = self._idle.pop() if self._idle else None
            if link is None or link.is_idle:
                return link
            link.close()

    def _keep(self, links: list[RedisLink]) -> None:
        with self._lock:
            num_kept = 0 if self._is_closed else max(0, _NUM_IDLE - len(self._idle))
            self._idle += links[:num_kept]
        for link in links[num_kept:]:
            link.close()


def _describe(keys: Sequence[str], link: RedisLink, deadline: Deadline) -> list[TierEntry]:
    """Those of the keys that are frames' and still there."""
    keys = [key for key in keys if is_frame_name(key.removeprefix(PREFIX))]
    for key in keys:
        link.send("OBJECT", "IDLETIME", key, deadline=deadline)
        link.send("STRLEN", key, deadline=deadline)
    now, entries = time.time(), list[TierEntry]()
    for key in keys:
        idle_s = link.receive_or(None, deadline)
        num_bytes = link.receive_or(0, deadline)
        if num_bytes:
            used_at = None if idle_s is None else now - idle_s
            entries.append(TierEntry(key.removeprefix(PREFIX), num_bytes, used_at))
    return entries


def _key(name: str) -> str:
    return PREFIX + name


def _packable(frame: FrameBytes) -> bytes | memoryview:
    return frame if isinstance(frame, bytes) else memoryview(frame)
