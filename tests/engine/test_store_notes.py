"""Which blocks are offered to tiers, and which are not asked about again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pagoda.cache import CacheManager
from pagoda.engine.transfers.store_notes import StoreNotes
from pagoda.engine.transfers.stores import TierStores
from pagoda.engine.transfers.transfers import TierTransfers
from pagoda.tiers.names import BlockName
from pagoda.tiers.tier import FrameBytes

BLOCK_SIZE, BLOCK_BYTES = 4, 8


class Copied:
    def __init__(self, num_blocks: int, *, is_done: bool) -> None:
        self._num_blocks = num_blocks
        self.is_done = is_done

    def wait(self) -> list[np.ndarray]:
        self.is_done = True
        return [np.zeros(BLOCK_BYTES, np.uint8)] * self._num_blocks


class Mover:
    """Of one tier, which has what it was given, and may be down."""

    def __init__(self) -> None:
        self.num_free_bytes = 2**20
        self.known = set[BlockName]()
        self.is_down = False
        self.num_asked = 0

    def wants(self, name: BlockName, *, reused: bool) -> bool:
        self.num_asked += 1
        return not self.is_down and name not in self.known

    def close(self, timeout_s: float) -> None: ...

    def has(self, name: BlockName) -> bool:
        return name in self.known

    def store(self, tenant: str, name: BlockName, payload: FrameBytes, *, reused: bool) -> bool:
        self.known.add(name)
        return True


class Subject:
    def __init__(self) -> None:
        self.notes = StoreNotes(takes_new=False, num_groups=1)
        self.cache = CacheManager(8, BLOCK_SIZE, watchers=(self.notes,))
        self.mover = Mover()
        self.copies_at_once = True
        self.stores = TierStores(
            self.cache,
            lambda block_ids: Copied(len(block_ids), is_done=self.copies_at_once),
            self.notes,
            self.mover,  # type: ignore[arg-type]
            BLOCK_BYTES,
        )

    def ask(self, tokens: Sequence[int]) -> int:
        """Begin with a prompt and end; how many blocks were noted."""
        table = self.cache.open()
        match = self.cache.match(table, tokens)
        self.cache.acquire(table, tokens, match)
        assert self.cache.reserve(table, match.num_tokens, len(tokens)) is not None
        self.cache.commit(table, tokens, len(tokens))
        self.cache.free(table)
        return len(self.notes)

    def hand_out(self) -> int:
        """How many blocks the tiers were asked about."""
        before = self.mover.num_asked
        while len(self.notes):
            self.stores.hand_out()
        return self.mover.num_asked - before


def test_a_hot_prompt_is_noted_until_every_tier_has_it() -> None:
    subject, hot = Subject(), list(range(16))
    assert (subject.ask(hot), subject.hand_out()) == (0, 0), "it is new"
    subject.mover.is_down = True
    for _ in range(3):
        assert (subject.ask(hot), subject.hand_out()) == (4, 4), "a tier that is down has nothing"
    subject.mover.is_down = False
    assert (subject.ask(hot), subject.hand_out(), len(subject.mover.known)) == (4, 4, 4), "stored"
    assert (subject.ask(hot), subject.hand_out()) == (4, 4), "it is there"
    for _ in range(3):
        assert (subject.ask(hot), subject.hand_out()) == (0, 0)
    assert subject.ask([*hot, 1, 2, 3, 4]) == 0, "nor is what others have in common with it"


def test_a_prompt_that_stays_hot_is_noted_again_at_times() -> None:
    """A tier may have lost it: what is never loaded is what it gives up first."""
    subject, hot = Subject(), list(range(16))
    for _ in range(3):
        subject.ask(hot)
        subject.hand_out()
    subject.mover.known.clear()
    num_asked = sum(subject.ask(hot) and subject.hand_out() for _ in range(100))
    assert num_asked == 8, "once to be stored, once to be known"
    assert len(subject.mover.known) == 4


def test_what_a_window_has_let_go_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, hot = Subject(), list(range(16))
    for _ in range(2):
        subject.ask(hot)
        subject.hand_out()
    monkeypatch.setattr(subject.cache, "published", lambda key, group: None)
    for _ in range(2):
        assert (subject.ask(hot), subject.hand_out()) == (4, 0)
    monkeypatch.undo()
    assert (subject.ask(hot), subject.hand_out()) == (4, 4)


def test_what_left_the_cache_is_noted_again() -> None:
    subject, hot = Subject(), list(range(16))
    for _ in range(3):
        subject.ask(hot)
        subject.hand_out()
    assert subject.ask(hot) == 0
    subject.ask(list(range(100, 132)))  # which takes all blocks of the pool
    subject.mover.known.clear()
    subject.ask(hot)
    assert (subject.ask(hot), subject.hand_out(), len(subject.mover.known)) == (4, 4, 4)
    subject.ask(hot)
    subject.hand_out()
    assert subject.ask(hot) == 0
    subject.cache.forget()
    subject.ask(hot)
    assert subject.ask(hot) == 4, "the cache was emptied"


def test_what_no_tier_has_room_for_waits_for_it() -> None:
    subject, hot = Subject(), list(range(16))
    transfers = TierTransfers(None, subject.stores, subject.mover)  # type: ignore[arg-type]
    subject.mover.num_free_bytes = BLOCK_BYTES - 1
    assert (transfers.has_stores, transfers.awaits_room) == (False, False)
    subject.ask(hot)
    subject.ask(hot)
    assert (transfers.has_stores, transfers.awaits_room) == (False, True)
    subject.mover.num_free_bytes = 2 * BLOCK_BYTES
    assert (transfers.has_stores, transfers.awaits_room) == (True, False)
    subject.hand_out()
    assert (transfers.has_stores, transfers.awaits_room) == (False, False)


def test_whoever_has_nothing_else_to_do_waits_for_the_device() -> None:
    subject, hot = Subject(), list(range(16))
    subject.copies_at_once = False
    subject.ask(hot)
    subject.ask(hot)
    for _ in range(3):
        subject.stores.hand_out()
    assert (subject.stores.num_waiting, len(subject.mover.known)) == (4, 0), "a step goes on"
    subject.stores.hand_out(waits=True)
    assert (subject.stores.num_waiting, len(subject.mover.known)) == (0, 4)
    subject.stores.hand_out(waits=True)
    assert not subject.stores.can_go_on
