"""A tier: whatever keeps frames by their names, and can only help.

A frame is what a tier keeps of one block of one group. To a tier it is bytes under a name that are
never changed: what they hold, and whether it is right, is for `pagoda.tiers.frame` to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from pagoda.errors import PagodaError

FrameBytes = bytes | bytearray | memoryview
"""Of memory: read, and never written, by whoever is given one."""


class TierFault(StrEnum):
    """Why a tier could not do what it was asked, as metrics call it."""

    TIMEOUT = "timeout"
    """It did not answer in time."""
    UNREACHABLE = "unreachable"
    """Nobody answers there, nothing is there, or the connection broke."""
    DENIED = "denied"
    """Wrong credentials, no permission, read-only."""
    FULL = "full"
    """There is no room, and none could be made."""
    IN_USE = "in_use"
    """Another process writes there."""
    FOREIGN = "foreign"
    """What is there is another program's."""
    ERROR = "error"
    """It said that something else went wrong."""


class TierError(PagodaError):
    """A tier could not do what it was asked. Nothing is lost but what it might have helped."""

    def __init__(self, reason: TierFault, detail: str) -> None:
        """`detail`: a few words for people, without secrets."""
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class TierUsage:
    """What a tier holds."""

    num_frames: int
    num_bytes: int
    capacity_bytes: int | None
    """The most it will hold; None where the store itself is the judge of that."""


@dataclass(frozen=True, slots=True)
class TierEntry:
    """One frame as a tier lists it."""

    name: str
    num_bytes: int
    used_at: float | None
    """Seconds since the epoch of its last use, or of its making where the tier keeps no more than
    that; None where it keeps neither."""


@runtime_checkable
class Tier(Protocol):
    """Blocking calls; any thread may make them, several at once.

    Names come in the order of their blocks in a sequence: a block is worth nothing without those
    before it, so of the names of one call the first counts as the one that was used last.

    Whatever goes wrong is a `TierError`, and no call takes longer than its `timeout_s`. A tier is
    made without touching what it stands for: the first call finds out, and each call after one that
    failed tries anew, so that a store may be down at first and well later. Names are those of
    `pagoda.tiers.names`; whatever else lies in the same place is neither listed nor touched.
    """

    @property
    def kind(self) -> str:
        """As metrics and answers call it: "disk"."""
        ...

    @property
    def is_shared(self) -> bool:
        """Others may read and write it, so frames are sealed with their tenant's key."""
        ...

    def holds(self, names: Sequence[str], timeout_s: float) -> list[bool]:
        """Of each name whether a frame lies under it. It may be gone when it is loaded."""
        ...

    def load(self, names: Sequence[str], timeout_s: float) -> Iterator[FrameBytes | None]:
        """Frames in the order of their names, each as soon as it is there; None: not there.

        The time counts from the first one that is asked for. Of what is longer than a frame can be,
        as the tier was told when it was made, only the beginning is read, one byte more than that:
        no reader accepts it. A caller that stops early closes the iterator.
        """
        ...

    def store(self, frames: Sequence[tuple[str, FrameBytes]], timeout_s: float) -> None:
        """Keep frames under their names, in order. What lies under a name already stays as it is.

        A tier of bounded bytes makes room before it writes, of what was used least recently. Of a
        call that raises, leading frames may have been kept, and no frame in part.
        """
        ...

    def remove(self, names: Sequence[str], timeout_s: float) -> None:
        """Forget frames. Names under which nothing lies have no effect."""
        ...

    def quarantine(self, names: Sequence[str], timeout_s: float) -> None:
        """Set bad frames apart, so that nobody finds them again; here: forget them."""
        self.remove(names, timeout_s)

    def entries(self, timeout_s: float) -> Iterator[TierEntry]:
        """All frames, in any order, for audit and prune; each one takes at most `timeout_s`.

        Frames that come or go meanwhile may be told or not.
        """
        ...

    def usage(self) -> TierUsage:
        """What is known of it without asking anybody for long. Raises `TierError`."""
        ...

    def close(self) -> None:
        """Give up connections, locks and memory; no effect when closed already."""
        ...
