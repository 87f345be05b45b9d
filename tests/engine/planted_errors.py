"""Errors that come up at one place of a run: before one line, at one of the times it is reached.

`Places` takes the lines of a run down, `Planted` raises at one of them. Both see the lines of some
files alone, and of these not the functions that are named as skipped. A run that is long says when
a round of it begins: Python takes twice as long where it is traced, and one round is enough.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, NoReturn

import pagoda
from pagoda.engine.core import Engine
from pagoda.engine.sessions.loads_beside_sessions import LoadsBesideSessions

ROOT = Path(pagoda.__file__).parent


class Place(NamedTuple):
    """Before a line, when it is reached for the `turn`-th time in a round."""

    file: str
    """Below the package."""
    line: int
    round: int
    """0 where a run has but one."""
    turn: int


class Code:
    """Which code errors are planted in."""

    def __init__(self, *folders: str, skipped: frozenset[str]) -> None:
        """`skipped` are the qualified names of functions."""
        self._folders = tuple(f"{ROOT / folder}/" for folder in folders)
        self._skipped = skipped

    def has(self, code: CodeType) -> bool:
        is_inside = code.co_filename.startswith(self._folders)
        return is_inside and code.co_qualname not in self._skipped


class Places:
    """Every line that a run comes to, and how often."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._round = 0
        self._rounds: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        """Of each line: in which round each of its turns came."""

    def begin_round(self, number: int) -> None:
        """Lines belong to this round from now on."""
        self._round = number

    @contextmanager
    def taken_down(self) -> Iterator[None]:
        with traced(self._call):
            yield

    def _call(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        return self._line if self._code.has(frame.f_code) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        if event == "line":
            self._rounds[frame.f_code.co_filename, frame.f_lineno].append(self._round)
        return self._line

    def all(self) -> list[Place]:
        """Each line at its first turn, its last, and one in the middle."""
        return [
            Place(str(Path(file).relative_to(ROOT)), line, *_in_its_round(rounds, turn))
            for (file, line), rounds in sorted(self._rounds.items())
            for turn in sorted({1, (len(rounds) + 1) // 2, len(rounds)})
        ]


def _in_its_round(rounds: list[int], turn: int) -> tuple[int, int]:
    """The round that the `turn`-th of all came in, and which of that round's it was."""
    number = rounds[turn - 1]
    return number, turn - rounds.index(number)


def of_transfers(places: list[Place]) -> list[Place]:
    """Those where blocks come from tiers and go there."""
    return [place for place in places if place.file.startswith("engine/transfers/")]


class Planted:
    """An error that is raised once, at a place."""

    def __init__(self, code: Code, place: Place, error: BaseException) -> None:
        self._code = code
        self._file, self._at = str(ROOT / place.file), place.line
        self._round = place.round
        self._turns_left = place.turn
        self._error = error
        self.frames: list[FrameType] = []
        """Where it was raised, the innermost frame first; none if the run does not come there."""
        self.held: list[tuple[str, dict[str, Any]]] = []
        """Each frame's function and variables, with lists as they were then."""

    @contextmanager
    def armed(self) -> Iterator[None]:
        with traced(None):
            self.begin_round(0)
            yield

    def begin_round(self, number: int) -> None:
        """Python is traced in the place's own round alone, until the error has come."""
        sys.settrace(self._call if number == self._round and not self.frames else None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        code = frame.f_code
        is_here = code.co_filename == self._file and code.co_firstlineno <= self._at
        return self._line if is_here and not self.frames and self._code.has(code) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if event == "line" and frame.f_lineno == self._at and not self.frames:
            self._turns_left -= 1
            if self._turns_left == 0:
                self.frames = list(stack(frame))
                self.held = [(each.f_code.co_name, variables(each)) for each in self.frames]
                self._raise()
        return self._line

    def _raise(self) -> NoReturn:
        """Python traces nothing more after this."""
        raise self._error


def stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def variables(frame: FrameType) -> dict[str, Any]:
    held = frame.f_locals
    return {name: [*value] if type(value) is list else value for name, value in held.items()}


@contextmanager
def traced(call: Callable[..., Any] | None) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(before)


def require_nothing_left(engine: Engine, num_blocks: int) -> None:
    """No request, and nothing of one, is left in an engine whose blocks are so many."""
    engine.scheduler.cache.check_integrity()
    assert engine.scheduler.cache.num_free_blocks == num_blocks
    assert not engine._roster.assemblers
    assert not engine._roster.choices
    assert not engine._roster.constrained
    assert not engine.timeline._waiting
    assert not engine.timeline._running
    assert not engine.scheduler.has_unfinished
    if isinstance(engine.scheduler.loads, LoadsBesideSessions):
        assert not engine.scheduler.loads.sessions
    assert not getattr(getattr(engine.transfers, "loads", None), "num_under_way", 0)
    stats = engine.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
