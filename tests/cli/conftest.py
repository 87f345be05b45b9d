from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from pagoda.engine.options import EngineOptions
from server.fake_engine import FakeEngine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """An engine without a model, which every command loads. `engine.options` tells with what."""
    fake = FakeEngine()

    def load_engine(options: EngineOptions, console: object) -> FakeEngine:
        fake.options = options
        return fake

    for command in ("serve", "chat", "generate"):
        # The module, not the command of the same name that its package exports.
        monkeypatch.setattr(f"pagoda.cli.{command}.load_engine", load_engine)
    return fake


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Sets the bytes that come from stdin, which is a pipe."""

    def pipe(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))

    return pipe


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets what comes from stdin, which is no terminal."""

    def type_text(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))

    type_text("")
    return type_text
