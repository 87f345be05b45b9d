"""Who runs, and who makes way where one tenant has more seats than are due to it."""

from __future__ import annotations

from pagoda.scheduling.queue import Lane, OrderedSequences, in_order
from pagoda.scheduling.sequence import Sequence
from pagoda.scheduling.service import Service


class Seats:
    """So many sequences may run; where several tenants want seats, each has a share of them."""

    def __init__(self, num_seats: int, service: Service) -> None:
        self.num_seats = num_seats
        self._service = service

    def num_due(self, tenant: str) -> int:
        """Seats that a tenant may have whoever else wants them."""
        return int(self._service.share_of(tenant, self.num_seats))

    def has_one_for(
        self, tenant: str, running: OrderedSequences, waiting: OrderedSequences
    ) -> bool:
        """There is a free seat, and it is not due to others that wait."""
        num_free = self.num_seats - len(running)
        if num_free > 0 and running.num_of(tenant) >= self.num_due(tenant):
            others = {lane.tenant for lane in waiting.lanes()} - {tenant}
            num_free -= sum(self._num_lacking(other, running) for other in others)
        return num_free > 0

    def num_to_free(self, tenant: str, running: OrderedSequences) -> int:
        """Seats that are due to a tenant and that it has not; 0 while one is free for anybody."""
        if len(running) < self.num_seats or self._service.num_tenants == 1:
            return 0
        return self._num_lacking(tenant, running)

    def _num_lacking(self, tenant: str, running: OrderedSequences) -> int:
        return max(0, self.num_due(tenant) - running.num_of(tenant))

    def who_makes_way(self, lane: Lane, running: OrderedSequences) -> Sequence | None:
        """The last of those that run, of a tenant that has more than it is due and whose turn comes
        after the lane's; None if there is none."""
        lanes = in_order({lane, *running.lanes()}, self._service)
        for later in reversed(lanes[lanes.index(lane) + 1 :]):
            if running.num_of(later.tenant) > self.num_due(later.tenant):
                return running.of(later)[-1]
        return None
