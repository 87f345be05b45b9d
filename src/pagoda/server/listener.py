"""The socket the server listens on, whose address is taken before anything slow begins."""

from __future__ import annotations

import errno
import socket

from pagoda.errors import AddressInUseError, InvalidOptionError

_BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A socket on `host`:`port`; port 0 takes a free one. Whoever serves on it begins to listen.

    Until then clients are refused, and whoever asks for the server's health knows where he is.

    Raises `AddressInUseError` when another process listens there and `InvalidOptionError` for an
    address that this machine does not have or may not use.
    """
    if not 0 <= port <= 65535:
        raise InvalidOptionError("port", port, "must be between 0 and 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise InvalidOptionError("host", host, "is no address of this machine") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _refusal(error, host, port) from None
    return listener


def start_listening(listener: socket.socket) -> None:
    """Let clients connect. Raises `AddressInUseError` where another process was first."""
    try:
        listener.listen(_BACKLOG)
    except OSError:
        host, port = listener.getsockname()[:2]
        limit = f"another process listens on {host}:{port}"
        raise AddressInUseError("port", port, limit) from None


def url_of(listener: socket.socket) -> str:
    """Where a browser on this machine finds the server."""
    host, port = listener.getsockname()[:2]
    if listener.family == socket.AF_INET6:
        host = f"[{host}]"
    return f"http://{host}:{port}"


def _refusal(error: OSError, host: str, port: int) -> AddressInUseError | InvalidOptionError:
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError("port", port, f"another process listens on {host}:{port}")
    if error.errno == errno.EACCES:
        return InvalidOptionError("port", port, "this user may not listen on it")
    return InvalidOptionError("host", host, "is no address of this machine")
