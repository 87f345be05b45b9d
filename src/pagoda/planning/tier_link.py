"""What is between a device and a tier: bytes a second and a round trip, said or typical.

nvme                                         a row of the table
disk:bandwidth=3GB/s,latency=0.1ms           one of one's own: host, disk, redis or s3
s3:requests=64                               a row, but for what is said
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pagoda.byte_size import parse_byte_size
from pagoda.errors import InvalidOptionError
from pagoda.planning.tables import tier_rows
from pagoda.tiers.duration import parse_duration

FIELD = "tier"
KINDS = ("host", "disk", "redis", "s3")
HOST = "host"
_A_SECOND = "/s"
_MOST_REQUESTS = 4096


@dataclass(frozen=True, slots=True)
class TierLink:
    """One tier as a planner knows it."""

    name: str
    kind: str
    """One of `KINDS`."""
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
    """What `--tier` says. Raises `InvalidOptionError`."""
    name, _, options = text.partition(":")
    said = _options(text, options)
    rows = tier_rows()
    if name in rows:
        return replace(_link(name, rows[name]), **said)
    if name not in KINDS:
        limit = f"one of {', '.join(rows)}, or {', '.join(KINDS)} with its figures"
        raise InvalidOptionError(FIELD, text, limit)
    if not {"bandwidth", "latency_s"} <= said.keys():
        limit = f"needs its figures: {name}:bandwidth=3GB/s,latency=0.1ms"
        raise InvalidOptionError(FIELD, text, limit)
    return TierLink(
        name=name,
        kind=name,
        bandwidth=said["bandwidth"],
        latency_s=said["latency_s"],
        requests_at_once=said.get("requests_at_once"),
        per_device=name == HOST,
        source="as given",
    )


def _link(name: str, row: Mapping[str, Any]) -> TierLink:
    return TierLink(
        name=name,
        kind=row["kind"],
        bandwidth=row["bandwidth_gb_s"] * 1e9,
        latency_s=row["latency_ms"] / 1e3,
        requests_at_once=row["requests_at_once"],
        per_device=row["per_device"],
        source=row["source"],
    )


def _options(text: str, options: str) -> dict[str, Any]:
    """The fields of a `TierLink` that are said."""
    said: dict[str, Any] = {}
    for option in filter(None, options.split(",")):
        key, _, value = option.partition("=")
        match key:
            case "bandwidth":
                name, figure = "bandwidth", _bandwidth(value)
            case "latency":
                name, figure = "latency_s", parse_duration(f"{FIELD} latency", value)
            case "requests":
                name, figure = "requests_at_once", _requests(value)
            case _:
                raise InvalidOptionError(FIELD, text, f"{key}: bandwidth, latency or requests")
        if name in said:
            raise InvalidOptionError(FIELD, text, f"{key} is said twice")
        said[name] = figure
    return {**said, "source": "as given"} if said else {}


def _bandwidth(text: str) -> float:
    if not text.endswith(_A_SECOND):
        raise InvalidOptionError(f"{FIELD} bandwidth", text, "a rate like 3GB/s or 400MB/s")
    return float(parse_byte_size(f"{FIELD} bandwidth", text.removesuffix(_A_SECOND)))


def _requests(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST_REQUESTS:
        raise InvalidOptionError(f"{FIELD} requests", text, f"1 to {_MOST_REQUESTS}")
    return int(text)
