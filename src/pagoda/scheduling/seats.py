"""Who runs, and who makes way where one tenant has more seats than are due to it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, takewhile

from pagoda.scheduling.queue import Lane, OrderedSequences, in_order
from pagoda.scheduling.sequence import Sequence
from pagoda.scheduling.service import Service

_ROUNDING = 1e-9


class Seats:
    """So many sequences may run; where several tenants want seats, each is due a share of them.

    A seat that nobody else wants may be had by anybody. One that is due to another is given up at
    once, by whoever has more than its own.
    """

    def __init__(
        self,
        num_seats: int,
        service: Service,
        running: OrderedSequences,
        waiting: OrderedSequences,
        is_ready: Callable[[Sequence], bool],
    ) -> None:
        """`is_ready` says of one that waits whether it could run at once."""
        self.num_seats = num_seats
        self._service = service
        self._running = running
        self._waiting = waiting
        self._is_ready = is_ready

    @property
    def num_free(self) -> int:
        return self.num_seats - len(self._running)

    def has_one_for(self, lane: Lane) -> bool:
        """There is a free seat, and it is not due to others that wait on the same level."""
        if self.num_free <= 0:
            return False
        if self._service.num_tenants == 1 or self._num_lacking(lane.tenant) > 0:
            return True
        others = [each for each in self._waiting.lanes if each.level <= lane.level]
        num_kept = 0
        for other in others:
            if other.tenant != lane.tenant:
                num_kept += len(self._ready(other))
                if num_kept >= self.num_free:
                    return False
        return True

    def who_makes_way(self) -> list[Sequence]:
        """Those that run in seats that are due to others, who wait and go before them."""
        if self._service.num_tenants == 1 or not len(self._waiting):
            return []
        num_free, victims = self.num_free, list[Sequence]()
        for lane in in_order(self._waiting.lanes, self._service):
            for _ in self._ready(lane):
                if num_free > 0:
                    num_free -= 1
                    continue
                victim = self._victim(lane, victims)
                if victim is None:
                    break
                victims.append(victim)
        return victims

    def _num_due(self, tenant: str) -> int:
        """Seats that a tenant may have whoever else wants them."""
        return max(1, int(self._service.share_of(tenant, self.num_seats) + _ROUNDING))

    def _num_lacking(self, tenant: str) -> int:
        return max(0, self._num_due(tenant) - self._running.num_of(tenant))

    def _ready(self, lane: Lane) -> list[Sequence]:
        """The first of a lane that could run in seats that are due to their tenant; nobody behind
        one that lacks room."""
        num_lacking = self._num_lacking(lane.tenant)
        if not num_lacking:
            return []
        fitting = takewhile(lambda each: not each.lacks_room, self._waiting.of(lane))
        return [each for each in islice(fitting, num_lacking) if self._is_ready(each)]

    def _victim(self, lane: Lane, victims: list[Sequence]) -> Sequence | None:
        """One of a tenant that has more than it is due, and whose turn comes after the lane's.

        The one that has made way least often, and of these the last: nobody does again and again.
        """
        lanes = in_order({lane, *self._running.lanes}, self._service)
        for later in reversed(lanes[lanes.index(lane) + 1 :]):
            left = [each for each in self._running.of(later) if each not in victims]
            num_gone = sum(each.tenant == later.tenant for each in victims)
            if left and self._running.num_of(later.tenant) - num_gone > self._num_due(later.tenant):
                return min(reversed(left), key=lambda each: each.stay)
        return None
