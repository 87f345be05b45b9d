"""The sessions that an engine remembers, for their tenants alone, within bounds."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from pagoda.cache.prefix import packed
from pagoda.engine.sessions.errors import UnknownSessionError
from pagoda.engine.sessions.session import Session
from pagoda.scheduling import Sequence as RunningSequence

MOST_SESSIONS = 1024
"""Of a tenant."""
MOST_BYTES = 32 * 2**20
"""Of a tenant's lists of tokens: eight million tokens."""
MOST_TENANTS = 1024
"""A server has as many as it has keys; a program may make up any number."""

_OfTenant = OrderedDict[str, Session]
"""By their ids, the one that was used last at the end."""


class Sessions:
    """Any thread may ask. A tenant that has too many loses those that it used least recently, and
    no other tenant does. Of more than `MOST_TENANTS`, whichever used its own least recently loses
    them."""

    def __init__(
        self,
        *,
        most: int = MOST_SESSIONS,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`most` sessions of a tenant, with `most_bytes` of tokens; one alone may have more."""
        self._most = most
        self._most_bytes = most_bytes
        self._clock = clock
        self._by_tenant: OrderedDict[str, _OfTenant] = OrderedDict()
        self._lock = threading.Lock()

    def went(self, sequences: Sequence[RunningSequence]) -> None:
        """The choices of a request have ended. Of several, the first is what the session knows.

        What it computed is remembered also where it was ended early; nothing, where it has not
        begun.
        """
        if not sequences:
            return
        sequence = sequences[0]
        session_id = sequence.request.options.session_id
        num_computed = min(sequence.num_computed_tokens, len(sequence.token_ids))
        if session_id is None or num_computed == 0:
            return
        origin = sequence.table.origin
        tokens = packed(sequence.token_ids[:num_computed])
        now = self._clock()
        self.put(
            Session(origin.tenant, session_id, tokens, now, origin.cache_salt, origin.retention)
        )

    def put(self, session: Session) -> None:
        """Remember a session; one of the same id is forgotten."""
        with self._lock:
            self._put(session)

    def put_unless_newer(self, session: Session) -> None:
        """Remember a session, unless one of its id is known that was used after it."""
        with self._lock:
            known = self._by_tenant.get(session.tenant, _OfTenant()).get(session.session_id)
            if known is None or known.used_at <= session.used_at:
                self._put(session)

    def find(self, tenant: str, session_id: str) -> Session | None:
        with self._lock:
            return self._by_tenant.get(tenant, _OfTenant()).get(session_id)

    def get(self, tenant: str, session_id: str) -> Session:
        """Raises `UnknownSessionError`."""
        found = self.find(tenant, session_id)
        if found is None:
            raise UnknownSessionError(session_id)
        return found

    def of(self, tenant: str) -> list[Session]:
        """A tenant's own, the one that was used last first."""
        with self._lock:
            return list(reversed(self._by_tenant.get(tenant, _OfTenant()).values()))

    def forget(self, tenant: str, session_id: str) -> bool:
        """False: there was none."""
        with self._lock:
            known = self._by_tenant.get(tenant, _OfTenant())
            was_known = known.pop(session_id, None) is not None
            if was_known and not known:
                del self._by_tenant[tenant]
            return was_known

    def _put(self, session: Session) -> None:
        known = self._by_tenant.setdefault(session.tenant, OrderedDict())
        known[session.session_id] = session
        known.move_to_end(session.session_id)
        self._by_tenant.move_to_end(session.tenant)
        num_bytes = sum(len(each.tokens) for each in known.values())
        while len(known) > self._most or (num_bytes > self._most_bytes and len(known) > 1):
            num_bytes -= len(known.popitem(last=False)[1].tokens)
        while len(self._by_tenant) > MOST_TENANTS:
            self._by_tenant.popitem(last=False)
