"""Outputs show the engine's growing lists without copying them."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.engine.outputs import CompletionOutput, RequestOutput, Snapshot

BOUND = st.integers(0, 12)


@given(st.lists(st.integers(), max_size=10), BOUND, st.none() | BOUND, st.data())
def test_a_snapshot_is_a_stretch_that_no_longer_changes(
    items: list[int], start: int, stop: int | None, data: st.DataObject
) -> None:
    expected = items[start:stop]
    snapshot = Snapshot(items, start, stop)
    items.append(99)
    assert list(snapshot) == expected
    assert snapshot == expected
    assert snapshot == tuple(expected)
    assert snapshot == Snapshot(expected)
    assert snapshot != [*expected, 99]
    assert (len(snapshot), repr(snapshot)) == (len(expected), repr(expected))
    assert hash(snapshot) == hash(tuple(expected))
    assert list(reversed(snapshot)) == expected[::-1]
    assert pickle.loads(pickle.dumps(snapshot)) == tuple(expected)
    part = data.draw(st.slices(len(expected)))
    assert list(snapshot[part]) == expected[part]
    for index in range(-len(expected), len(expected)):
        assert snapshot[index] == expected[index]
    for outside in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            snapshot[outside]


def test_a_snapshot_holds_no_copy() -> None:
    class Watched(list[int]):
        def __getitem__(self, index: object) -> object:  # type: ignore[override]
            raise AssertionError("read")

    assert len(Snapshot(Watched([1, 2, 3]), 1)) == 2


def test_outputs_tell_how_far_they_are() -> None:
    running = CompletionOutput(0, " fox", [5], delta=" fox")
    done = CompletionOutput(1, "", Snapshot([2]), finish_reason="stop", stop_reason=2)
    output = RequestOutput("1", None, (1, 2, 3), None, [running, done], False, 2)
    assert (running.finished, done.finished) == (False, True)
    assert output.num_prompt_tokens == 3
    assert json.dumps(list(done.token_ids)) == "[2]"
