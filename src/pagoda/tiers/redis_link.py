"""One connection to Redis or Valkey, whose every word has a deadline.

Commands are sent ahead of the answers, which come in the same order. The library `hiredis` writes
and reads the protocol; the socket is ours, because a deadline is for a whole answer, and not for
each piece of it that trickles in.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Any

from pagoda.errors import InvalidOptionError
from pagoda.tiers.deadline import Deadline
from pagoda.tiers.redis_address import RedisAddress
from pagoda.tiers.tier import TierError, TierFault

_READ_BYTES = 2**18
_FAULTS = {
    "NOAUTH": TierFault.DENIED,
    "WRONGPASS": TierFault.DENIED,
    "NOPERM": TierFault.DENIED,
    "READONLY": TierFault.DENIED,
    "OOM": TierFault.FULL,
    "MISCONF": TierFault.FULL,  # it cannot write its own file, so it takes nothing more
    "LOADING": TierFault.UNREACHABLE,
    "MASTERDOWN": TierFault.UNREACHABLE,
    "CLUSTERDOWN": TierFault.UNREACHABLE,
}
"""By the first word of an answer that is an error; any other is one as well."""
_WORDS = {
    "NOAUTH": "wants a user and a password",
    "WRONGPASS": "does not take this user and password",
    "NOPERM": "does not let this user do that",
    "READONLY": "is a replica that takes no writes",
    "OOM": "is full (set its maxmemory-policy to allkeys-lru)",
    "MISCONF": "cannot write its own snapshots, and takes no writes",
    "LOADING": "is still loading its data",
    "MOVED": "is a cluster: name a single server",
    "NOPROTO": "speaks another protocol",
}


class RedisLink:
    """One thread at a time. After any error it is of no more use: `close` it."""

    def __init__(self, address: RedisAddress, deadline: Deadline) -> None:
        """Connect and log in. Raises TierError."""
        import hiredis

        self._address = address
        self._pack = hiredis.pack_command
        self._error_type = hiredis.ReplyError
        self._reader: Any = hiredis.Reader()  # whose types do not know that it reads bytearrays
        self._buffer = bytearray(_READ_BYTES)
        self._num_awaited = 0
        self._asked_at = 0.0
        self.round_trip_s = float("inf")
        """The least that a question and its answer took on this connection: a machine that is
        busy now and then is not far away."""
        try:
            self._socket = address.connect(deadline)
        except TimeoutError:
            raise deadline.error() from None
        except OSError as error:
            raise self._unreachable(error) from None
        try:
            self._log_in(deadline)
        except BaseException:
            self.close()
            raise

    @property
    def is_idle(self) -> bool:
        """Nothing is awaited, and nothing has come: the server has not hung up either."""
        if self._num_awaited:
            return False
        poll = select.poll()  # not `select`, which knows no descriptor above 1,023
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def send(self, *command: Any, deadline: Deadline) -> None:
        """One more command: words, numbers and bytes. Raises TierError."""
        if not self._num_awaited:
            self._asked_at = time.monotonic()
        self._num_awaited += 1
        try:
            self._socket.settimeout(deadline.left_s())
            self._socket.sendall(self._pack(command))
        except TimeoutError:
            raise deadline.error() from None
        except OSError as error:
            raise self._unreachable(error) from None

    def receive(self, deadline: Deadline) -> Any:
        """The answer to the command that has waited longest: bytes, a number, None or a list.

        Raises TierError, also where the answer says that the command went wrong.
        """
        answer = self._receive(deadline)
        if isinstance(answer, self._error_type):
            raise self._refused(str(answer))
        return answer

    def receive_or(self, fallback: Any, deadline: Deadline) -> Any:
        """The same, with something in place of an answer that this server, or this key, knows no
        such command."""
        try:
            return self.receive(deadline)
        except TierError as error:
            if error.reason is not TierFault.ERROR:
                raise
            return fallback

    def ask(self, *command: Any, deadline: Deadline) -> Any:
        """Send a command and wait for its answer. Raises TierError."""
        self.send(*command, deadline=deadline)
        return self.receive(deadline)

    def close(self) -> None:
        """Hang up; no effect a second time."""
        self._socket.close()

    def _receive(self, deadline: Deadline) -> Any:
        import hiredis

        try:
            answer = self._reader.gets()
            while answer is False:  # RESP2 has no answer that is read as False
                self._socket.settimeout(deadline.left_s())
                num_bytes = self._socket.recv_into(self._buffer)
                if num_bytes == 0:
                    raise ConnectionResetError("it hung up")
                self._reader.feed(self._buffer, 0, num_bytes)
                answer = self._reader.gets()
        except TimeoutError:
            raise deadline.error() from None
        except OSError as error:
            raise self._unreachable(error) from None
        except hiredis.ProtocolError:
            raise TierError(TierFault.FOREIGN, f"{self._address}: no Redis answers") from None
        self._num_awaited -= 1
        if self._asked_at:
            self.round_trip_s = min(self.round_trip_s, time.monotonic() - self._asked_at)
            self._asked_at = 0.0  # others have waited for it too
        return answer

    def _log_in(self, deadline: Deadline) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        address = self._address
        if address.password is not None:
            user = () if address.user is None else (address.user,)
            self.ask("AUTH", *user, address.password, deadline=deadline)
        if address.database:
            self.ask("SELECT", address.database, deadline=deadline)
        self.ask("PING", deadline=deadline)  # who may not do that may do nothing here

    def _refused(self, answer: str) -> TierError:
        """Of what a server says only the first word is told: it may repeat what it was sent."""
        word = answer.split(maxsplit=1)[0] if answer else "ERR"
        told = _WORDS.get(word, f"refused a command ({word})" if word.isalpha() else "failed")
        return TierError(_FAULTS.get(word, TierFault.ERROR), f"{self._address} {told}")

    def _unreachable(self, error: OSError) -> TierError:
        told = error.strerror or type(error).__name__
        return TierError(TierFault.UNREACHABLE, f"{self._address} cannot be reached: {told}")


def require_hiredis(option: str, value: str) -> None:
    """Raises InvalidOptionError where the library is not installed."""
    try:
        import hiredis  # noqa: F401
    except ImportError:
        raise InvalidOptionError(
            option, value, "Redis needs a library more: pip install 'pagoda-llm[redis]'"
        ) from None
