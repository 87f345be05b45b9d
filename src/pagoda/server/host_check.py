"""Which names a server that needs no key answers to.

A page from elsewhere can point its own name at an address of this machine (DNS rebinding). The
browser then takes the server for a part of the page, and lets it read what is answered. The name
that it was told stays in the request's `Host`.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pagoda.server.door import FREE
from pagoda.server.errors import RejectedError, rejection

ANY_HOST = "*"
_HOST = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^:\[\]]*)(?::\d*)?")
"""A name or an address, and a port."""


class HostCheck:
    """Lets requests in whose `Host` is an address, a name of this machine, or an allowed one.

    Nobody can point an address elsewhere. A request without `Host` comes from no browser.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str] = ()) -> None:
        """`allowed`: names beside those of this machine; "*" stands for all."""
        self._app = app
        own = socket.gethostname().lower()
        self._names = {"localhost", own, f"{own}.local", *(name.lower() for name in allowed)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in FREE:
            host = Headers(scope=scope).get("host")
            if host is not None and not self._is_known(host):
                limit = "the request's Host is no name of this server; --allowed-hosts adds names"
                strange = RejectedError(403, "host_not_allowed", limit)
                await rejection(strange)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        if ANY_HOST in self._names:
            return True
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].lower().rstrip(".")
        return name in self._names or name.endswith(".localhost") or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
