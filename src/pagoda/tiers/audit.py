"""Every frame of a tier, checked; bad ones are set apart.

Without a tenant's key all can be checked that anybody can check: the header, the lengths, the
checksum, and that the name is the frame's own. With it, frames that are sealed with the key are
opened; all other sealed ones are somebody else's or forged, which nobody can tell apart without
their key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from pagoda.tiers.frame import FrameError, Rejection, check_body, inspect
from pagoda.tiers.namespace import is_label, read_label
from pagoda.tiers.seal import Checksum, Seal
from pagoda.tiers.tier import FrameBytes, Tier

_AT_ONCE = 16


@dataclass
class Audit:
    """What has been found so far; it grows while the walk goes on. Labels are counted where they
    are bad alone."""

    num_frames: int = 0
    """All that were read."""
    num_bytes: int = 0
    num_unopened: int = 0
    """Of the good ones, those that are sealed with no key that was given."""
    bad: Counter[Rejection] = field(default_factory=Counter)
    num_quarantined: int = 0

    @property
    def num_bad(self) -> int:
        return self.bad.total()

    def as_dict(self) -> dict[str, object]:
        """For programs."""
        return {
            "frames": self.num_frames,
            "bytes": self.num_bytes,
            "good": self.num_frames - self.num_bad,
            "unopened": self.num_unopened,
            "bad": {str(reason): count for reason, count in sorted(self.bad.items())},
            "quarantined": self.num_quarantined,
        }


@dataclass(frozen=True)
class Auditor:
    """How to audit."""

    seals: Sequence[Seal]
    """Those whose frames are opened, beside plain ones."""
    max_payload_bytes: int
    """A frame that says it had more is bad."""
    timeout_s: float
    """Of each call of the tier."""
    quarantines: bool = True
    """Bad frames are set apart as they are found."""

    def run(self, tier: Tier, on_frame: Callable[[], None] = lambda: None) -> Audit:
        """Walk over all frames; `on_frame` is called after each. Raises `TierError`."""
        audit = Audit()
        entries = tier.entries(self.timeout_s)
        while names := [entry.name for entry in islice(entries, _AT_ONCE)]:
            bad = []
            for name, frame in zip(names, tier.load(names, self.timeout_s), strict=True):
                on_frame()
                # a frame may be gone since it was listed
                if frame is not None and not self._is_good(tier, name, frame, audit):
                    bad.append(name)
            if bad and self.quarantines:
                tier.quarantine(bad, self.timeout_s)
                audit.num_quarantined += len(bad)
        return audit

    def _is_good(self, tier: Tier, name: str, frame: FrameBytes, audit: Audit) -> bool:
        """Adds what it finds to `audit`."""
        try:
            is_opened = self._opens(name, frame, is_shared=tier.is_shared)
        except FrameError as error:
            audit.bad[error.reason] += 1
            is_good = False
        else:
            if is_label(name):
                return True
            audit.num_unopened += not is_opened
            is_good = True
        audit.num_frames += 1
        audit.num_bytes += len(frame)
        return is_good

    def _opens(self, name: str, frame: FrameBytes, *, is_shared: bool) -> bool:
        """False: it is good as far as can be seen, and sealed. Raises `FrameError`."""
        if is_label(name):
            if read_label(name, bytes(frame)) is None:
                raise FrameError(Rejection.CHECKSUM)
            return True
        header = inspect(name, frame)
        is_plain = header.seal == Checksum.number
        if is_plain and is_shared:  # no server takes it from there
            raise FrameError(Rejection.TENANT)
        seals = (Checksum(),) if is_plain else self.seals
        for seal in seals:
            try:
                check_body(frame, seal, self.max_payload_bytes)
            except FrameError as error:
                if error.reason is not Rejection.TENANT:
                    raise
            else:
                return True
        return False
