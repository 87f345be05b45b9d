"""All that the lab says of a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pagoda.lab.method import Method
from pagoda.lab.passkey import PasskeyScore, found_share
from pagoda.lab.quality import Quality
from pagoda.lab.speed import Speed

_NO_QUALITY = dict.fromkeys(
    (
        *("perplexity", "perplexity_change", "perplexity_change_low", "perplexity_change_high"),
        *("kl_mean", "kl_p99", "top1", "tokens", "windows", "first_1k", "last_half"),
    ),
    None,
)
"""Of a run that was broken off early."""
_NO_SPEED = dict.fromkeys(("prefill_tokens_per_second", "decode_tokens_per_second"), None)
"""Likewise, and of blocks on a tier."""


@dataclass(frozen=True, slots=True)
class MethodReport:
    """One method: what it takes and what it costs. What was not measured is None, or empty."""

    method: Method
    bytes_per_token: float
    """Of the pool, as it was allocated: scales, norms and layers that keep the dtype included; of
    frames where blocks lie on a tier."""
    bits_per_number: float
    """The same by the numbers of K and V."""
    quality: Quality | None = None
    passkey: tuple[PasskeyScore, ...] = ()
    """At lengths where the full cache finds nine keys of ten."""
    speed: Speed | None = None

    @property
    def passkey_share(self) -> float | None:
        """The share of passkeys that were found; None where none were asked for."""
        return found_share(self.passkey) if self.passkey else None

    def as_json(self) -> dict[str, Any]:
        """One flat object, but for positions apart and passkeys."""
        return {
            "kv_cache_dtype": self.method.kv_cache_dtype,
            "retention": self.method.retention,
            "tier_form": self.method.tier_form,
            "bytes_per_token": self.bytes_per_token,
            "bits_per_number": self.bits_per_number,
            **(self.quality.as_json() if self.quality else _NO_QUALITY),
            "passkey": [score.as_json() for score in self.passkey],
            **(self.speed.as_json() if self.speed else _NO_SPEED),
        }


@dataclass(frozen=True, slots=True)
class LabReport:
    """One run of the lab."""

    model: str
    dtype: str
    """Of weights, activations and the full cache."""
    text: str
    window: int
    """Tokens."""
    methods: tuple[MethodReport, ...]
    """The full cache first."""
    noise_chunk: int
    noise: Quality | None
    """The full cache read in chunks of `noise_chunk` tokens in place of the usual ones: what is not
    the method's doing."""
    notes: tuple[str, ...] = ()
    """What else is to be known, a sentence each."""

    @property
    def full(self) -> MethodReport:
        """What all others are compared with."""
        return self.methods[0]

    def lines(self) -> list[dict[str, Any]]:
        """An object for each method; that of the full cache has the noise floor. What is not known
        is None, and never left out."""
        run = {"model": self.model, "dtype": self.dtype, "text": self.text, "window": self.window}
        lines = [report.as_json() | run for report in self.methods]
        noise = None if self.noise is None else self.noise.as_json()
        lines[0]["noise_floor"] = None if noise is None else {"chunk": self.noise_chunk, **noise}
        return lines
