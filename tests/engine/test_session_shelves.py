"""Sessions in the tiers: what is said to be saved is there, and what is forgotten is gone."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pagoda.cache.prefix import packed
from pagoda.engine.sessions.file import MAGIC as FILE_MAGIC
from pagoda.engine.sessions.manifest import manifest_name, manifest_of, most_frames
from pagoda.engine.sessions.session import Session, most_bytes
from pagoda.engine.sessions.shelves import NOTHING_THERE, Removal, SessionShelves
from pagoda.tiers.names import BlockName
from pagoda.tiers.shelf import Shelf
from tiers.fake_tier import FakeTier, formats

PAYLOAD_BYTES = 256
MOST_BYTES = most_bytes(1000)


def shelves_of(*tiers: FakeTier) -> SessionShelves:
    form = formats(PAYLOAD_BYTES)
    shelves = [Shelf(tier, form, timeout_s=1.0, stores_all=True) for tier in tiers]
    return SessionShelves(shelves, PAYLOAD_BYTES, MOST_BYTES)


def session(num_tokens: int, used_at: float) -> Session:
    return Session("ann", "tea", packed(range(num_tokens)), used_at)


def keeps_what_it_has(monkeypatch: pytest.MonkeyPatch, tier: FakeTier) -> None:
    def remove(names: Any, timeout_s: float) -> None:
        """As a store that lets nobody delete, and says nothing."""

    monkeypatch.setattr(tier, "remove", remove)


def own_name(number: int) -> str:
    return formats(PAYLOAD_BYTES).of("ann").name(manifest_name("ann", "tea", number))


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("lengths", [(300, 200), (200, 300)])
def test_an_older_manifest_of_which_a_part_is_gone_is_replaced(
    gone: int, lengths: tuple[int, int]
) -> None:
    tier = FakeTier()
    shelves = shelves_of(tier)
    older, newer = (session(length, number) for number, length in enumerate(lengths))
    assert shelves.keep(older)
    del tier.frames[own_name(gone)]
    assert shelves.kept("ann", "tea") is None
    assert shelves.keep(newer)
    assert shelves.kept("ann", "tea") == newer
    assert shelves.forget("ann", "tea") == Removal(was_there=True, remaining=())
    assert not tier.frames, "nothing of either is left"
    assert shelves.forget("ann", "tea") == NOTHING_THERE


def test_what_a_tier_does_not_let_go_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stubborn, other = FakeTier("stubborn"), FakeTier("other")
    shelves = shelves_of(stubborn)
    assert shelves.keep(session(300, 0))
    keeps_what_it_has(monkeypatch, stubborn)
    assert not shelves.keep(session(301, 1)), "the older one lies there still"
    both = shelves_of(stubborn, other)
    assert both.keep(session(302, 2)), "the other tier has it"
    assert both.kept("ann", "tea") == session(302, 2)
    assert both.forget("ann", "tea") == Removal(was_there=True, remaining=("stubborn",))
    assert not other.frames
    assert both.forget("ann", "tea").remaining == ("stubborn",)
    assert both.forget("ann", "none") == NOTHING_THERE


def test_a_tier_that_does_not_answer_may_have_it_still() -> None:
    tier = FakeTier()
    shelves = shelves_of(tier)
    assert shelves.keep(session(300, 0))
    tier.fault = "error"
    for _ in range(10):  # until it is not asked any more
        assert shelves.forget("ann", "tea") == Removal(was_there=False, remaining=("fake",))
    num_calls = len(tier.calls)
    assert shelves.forget("ann", "tea").remaining == ("fake",)
    assert len(tier.calls) == num_calls


def test_two_that_save_one_session_do_not_mix_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tier = FakeTier()
    shelves = shelves_of(tier)
    store, inside, most_inside = tier.store, 0, 0

    def slow_store(frames: Any, timeout_s: float) -> None:
        nonlocal inside, most_inside
        inside += 1
        most_inside = max(most_inside, inside)
        for frame in frames:
            pause.wait(0.001)
            store([frame], timeout_s)
        inside -= 1

    pause = threading.Event()
    monkeypatch.setattr(tier, "store", slow_store)
    kept = dict[int, bool]()

    def keep(number: int) -> None:
        kept[number] = shelves.keep(session(300 - number, number))

    threads = [threading.Thread(target=keep, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept == dict.fromkeys(range(4), True)
    assert most_inside == 1
    found = shelves.kept("ann", "tea")
    assert found in [session(300 - number, number) for number in range(4)]


def test_the_longest_session_has_as_many_frames_as_are_removed() -> None:
    tier = FakeTier()
    shelves = shelves_of(tier)
    longest = session(1000, 0)
    assert shelves.keep(longest)
    assert len(tier.frames) <= most_frames(PAYLOAD_BYTES, MOST_BYTES)
    assert shelves.forget("ann", "tea").remaining == ()
    assert not tier.frames


def test_every_row_is_asked_for_and_holes_are_seen() -> None:
    near, far = FakeTier("near", is_shared=True), FakeTier("far", is_shared=True)
    shelves = shelves_of(near, far)
    rows = [[BlockName(bytes([number]) * 32, group) for group in range(2)] for number in range(100)]
    shelves.store("ann", [(name, bytes(PAYLOAD_BYTES)) for row in rows for name in row])
    form = formats(PAYLOAD_BYTES).of("ann")
    for number in range(41, 45):
        for tier in (near, far):
            del tier.frames[form.name(rows[number][1])]
    assert shelves.num_held("ann", rows) == 41
    assert shelves.num_held("ann", rows[45:]) == 55
    for number in (3, 44):
        near.frames.pop(form.name(rows[number][0]))
    assert shelves.num_held("ann", rows) == 41, "the other tier has that of number 3"
    assert sum(map(len, shelves.load("ann", rows, 8))) == 41
    assert shelves.num_held("ann", []) == 0
    near.fault = far.fault = "error"
    assert shelves.num_held("ann", rows) == 0


def test_what_one_tier_has_spoilt_another_gives() -> None:
    rows = [[BlockName(bytes([number]) * 32, 0)] for number in range(8)]
    names = [formats(PAYLOAD_BYTES).of("ann").name(name) for (name,) in rows]
    for spoilt in ([0], [1], [4], [3, 4], [0, 7]):
        near, far = FakeTier("near"), FakeTier("far")
        shelves = shelves_of(near, far)
        shelves.store("ann", [(name, bytes(PAYLOAD_BYTES)) for (name,) in rows])
        near.frames.update({names[number]: b"no frame" for number in spoilt})
        pieces = list(shelves.load("ann", rows, 4))
        assert sum(map(len, pieces)) == 8, spoilt
        assert all(pieces)
        far.frames.update({names[number]: b"no frame" for number in spoilt})
        again = shelves_of(near, far).load("ann", rows, 4)
        assert sum(map(len, again)) == spoilt[0], "nobody has it"


def test_a_manifest_is_no_file() -> None:
    [(_, payload)] = manifest_of(session(1, 0), PAYLOAD_BYTES)
    assert payload[:8] != FILE_MAGIC
