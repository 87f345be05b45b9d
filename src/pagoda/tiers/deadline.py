"""A moment by which a call of a tier has ended, whatever it does until then."""

from __future__ import annotations

import time

from pagoda.tiers.tier import TierError, TierFault


class Deadline:
    """Counts from when it is made."""

    def __init__(self, timeout_s: float, of: str) -> None:
        """`of`: what the tier is called in an error."""
        self._ends_at = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._of = of

    def left_s(self) -> float:
        """Seconds that are left, more than none. Raises TierError where there are none."""
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise self.error()
        return left

    def error(self) -> TierError:
        """It is over."""
        return TierError(
            TierFault.TIMEOUT, f"{self._of} did not answer within {self._timeout_s:g} s"
        )
