from __future__ import annotations

import socket

import pytest

from pagoda.errors import AddressInUseError, InvalidOptionError
from pagoda.server.listener import bind, start_listening, url_of


def test_a_free_port_is_taken_at_once() -> None:
    with bind("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        assert url_of(listener) == f"http://127.0.0.1:{port}"


def test_a_port_in_use_is_told_before_anything_runs() -> None:
    with bind("127.0.0.1", 0) as first:
        start_listening(first)
        port = first.getsockname()[1]
        with pytest.raises(AddressInUseError) as refused:
            bind("127.0.0.1", port)
    assert str(refused.value) == f"port={port}: another process listens on 127.0.0.1:{port}"


def test_a_port_that_another_took_meanwhile_is_told() -> None:
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", first.getsockname()[1]) as second:
        start_listening(first)
        with pytest.raises(AddressInUseError, match=r"another process listens on 127\.0\.0\.1:"):
            start_listening(second)


def test_clients_are_refused_until_the_server_listens() -> None:
    with bind("127.0.0.1", 0) as listener:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(listener.getsockname())
        start_listening(listener)
        socket.create_connection(listener.getsockname()).close()


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1", "a" * 300])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(InvalidOptionError) as refused:
        bind(host, 0)
    assert refused.value.field == "host"


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(InvalidOptionError) as refused:
        bind("127.0.0.1", port)
    assert refused.value.field == "port"
