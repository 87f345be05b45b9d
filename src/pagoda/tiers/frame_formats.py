"""What a tier's frames look like, tenant by tenant."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from pagoda.tiers.frame import FrameFormat

_KEPT = 1024
"""Tenants whose keys are remembered: deriving them anew takes some 50 µs."""


class FrameFormats:
    """Makes the format of each tenant once. Any thread may ask."""

    def __init__(self, block_bytes: int, make: Callable[[str], FrameFormat]) -> None:
        """`make`: the format of a tenant, for payloads of `block_bytes`."""
        self.block_bytes = block_bytes
        self._make = make
        self._made: OrderedDict[str, FrameFormat] = OrderedDict()

    @classmethod
    def same_for_all(cls, form: FrameFormat) -> FrameFormats:
        """Of a tier that is one process's own."""
        return cls(form.payload_bytes, lambda tenant: form)

    def of(self, tenant: str) -> FrameFormat:
        """The format of a tenant's frames."""
        form = self._made.get(tenant)
        if form is None:
            form = self._made[tenant] = self._make(tenant)
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
        return form
