"""What systemd is told."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvicorn

from pagoda.server.admission import Admission
from pagoda.server.app import create_app
from pagoda.server.options import ServerOptions
from pagoda.server.run import _Server, config_of
from pagoda.server.service_manager import ServiceManager
from server.fake_engine import FakeEngine


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    """Where systemd would listen."""
    name = str(tmp_path / "notify") if request.param == "path" else f"\0pagoda-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name)
        listener.setblocking(False)
        yield listener


def environment_of(systemd: socket.socket, patience_us: int = 60_000_000) -> dict[str, str]:
    name = systemd.getsockname()
    shown = "@" + name[1:].decode() if isinstance(name, bytes) else name
    return {"NOTIFY_SOCKET": shown, "WATCHDOG_USEC": str(patience_us)}


def told(systemd: socket.socket) -> list[str]:
    states = []
    while True:
        try:
            states.append(systemd.recv(100).decode())
        except BlockingIOError:
            return states


def test_systemd_is_told_once_and_then_now_and_again(systemd: socket.socket) -> None:
    manager = ServiceManager(environment_of(systemd))
    for _ in range(3):
        manager.ready()
        manager.sign_of_life()
    manager.stopping()
    assert told(systemd) == ["READY=1", "WATCHDOG=1", "STOPPING=1"]
    eager = ServiceManager(environment_of(systemd, patience_us=0))
    eager.sign_of_life()
    eager.sign_of_life()
    assert told(systemd) == ["WATCHDOG=1"] * 2


class NoSocket:
    def __init__(self, *family: object) -> None:
        raise AssertionError("a socket was opened")


def say_all(manager: ServiceManager) -> None:
    manager.ready()
    manager.sign_of_life()
    manager.stopping()


def test_without_systemd_nothing_is_said(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    say_all(ServiceManager(environment_of(systemd)))
    assert told(systemd) == ["READY=1", "WATCHDOG=1", "STOPPING=1"]
    monkeypatch.setattr(socket, "socket", NoSocket)
    say_all(ServiceManager({"WATCHDOG_USEC": "0"}))


def test_a_systemd_that_is_gone_ends_nobody(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    manager = ServiceManager({"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "0"})
    say_all(manager)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.setblocking(False)
        manager.stopping()
        assert told(listener) == ["STOPPING=1"], "what comes later is told"


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_server_whose_engine_is_gone_gives_no_sign_of_life(
    is_alive: bool, systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment_of(systemd).items():
        monkeypatch.setenv(name, value)
    engine = FakeEngine()
    engine.is_alive = is_alive
    config: uvicorn.Config = config_of(create_app(engine), ServerOptions())
    state = SimpleNamespace(admission=Admission(1), engine=engine)
    server = _Server(config, state, 1.0)  # type: ignore[arg-type]
    assert asyncio.run(server.on_tick(1)) is not is_alive
    assert told(systemd) == (["READY=1", "WATCHDOG=1"] if is_alive else [])
