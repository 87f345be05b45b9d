"""The request in hand, so that what breaks off is laid to the one that it was done for."""

from __future__ import annotations


class InHand:
    """Whom something is just being done for. Scheduler and engine share one.

    Each writes a request's id here before it turns to it, and None once it is done with it. Whoever
    finds that something broke off reads who it was.
    """

    __slots__ = ("request_id",)

    def __init__(self) -> None:
        self.request_id: str | None = None
        """None while nothing is done for one request alone."""
