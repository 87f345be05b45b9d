"""What tenants have been served, by which the next turn is its who had least of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


class Service:
    """Tokens computed for each tenant, divided by its weight: a clock for each.

    A tenant that was away goes on no more than `burst` tokens behind the least clock of those that
    are here: it may begin with a prompt of that length before others go on, and saves up no more by
    staying away. After Sheng et al., Fairness in Serving Large Language Models, OSDI 2024, where
    the burst is 0.
    """

    def __init__(self, weights: Mapping[str, float] | None = None, burst: int = 0) -> None:
        """`weights` are positive; a tenant without one has 1."""
        self._weights = dict(weights or {})
        self._burst = burst
        self._clocks: dict[str, float] = {}
        """Of those that are here."""
        self._left_at: dict[str, float] = {}
        """Clocks of those that are away and would go on from there."""
        self._num_here: Counter[str] = Counter()
        """Unfinished sequences."""
        self._places: dict[str, int] = {}
        """In which order those came that are here."""
        self._num_came = 0

    def come(self, tenants: Iterable[str]) -> None:
        """Each has one more unfinished sequence; a tenant is named once for each of them."""
        for tenant in tenants:
            if tenant not in self._clocks:
                self._clocks[tenant] = max(self._left_at.pop(tenant, 0.0), self._least())
                self._places[tenant] = self._num_came
                self._num_came += 1
            self._num_here[tenant] += 1

    def go(self, tenant: str) -> None:
        """The tenant has one less."""
        self._num_here[tenant] -= 1
        if not self._num_here[tenant]:
            self._leave(tenant)

    def keep(self, tenants: Iterable[str]) -> None:
        """These are the tenants of all unfinished sequences, each as often as it has any."""
        self._num_here.clear()
        self.come(tenants)
        for tenant in [name for name in self._clocks if not self._num_here[name]]:
            self._leave(tenant)

    def _leave(self, tenant: str) -> None:
        del self._num_here[tenant]
        del self._places[tenant]
        self._left_at[tenant] = self._clocks.pop(tenant)
        least = self._least()
        self._left_at = {
            name: clock for name, clock in self._left_at.items() if self._clocks and clock > least
        }

    def _least(self) -> float:
        """Where a tenant that comes begins at least."""
        return min(self._clocks.values(), default=0.0) - self._burst

    def serve(self, tenant: str, num_tokens: int) -> None:
        """So many tokens more are computed for a tenant that is here."""
        self._clocks[tenant] += num_tokens / self.weight_of(tenant)

    def clock_of(self, tenant: str) -> float:
        """What a tenant that is here has been served, by its weight."""
        return self._clocks[tenant]

    def turn_of(self, tenant: str) -> tuple[float, int]:
        """By which tenants that are here are put in order: the least served first, and of equals
        whoever came first."""
        return self._clocks[tenant], self._places[tenant]

    def weight_of(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    def share_of(self, tenant: str, total: int) -> float:
        """The part of `total` that is due to a tenant beside all others that are here."""
        return total * self.weight_of(tenant) / sum(map(self.weight_of, self._clocks))

    @property
    def num_tenants(self) -> int:
        """Those that are here."""
        return len(self._clocks)
