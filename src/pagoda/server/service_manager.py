"""What systemd is told of a server that it started: that it is ready, alive, or ending."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress


class ServiceManager:
    """Tells systemd by the protocol of `sd_notify`. Says nothing where nobody listens."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """`environment`: `NOTIFY_SOCKET` says where to tell, `WATCHDOG_USEC` how often."""
        self._address = environment.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):  # of Linux's abstract names
            self._address = "\0" + self._address[1:]
        patience_us = environment.get("WATCHDOG_USEC", "")
        self._interval_s = int(patience_us) / 2e6 if patience_us.isdigit() else None
        self._next_sign_at = 0.0
        self._is_ready = False

    def ready(self) -> None:
        """Requests are answered from now on."""
        if not self._is_ready:
            self._is_ready = True
            self._tell("READY=1")

    def sign_of_life(self) -> None:
        """The server is well. To be called often; is told twice in the time that systemd waits."""
        now = time.monotonic()
        if self._interval_s is not None and now >= self._next_sign_at:
            self._next_sign_at = now + self._interval_s
            self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """The server ends."""
        self._tell("STOPPING=1")

    def _tell(self, state: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.setblocking(False)
                out.sendto(state.encode(), self._address)
