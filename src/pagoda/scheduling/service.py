"""What each tenant has been served. The tenant that was served least goes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


class Service:
    """Tokens computed for each tenant, divided by its weight: a clock for each.

    A tenant that comes goes on from where it left, but no more than `burst` tokens behind what
    whoever was served least had reached before: it may begin with a prompt of that length before
    others go on, and saves up no more by staying away. After Sheng et al., Fairness in Serving
    Large Language Models, OSDI 2024, where the burst is 0.
    """

    def __init__(self, weights: Mapping[str, float] | None = None, burst: int = 0) -> None:
        """`weights` are positive; a tenant without one has 1."""
        self._weights = dict(weights or {})
        self._burst = burst
        self._clocks: dict[str, float] = {}
        """Of those that are here."""
        self._left_at: dict[str, float] = {}
        """Clocks of those that are away and would go on from there."""
        self._reached = 0.0
        """The most that whoever was served least has had; it never goes back while somebody is
        here, so that those who come one after the other begin alike."""
        self._num_here: Counter[str] = Counter()
        """Unfinished sequences."""
        self._places: dict[str, int] = {}
        """In which order those came that are here."""
        self._num_came = 0
        self._total_weight = 0.0

    def come(self, tenants: Iterable[str]) -> None:
        """Each has one more unfinished sequence; a tenant is named once for each of them."""
        for tenant in tenants:
            if tenant not in self._clocks:
                self._begin(tenant, self._left_at.pop(tenant, 0.0))
            self._num_here[tenant] += 1

    def go(self, tenant: str) -> None:
        """The tenant has one less."""
        self._num_here[tenant] -= 1
        if not self._num_here[tenant]:
            del self._num_here[tenant], self._places[tenant]
            self._leave({tenant: self._clocks.pop(tenant)})

    def keep(self, tenants: Iterable[str]) -> None:
        """These are the tenants of all unfinished sequences, each as often as it has any.

        Mends what a call left that broke off in the middle.
        """
        before, self._clocks, self._places = self._clocks, {}, {}
        self._num_here = Counter(tenants)
        for tenant in self._num_here:
            self._begin(tenant, before.pop(tenant, 0.0))
        self._leave(before)

    def _begin(self, tenant: str, clock: float) -> None:
        self._clocks[tenant] = max(clock, self._least_of(tenant))
        self._places[tenant] = self._num_came
        self._num_came += 1
        self._total_weight = sum(map(self.weight_of, self._clocks))

    def _leave(self, clocks: Mapping[str, float]) -> None:
        """Tenants are away from now on, with these clocks."""
        self._left_at.update(clocks)
        self._total_weight = sum(map(self.weight_of, self._clocks))
        if not self._clocks:  # nobody is here to be ahead of
            self._left_at, self._reached = {}, 0.0
            return
        self.settle()
        self._left_at = {
            name: clock for name, clock in self._left_at.items() if clock > self._least_of(name)
        }

    def _least_of(self, tenant: str) -> float:
        """Where a tenant begins that has had nothing."""
        return self._reached - self._burst / self.weight_of(tenant)

    def settle(self) -> None:
        """Take note of what whoever was served least has reached: once a step."""
        if self._clocks:
            self._reached = max(self._reached, min(self._clocks.values()))

    def serve(self, tenant: str, num_tokens: int) -> None:
        """So many tokens more are computed for a tenant that is here."""
        self._clocks[tenant] += num_tokens / self.weight_of(tenant)

    def turn_of(self, tenant: str) -> tuple[float, int]:
        """By which tenants that are here are put in order: the least served first, and of equals
        whoever came first."""
        return self._clocks[tenant], self._places[tenant]

    def stays_behind(self, tenant: str, num_tokens: int, others: Iterable[str]) -> bool:
        """With so many tokens more a tenant has still been served less than each of the others."""
        clock = self._clocks[tenant] + num_tokens / self.weight_of(tenant)
        return all(clock < self._clocks[other] for other in others)

    def weight_of(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    def share_of(self, tenant: str, total: int) -> float:
        """The part of `total` that is due to a tenant beside all others that are here."""
        return total * self.weight_of(tenant) / self._total_weight

    @property
    def num_tenants(self) -> int:
        """Those that are here."""
        return len(self._clocks)
