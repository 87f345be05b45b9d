"""Loads of requests beside sessions that are brought in: sessions give way first."""

from __future__ import annotations

from pagoda.cache import BlockTable, PrefixMatch
from pagoda.engine.sessions.arriving import ArrivingSessions
from pagoda.scheduling import Sequence
from pagoda.scheduling.prefix_load import PrefixLoad
from pagoda.scheduling.prefix_loads import PrefixLoads


class LoadsBesideSessions:
    """See `PrefixLoads`: those of requests, before which sessions give way."""

    def __init__(self, loads: PrefixLoads, sessions: ArrivingSessions) -> None:
        self._loads = loads
        self.sessions = sessions

    def begin(self, sequence: Sequence, match: PrefixMatch) -> PrefixLoad:
        return self._loads.begin(sequence, match)

    def make_room(self, table: BlockTable) -> bool:
        return self.sessions.give_way(table) or self._loads.make_room(table)

    def give_way(self, table: BlockTable) -> bool:
        return self.sessions.give_way(table) or self._loads.give_way(table)

    def start_over(self) -> None:
        self.sessions.forget()
        self._loads.start_over()
