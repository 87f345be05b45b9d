"""What an S3 store's refusal, or the lack of an answer, means for a tier.

The library tells its errors in words, with the status of the answer and the store's own code in
them. Of these words none are passed on: they may hold addresses and what was sent.
"""

from __future__ import annotations

import re
from concurrent.futures import CancelledError

from pagoda.tiers.tier import TierError, TierFault

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_DENIED = {"PermissionDeniedError", "UnauthenticatedError"}
_FULL = re.compile(
    r"InsufficientStorage|InsufficientCapacity|StorageFull|QuotaExceeded|EntityTooLarge|OutOfSpace"
)
_NO_SPACE = "No space left on device"
_BROKEN = "HTTP error"
"""No answer, or not the whole of one."""


def tier_error(error: Exception, told: str) -> TierError:
    """The same as a fault of a tier that errors call `told`."""
    text = str(error)
    status, code = _found(_STATUS, text), _found(_CODE, text)
    shown = " ".join(filter(None, (status, code)))
    kind = type(error).__name__
    if isinstance(error, CancelledError):
        return TierError(TierFault.ERROR, f"{told} was closed")
    if kind in _DENIED or status in {"401", "403"}:
        return TierError(TierFault.DENIED, f"{told} does not let us do that ({shown or 'denied'})")
    if status == "507" or _FULL.search(code or "") or _NO_SPACE in text:
        return TierError(TierFault.FULL, f"{told} is full ({shown or 'no space'})")
    if isinstance(error, FileNotFoundError) or status == "404":
        return TierError(TierFault.UNREACHABLE, f"{told} is not there ({shown or 'not found'})")
    if status:
        return TierError(TierFault.ERROR, f"{told} refused a request ({shown})")
    if isinstance(error, TimeoutError) or "timed out" in text:
        return TierError(TierFault.TIMEOUT, f"{told} did not answer in time")
    if _BROKEN in text:
        return TierError(TierFault.UNREACHABLE, f"{told} cannot be reached")
    return TierError(TierFault.ERROR, f"{told} failed ({kind})")


def is_broken_off(error: Exception) -> bool:
    """There was no answer, or not the whole of one."""
    text = str(error)
    return _BROKEN in text and _found(_STATUS, text) is None and "timed out" not in text


def is_unsupported(error: Exception) -> bool:
    """The store knows no such request: a PUT on the condition that nothing is there."""
    return type(error).__name__ == "NotSupportedError" or _found(_STATUS, str(error)) == "501"


def _found(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None
