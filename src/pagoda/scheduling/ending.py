"""Why a sequence ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sequence has no more tokens."""

    reason: FinishReason
    stop_reason: int | str | None = None
    """The stop token or the stop string; None for an end-of-sequence token, as with vLLM."""


LENGTH = Ending("length")
ABORT = Ending("abort")
END_OF_SEQUENCE = Ending("stop")
