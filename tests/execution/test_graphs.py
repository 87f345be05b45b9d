"""How a CUDA graph is captured, on a PyTorch whose calls are noted and not made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import create_autospec

import pytest
import torch

from pagoda.errors import InvalidOptionError
from pagoda.execution.gpu.graphs import CUDAGraphs


class FakeStream:
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self._notes = notes

    def wait_stream(self, other: FakeStream) -> None:
        self._notes.append(f"{self.name} waits for {other.name}")


class FakeGraph:
    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def replay(self) -> None:
        self._notes.append("replay")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    notes: list[str] = []
    main = FakeStream("main", notes)

    @contextmanager
    def stream(side: FakeStream) -> Iterator[None]:
        notes.append(f"on {side.name}")
        yield
        notes.append("on main")

    @contextmanager
    def graph(cuda_graph: FakeGraph, pool: object = None, stream: object = None) -> Iterator[None]:
        assert isinstance(cuda_graph, FakeGraph)
        assert isinstance(stream, FakeStream)
        notes.append(f"capture on {stream.name} in {pool}")
        try:
            yield
        finally:
            if "broken" in notes:
                raise RuntimeError("CUDA error: operation failed due to a previous error")
        notes.append("captured")

    pools = iter(["pool 1", "pool 2"])
    handle = create_autospec(torch.cuda.graph_pool_handle, side_effect=lambda: next(pools))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", handle)
    current = create_autospec(torch.cuda.current_stream, return_value=main)
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: FakeGraph(notes))
    return notes


def test_launches_run_once_on_the_side_before_they_are_recorded(notes: list[str]) -> None:
    capture = CUDAGraphs(FakeStream("side", notes))  # type: ignore[arg-type]
    replay = capture(lambda: notes.append("launch"))
    assert notes == [
        "side waits for main", "on side", "launch", "on main", "main waits for side",
        "capture on side in pool 1", "launch", "captured",
    ]  # fmt: skip
    notes.clear()
    replay()
    assert notes == ["replay"]


def test_graphs_of_one_engine_share_a_pool_and_those_of_another_do_not(notes: list[str]) -> None:
    for _ in range(2):
        capture = CUDAGraphs(FakeStream("side", notes))  # type: ignore[arg-type]
        capture(lambda: None)
        capture(lambda: None)
    pools = [note.split(" in ")[1] for note in notes if note.startswith("capture on")]
    assert pools == ["pool 1", "pool 1", "pool 2", "pool 2"]


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (torch.AcceleratorError("CUDA error: not permitted\nCompile with"), InvalidOptionError),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError),
    ],
    ids=["not-permitted", "full"],
)
def test_a_capture_that_fails_says_what_it_failed_with_first(
    notes: list[str], first: Exception, expected: type[Exception]
) -> None:
    def launches() -> None:
        if any(note.startswith("capture") for note in notes):
            notes.append("broken")
            raise first

    with pytest.raises(expected) as failure:
        CUDAGraphs(FakeStream("side", notes))(launches)  # type: ignore[arg-type]
    if isinstance(failure.value, InvalidOptionError):
        assert failure.value.field == "enforce_eager"
        assert "(CUDA error: not permitted)" in failure.value.limit
