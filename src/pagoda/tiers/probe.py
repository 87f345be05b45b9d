"""The probe of a tier, which tells how quick it is and whether it is well.

A small frame of a made-up block goes there and back:

ask       how long an answer takes that moves no frames
store     where the tier takes no frame, one that it has is loaded
load      the bytes that were stored have to come back
remove    a frame that stays is loaded the next time, in place of another
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from pagoda.tiers.names import BlockName
from pagoda.tiers.shelf import QUESTIONS, Shelf
from pagoda.tiers.tier import FrameBytes, TierError, TierFault

_TENANT = ""
_NUMBER = 1
"""Of the block: a sequence's first is in no form."""
_MODERATE = bytes(each & 0x3F for each in range(256))
"""Makes bytes those of numbers between 0 and 2, whatever their dtype: what a form packs."""


class _Frame(NamedTuple):
    block: BlockName
    name: str
    """As its tier calls it."""
    content: FrameBytes


class Probe:
    """Of one shelf, whose breakers and rates learn from it. One thread calls it."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._left: _Frame | None = None
        """What the tier would not remove."""

    def run(self) -> bool:
        """May take several times the tier's timeout. False: it cannot be read."""
        shelf = self._shelf
        try:
            fresh = self._fresh()
            if not self._time_round_trip(self._left or fresh):
                self._left = None
        except Exception as error:
            shelf.fail(shelf.reading, error, QUESTIONS)
            return False
        # Whether a tier takes frames again, one that is there does not tell.
        if self._left is not None and shelf.writing.is_closed:
            is_read = self._read_again(self._left)
        elif shelf.attempt(shelf.writing, lambda: self._store(fresh)):
            is_read = self._read_back(fresh)
        else:
            return shelf.attempt(shelf.reading, lambda: self._load(shelf.seen or fresh.name))
        if is_read:
            shelf.ask_usage()
        return is_read

    def _read_back(self, frame: _Frame) -> bool:
        """One that was just stored; it is removed, with what is left of others."""
        shelf, names = self._shelf, list({frame.name, (self._left or frame).name})
        if not shelf.attempt(shelf.reading, lambda: self._verify(frame)):
            return False
        is_gone = shelf.attempt(shelf.writing, lambda: self._remove(names))
        self._left = None if is_gone else frame
        return True

    def _read_again(self, left: _Frame) -> bool:
        """One that the tier has refused to remove; it is tried in silence, since that says nothing
        of what else the tier takes."""
        shelf = self._shelf
        if not shelf.attempt(shelf.reading, lambda: self._verify(left)):
            return False
        with suppress(Exception):
            self._remove([left.name])
            self._left = None
        return True

    # ---- calls of the tier, which raise TierError --------------------------------------------

    def _fresh(self) -> _Frame:
        """Raises whatever the format of its frames does."""
        block, frame_format = BlockName(os.urandom(32), 0, _NUMBER), self._shelf.formats.of(_TENANT)
        payload = os.urandom(frame_format.payload_bytes).translate(_MODERATE)
        return _Frame(block, frame_format.name(block), frame_format.encode(block, payload))

    def _time_round_trip(self, frame: _Frame) -> bool:
        """Whether it is there."""
        shelf, began = self._shelf, self._shelf.clock()
        [is_there] = shelf.tier.holds([frame.name], shelf.timeout_s)
        shelf.rates.note_round_trip(shelf.clock() - began)
        return is_there

    def _store(self, frame: _Frame) -> None:
        self._shelf.tier.store([(frame.name, frame.content)], self._shelf.timeout_s)

    def _verify(self, frame: _Frame) -> None:
        shelf, began = self._shelf, self._shelf.clock()
        [found] = shelf.tier.load([frame.name], shelf.timeout_s)
        if found is None or found != frame.content:
            raise TierError(TierFault.ERROR, "gives back something else than it was given")
        block = shelf.formats.of(_TENANT).decode(frame.block, found)
        shelf.note_load(len(block), began)  # what unpacking takes is a part of loading

    def _load(self, name: str) -> FrameBytes | None:
        """What may lie there: a tier that answers questions need not give frames."""
        shelf, began = self._shelf, self._shelf.clock()
        [found] = shelf.tier.load([name], shelf.timeout_s)
        if found is not None:
            shelf.note_load(len(found), began)
        return found

    def _remove(self, names: list[str]) -> None:
        self._shelf.tier.remove(names, self._shelf.timeout_s)
