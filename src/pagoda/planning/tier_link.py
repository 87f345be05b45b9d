"""What is between a device and a tier: bytes a second and a round trip, said or typical.

    nvme                                                      a row of the table
    disk:/kv,size=20GiB    redis://host:6379/0    host:       as `--kv-tier` says it, or less:
                                                              what is typical of its kind

and behind any of them `link=sata`, another row, or `bandwidth=3GB/s`, `latency=0.1ms`,
`requests=64`, which take the place of a row's figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagoda.byte_size import parse_byte_size
from pagoda.errors import InvalidOptionError
from pagoda.planning.tables import tier_rows
from pagoda.tiers.credentials import without_credentials
from pagoda.tiers.duration import parse_duration
from pagoda.tiers.kinds import KINDS
from pagoda.tiers.tier_option import TierText, read_options, read_tier_text

FIELD = "tier"
HOST = "host"
_LINK = "link"
_TYPICAL = {"host": "host-pcie5", "disk": "nvme", "redis": "redis-10gbe", "s3": "s3"}
"""Of each kind, the row whose figures are taken where none are said."""
_A_SECOND = "/s"
_MOST_REQUESTS = 4096


@dataclass(frozen=True, slots=True)
class TierLink:
    """One tier as a planner knows it."""

    name: str
    kind: str
    """As `--kv-tier` and metrics call it."""
    bandwidth: float
    """Bytes a second."""
    latency_s: float
    """Until the first byte of an answer is there."""
    requests_at_once: int | None
    """A frame each; None: all frames are asked for in one round trip."""
    per_device: bool
    """Each device has a link of its own; False: all share this one."""
    source: str

    def seconds(self, num_frames: float, num_bytes: float, num_devices: int = 1) -> float:
        """What loading so many frames of so many bytes in all takes.

        round trips × latency + bytes ÷ bandwidth
        """
        trips = 1.0 if self.requests_at_once is None else num_frames / self.requests_at_once
        links = num_devices if self.per_device else 1
        return max(1.0, trips) * self.latency_s + num_bytes / (self.bandwidth * links)


def parse_tier_link(text: str) -> TierLink:
    """What `--tier` says. Raises `InvalidOptionError`, without any password."""
    shown, rows = without_credentials(text), tier_rows()
    row, options = read_options(text, FIELD, shown)
    if row in rows:
        unknown = sorted(options.keys() - _FIGURES)
        if unknown:
            limit = f"{unknown[0]}: {row} takes {', '.join(sorted(_FIGURES))}"
            raise InvalidOptionError(FIELD, shown, limit)
        return replace(_link(row), **_said(options))
    told = read_tier_text(text, KINDS, FIELD, others=rows)
    own = {name: value for name, value in told.options.items() if name not in {_LINK, *_FIGURES}}
    option = replace(told, options=own).option()  # or raises
    if option.form is not None:
        raise told.refusal("form: a plan counts whole blocks, leave it out")
    return _link_of(told)


def _link_of(told: TierText) -> TierLink:
    """The row that it names or that is typical of its kind, but for what is said."""
    kind, said = told.kind.name, _said(told.options)
    row = told.options.get(_LINK, _TYPICAL[kind])
    of_kind = [name for name, each in tier_rows().items() if each["kind"] == kind]
    if row not in of_kind:
        raise InvalidOptionError(f"{FIELD} {_LINK}", row, f"of {kind} one of {', '.join(of_kind)}")
    is_own = _LINK not in told.options and {"bandwidth", "latency_s"} <= said.keys()
    name = kind if is_own or row == kind else f"{kind} as {row}"
    return replace(_link(row), name=name, **said)


def _link(name: str) -> TierLink:
    row = tier_rows()[name]
    return TierLink(
        name=name,
        kind=row["kind"],
        bandwidth=row["bandwidth_gb_s"] * 1e9,
        latency_s=row["latency_ms"] / 1e3,
        requests_at_once=row["requests_at_once"],
        per_device=row["per_device"],
        source=row["source"],
    )


def _said(options: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a `TierLink` that are said."""
    said: dict[str, Any] = {}
    for name, value in options.items():
        if name in _FIGURES:
            field, read = _FIGURES[name]
            said[field] = read(f"{FIELD} {name}", value)
    return {**said, "source": "as given"} if said else {}


def _bandwidth(name: str, text: str) -> float:
    if not text.endswith(_A_SECOND):
        raise InvalidOptionError(name, text, "a rate like 3GB/s or 400MB/s")
    return float(parse_byte_size(name, text.removesuffix(_A_SECOND)))


def _requests(name: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST_REQUESTS:
        raise InvalidOptionError(name, text, f"1 to {_MOST_REQUESTS}")
    return int(text)


_FIGURES: Mapping[str, tuple[str, Callable[[str, str], float]]] = {
    "bandwidth": ("bandwidth", _bandwidth),
    "latency": ("latency_s", parse_duration),
    "requests": ("requests_at_once", _requests),
}
"""Of each option the field of a `TierLink`, and what reads it."""
