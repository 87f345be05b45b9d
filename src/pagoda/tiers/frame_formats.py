"""What a tier's frames look like, tenant by tenant."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from pagoda.tiers.frame import FrameFormat

_KEPT = 1024
"""Tenants whose keys are remembered: deriving them takes longer than sealing a small frame."""


class FrameFormats:
    """Makes the format of each tenant once. Any thread may ask."""

    def __init__(self, make: Callable[[str], FrameFormat]) -> None:
        """`make`: the format of a tenant."""
        self._make = make
        self._made: OrderedDict[str, FrameFormat] = OrderedDict()

    def of(self, tenant: str) -> FrameFormat:
        """The format of a tenant's frames."""
        frame_format = self._made.get(tenant)
        if frame_format is None:
            frame_format = self._made[tenant] = self._make(tenant)
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
        return frame_format
