"""The tables of facts: well-known models, accelerators and tiers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from importlib import resources
from typing import Any

from pagoda.errors import InvalidOptionError
from pagoda.sizing.capacity import GIB

_WORD = re.compile(r"[a-z]+|[0-9]+(?:\.[0-9]+)?[bmk]?")
_LONGEST_NAME = 100
"""Characters of a name that are compared."""
_LEAST_LIKENESS = 0.5
_MOST_NEAREST = 3


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A device that a model may run on, or a CPU with its memory."""

    name: str
    vendor: str
    memory_bytes: int
    """What the driver shows to a program, not the catalogue."""
    bandwidth: float
    """Bytes a second."""
    bf16_rate: float
    """Operations a second, dense."""
    fp8_rate: float | None
    capability: tuple[int, int] | None
    """NVIDIA's compute capability: what kernels its chip can run. None: another maker's."""
    is_derived: bool
    """The memory was derived from the catalogue, not read on such a device."""
    source: str
    has_one_memory: bool = False
    """A GPU whose memory is that of its CPU."""

    @property
    def is_cpu(self) -> bool:
        return self.vendor in ("cpu", "apple")

    @property
    def shares_memory(self) -> bool:
        """There is no other memory beside its own: a copy there is one in the same place."""
        return self.has_one_memory or self.is_cpu


@lru_cache(maxsize=3)
def _table(name: str) -> Mapping[str, Any]:
    text = resources.files("pagoda.planning").joinpath("tables", f"{name}.json").read_text("utf-8")
    table: Mapping[str, Any] = json.loads(text)
    return table


def model_rows() -> Mapping[str, Any]:
    """The built-in models by hub id, as they stand in the table."""
    return _table("models")


def tier_rows() -> Mapping[str, Any]:
    """Typical figures of tiers by name, as they stand in the table."""
    return _table("tiers")


def find_model(name: str) -> tuple[str, Mapping[str, Any]] | None:
    """The row of a hub id, of an alias, or of a name without its owner; None where there is none.

    Case does not matter.
    """
    wanted = name.casefold()
    rows = model_rows()
    for hub_id, row in rows.items():
        names = (hub_id, *row.get("aliases", ()))
        if wanted in {text.casefold() for text in names}:
            return hub_id, row
    short = [hub_id for hub_id in rows if hub_id.partition("/")[2].casefold() == wanted]
    return (short[0], rows[short[0]]) if len(short) == 1 else None


def nearest_models(name: str) -> list[str]:
    """Names in the table that this one may stand for, the likeliest first."""
    return _nearest(name, model_rows())


def accelerators() -> list[Accelerator]:
    """The built-in accelerators."""
    return [_accelerator(name, row) for name, row in _table("accelerators").items()]


def find_accelerator(name: str, *, instead: str | None = None) -> Accelerator:
    """The accelerator of that name or alias; `InvalidOptionError` naming the nearest ones, and the
    flag that may be given in its place, if one may."""
    wanted = _plain(name)
    rows = _table("accelerators")
    for known, row in rows.items():
        if wanted in {_plain(text) for text in (known, *row.get("aliases", ()))}:
            return _accelerator(known, row)
    near = _nearest(name, rows)
    advice = f"the nearest are {', '.join(near)}" if near else f"known are {', '.join(rows)}"
    or_give = "" if instead is None else f"; or give {instead}"
    raise InvalidOptionError("gpu", name, f"is not in the table: {advice}{or_give}")


def accelerator_in(text: str) -> Accelerator | None:
    """The accelerator that a text names, as in "2x H100 (2 nodes)"; the longest name counts."""
    words = _plain(text)
    found = [
        (len(_plain(alias)), known, row)
        for known, row in _table("accelerators").items()
        for alias in (known, *row.get("aliases", ()))
        if _plain(alias) in words
    ]
    if not found:
        return None
    _, known, row = max(found, key=lambda item: item[0])
    return _accelerator(known, row)


def _accelerator(name: str, row: Mapping[str, Any]) -> Accelerator:
    fp8, capability = row.get("fp8_tflops"), row["capability"]
    return Accelerator(
        name=name,
        vendor=row["vendor"],
        memory_bytes=round(row["memory_gib"] * GIB),
        bandwidth=row["bandwidth_gb_s"] * 1e9,
        bf16_rate=row["bf16_tflops"] * 1e12,
        fp8_rate=None if fp8 is None else fp8 * 1e12,
        capability=None if capability is None else (capability[0], capability[1]),
        is_derived=row.get("memory_confidence") != "read",
        source=row["source"],
        has_one_memory=row.get("has_one_memory", False),
    )


def _nearest(name: str, rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Those with most of its words; of such that begin like it, say little else, and are new."""
    asked = _words(name)
    ranks = {
        known: (
            *max(_likeness(asked, _words(text)) for text in (known, *row.get("aliases", ()))),
            row.get("released", ""),
        )
        for known, row in rows.items()
    }
    near = [known for known, rank in ranks.items() if rank[0] >= _LEAST_LIKENESS]
    return sorted(near, key=ranks.__getitem__, reverse=True)[:_MOST_NEAREST]


def _likeness(asked: Sequence[str], words: Sequence[str]) -> tuple[float, bool, int]:
    """How much of `asked` is there, misspelled or not, from 0 to 1; whether both begin alike; fewer
    words are more."""
    found = [
        max(SequenceMatcher(None, word, each).ratio() ** 2 for each in words) for word in asked
    ]
    return sum(found) / max(1, len(found)), asked[:1] == words[:1], -len(words)


def _words(name: str) -> list[str]:
    """Of a name without its owner: qwen, 2.5, 7b."""
    return _WORD.findall(name.rpartition("/")[2].casefold()[:_LONGEST_NAME])


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
