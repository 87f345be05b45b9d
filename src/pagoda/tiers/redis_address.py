"""Where a Redis or Valkey is, and who asks: `rediss://user:password@host:6379/0`."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from pagoda.errors import InvalidOptionError
from pagoda.tiers.certificates import context_of
from pagoda.tiers.credentials import without_credentials
from pagoda.tiers.deadline import Deadline
from pagoda.tiers.tier import TierError, TierFault

_DEFAULT_PORT = 6379
_SCHEMES = ("redis", "rediss")
_PATTERN = "has to be redis://[user:password@]host[:port][/database], or rediss:// for TLS"


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """What a URL says. Neither `repr` nor `str` tells who asks."""

    host: str
    port: int = _DEFAULT_PORT
    database: int = 0
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    """Whose certificates are trusted; None: what is said is not encrypted."""

    @classmethod
    def parse(
        cls, url: str, *, ca_file: str | None = None, option: str = "kv_tier"
    ) -> RedisAddress:
        """`ca_file`: of the authority whose certificates are trusted; None: the machine's own.

        Raises InvalidOptionError, which names `option` and shows no password.
        """
        shown = without_credentials(url)
        try:
            parts = urlsplit(url)
            port = parts.port or _DEFAULT_PORT
            host = parts.hostname
        except ValueError:  # a port that is no number, brackets that do not close
            raise InvalidOptionError(option, shown, _PATTERN) from None
        database = parts.path.strip("/") or "0"
        is_odd = parts.query or parts.fragment or not (database.isascii() and database.isdigit())
        if parts.scheme not in _SCHEMES or not host or is_odd:
            raise InvalidOptionError(option, shown, _PATTERN)
        user = unquote(parts.username) if parts.username else None
        password = unquote(parts.password) if parts.password else None
        tls = context_of(ca_file, option) if parts.scheme == "rediss" else None
        return cls(host, port, int(database), user, password, tls)

    def __str__(self) -> str:
        return f"redis at {self.host}:{self.port}"

    def connect(self, deadline: Deadline) -> socket.socket:
        """A connection with TLS, if that is asked for. Raises TierError, OSError."""
        connected = self._connect(deadline)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is None:
            return connected
        try:
            connected.settimeout(deadline.left_s())
            return self.tls.wrap_socket(connected, server_hostname=self.host)
        except BaseException:
            connected.close()
            raise

    def _connect(self, deadline: Deadline) -> socket.socket:
        """To the first of the host's addresses where somebody answers."""
        failure: OSError | None = None
        for family, kind, protocol, _, address in self._resolve(deadline):
            connected = socket.socket(family, kind, protocol)
            try:
                connected.settimeout(deadline.left_s())
                connected.connect(address)
                return connected
            except OSError as error:
                connected.close()
                failure = error
            except BaseException:
                connected.close()
                raise
        assert failure is not None, "a host that is found has an address"
        raise failure

    def _resolve(self, deadline: Deadline) -> list[Any]:
        """As `socket.getaddrinfo` does, which has no timeout: a name is asked for in a thread that
        may hang longer than anybody waits."""
        if _is_number(self.host):
            return socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        answers: list[list[Any] | OSError] = []

        def ask() -> None:
            try:
                answers.append(socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError) as error:
                answers.append(OSError(str(error)))

        asking = threading.Thread(target=ask, name="pagoda-resolve", daemon=True)
        asking.start()
        asking.join(deadline.left_s())
        if not answers:
            raise deadline.error()
        if isinstance(answers[0], OSError):
            raise TierError(TierFault.UNREACHABLE, f"{self}: the host is not known")
        return answers[0]


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
