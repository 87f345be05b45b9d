"""Steps for several threads: what has come of a request is handed out once."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from planted_errors import Code, Places, Planted

from pagoda.engine.news import News
from pagoda.engine.shared_steps import Inbox, SharedSteps
from pagoda.errors import EngineError

CODE = Code("engine", skipped=frozenset())
NOBODY_ASKS = "c"


class FakeEngine:
    """Brings everybody's news in its first step."""

    def __init__(self) -> None:
        self.news = News()
        self._has_brought = False

    def finish_recovery(self) -> None:
        """There is none."""

    def advance(self) -> None:
        if self._has_brought:
            return
        self._has_brought = True
        told: Any = [SimpleNamespace(request_id=name) for name in ("a", NOBODY_ASKS, "a")]
        self.news.outputs = told
        self.news.errors = {"b": EngineError("it failed")}


def steps() -> tuple[SharedSteps, dict[str, Inbox]]:
    shared = SharedSteps(FakeEngine())  # type: ignore[arg-type]
    shared._inboxes = {"a": deque(), "b": deque()}
    return shared, shared._inboxes


def test_wherever_an_interrupt_comes_everything_is_told_once() -> None:
    shared, inboxes = steps()
    places = Places(CODE)
    with places.taken_down():
        shared._step()
    expected = [type(told) for inbox in inboxes.values() for told in inbox]
    assert expected == [SimpleNamespace, SimpleNamespace, EngineError]
    for place in places.all():
        shared, inboxes = steps()
        planted = Planted(CODE, place, KeyboardInterrupt())
        try:
            with planted.armed():
                shared._step()
        except KeyboardInterrupt:
            shared._step()
        assert planted.frames, place
        assert [type(told) for inbox in inboxes.values() for told in inbox] == expected, place
