"""A trace of what an engine serves, written while it serves: `pagoda replay` reads it."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from queue import Full, Queue

from pagoda.cache.prefix import BlockKey
from pagoda.replay.formats.pagoda_rows import HASH_BYTES, header_line, row_line
from pagoda.replay.recorded import RecordedSetting
from pagoda.replay.trace import TracedRequest
from pagoda.replay.trace_writer import TraceWriter
from pagoda.replay.turn_times import TurnTimes
from pagoda.scheduling import Sequence as RunningSequence
from pagoda.scheduling.ending import ABORT

logger = logging.getLogger("pagoda")

MOST_QUEUED = 4096
"""Sequences that have ended and are not written yet; of more no row is written."""
_LAST_WORDS_S = 5.0


@dataclass(frozen=True, slots=True)
class _Came:
    """When a sequence came."""

    number: int
    num_turns: int
    """When the engine took it in."""
    place: float
    """Of its arrival among the turns."""


@dataclass(frozen=True, slots=True)
class _Went:
    """A sequence that has ended, to be written."""

    came: _Came
    sequence: RunningSequence
    num_turns: int


class Recorder:
    """A `Journal` of an engine, that writes a row for each sequence when it has ended.

    A row has lengths, times, steps, and a digest of each full block, of the tenant and of the salt,
    under a key that is drawn here, kept in memory alone and gone with the process: never text nor
    token ids, nor anything that could be compared with other hashes. The engine's thread only puts
    what has ended into a queue; a thread of its own writes. Where the disk fails, the recording
    ends, with a line in the log, and nothing else does.
    """

    def __init__(
        self,
        path: Path,
        setting: RecordedSetting,
        most_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is the one that requests' arrival times are of.

        Raises `InvalidOptionError` naming `record_trace` where no file can be written.
        """
        self._key = secrets.token_bytes(32)
        self._writer = TraceWriter(path, header_line(setting.named(self._name)), most_bytes)
        self._block_size = setting.block_size
        self._clock = clock
        self._began_at = clock()
        self._turn_times = TurnTimes()
        self._here: dict[int, _Came] = {}
        self._num_came = 0
        self.num_dropped = 0
        """Sequences without a row, because the disk was too slow."""
        self._queue: Queue[_Went | None] = Queue(MOST_QUEUED)
        self._thread = threading.Thread(target=self._write_all, name="pagoda-trace", daemon=True)
        self._thread.start()

    def turn_begins(self, num_turns: int) -> None:
        self._turn_times.begin(num_turns, self._clock())

    def came(self, sequences: Sequence[RunningSequence], num_turns: int) -> None:
        now = self._clock()
        for sequence in sequences:
            at = sequence.request.arrival_time
            place = self._turn_times.place_of(at, num_turns=num_turns, now=now)
            self._here[sequence.sequence_id] = _Came(self._num_came, num_turns, place)
            self._num_came += 1

    def went(self, sequences: Sequence[RunningSequence], num_turns: int) -> None:
        for sequence in sequences:
            came = self._here.pop(sequence.sequence_id, None)
            if came is None:
                continue
            try:
                self._queue.put_nowait(_Went(came, sequence, num_turns))
            except Full:
                self.num_dropped += 1

    def close(self) -> None:
        """Write what has ended, and end; some seconds at most, as a disk may hang."""
        try:
            self._queue.put(None, timeout=_LAST_WORDS_S)
        except Full:
            logger.error("the end of the trace is not written: the disk hangs")
        else:
            self._thread.join(_LAST_WORDS_S)
        if self.num_dropped:
            logger.warning("%d requests are not in the trace: slow disk", self.num_dropped)

    def _write_all(self) -> None:
        is_broken = False
        while (went := self._queue.get()) is not None:
            if is_broken:
                continue
            try:
                self._writer.write(self._row(went))
            except OSError as error:
                is_broken = True
                logger.error("the trace ends here, it cannot be written: %s", error)
        if not is_broken:
            self._writer.close()

    def _row(self, went: _Went) -> str:
        sequence, ending = went.sequence, went.sequence.ending
        is_given_up = ending is None or ending.reason == ABORT.reason
        options = sequence.request.options
        traced = TracedRequest(
            arrival_s=max(0.0, sequence.request.arrival_time - self._began_at),
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_output_tokens=sequence.num_output_tokens,
            unit_ids=(),
            unit_size=self._block_size,
            num_known_tokens=0,
            tenant=self._name(options.tenant),
            cache_salt=self._name(options.cache_salt),
            cache_hint=options.cache_hint,
            arrival_step=went.came.num_turns,
            arrival_turn=went.came.place,
            end_step=went.num_turns if is_given_up else None,
        )
        hashes = [self._digest(key.hash) for key in self._keys_of(sequence)]
        reason = None if ending is None or is_given_up else ending.reason
        return row_line(went.came.number, traced, hashes, reason)

    def _keys_of(self, sequence: RunningSequence) -> Sequence[BlockKey]:
        num_tokens = sequence.num_prompt_tokens + sequence.num_output_tokens
        return sequence.table.keys[: num_tokens // self._block_size]

    def _digest(self, content: bytes) -> bytes:
        return blake2b(content, key=self._key, digest_size=HASH_BYTES).digest()

    def _name(self, text: str) -> str:
        """A digest of a tenant's name or a salt; nothing stays nothing."""
        return self._digest(text.encode("utf-8", "surrogatepass")).hex() if text else ""
