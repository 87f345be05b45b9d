"""A format that says by its name how K and V are stored, and so needs no row in any table.

    KEYS/VALUES      levels5-float16-norm-hadamard/levels4-float16-offset

    a side           what a code stands for, then what it has of the rest
    a code           levels1 … levels6: one of so many bits; int8, e4m3, e5m2: a number of eight
    scale            float32, or of levels float16, one for each token and head
    offset           levels are even steps from the smallest number to the largest
    fit              least, norm, unbiased: what the scale of other levels makes right
    basis            hadamard, signs: vectors are rotated first

`pagoda.codecs` makes the codec of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from pagoda.errors import InvalidOptionError

_BETWEEN = "/"
_FLOAT8 = ("e4m3", "e5m2")
_SCALES = {"float32": 32, "float16": 16}
_FITS = ("least", "norm", "unbiased")
_BASES = ("hadamard", "signs")
_LEVELS = "levels"
_MOST_LEVEL_BITS = 6
_LEVEL_CODES = tuple(f"{_LEVELS}{bits}" for bits in range(1, _MOST_LEVEL_BITS + 1))
_PATTERN = (
    "is no codec: KEYS/VALUES, each levels1 to levels6, int8, e4m3 or e5m2, and behind hyphens "
    "float32 or float16, offset, one of least, norm and unbiased, one of hadamard and signs"
)


@dataclass(frozen=True, slots=True)
class SideFormat:
    """How keys, or values, are stored; the fields are those of `pagoda.codecs.VectorCodec`."""

    numbers: Literal["levels", "int8", "e4m3", "e5m2"]
    bits: int
    scale: str | None = None
    has_offset: bool = False
    fit: Literal["", "least", "norm", "unbiased"] = ""
    turns: Literal["", "hadamard", "signs"] = ""

    def __str__(self) -> str:
        """From which `of_text` makes it again."""
        code = f"{_LEVELS}{self.bits}" if self.numbers == _LEVELS else self.numbers
        parts = (code, self.scale, "offset" if self.has_offset else "", self.fit, self.turns)
        return "-".join(part for part in parts if part)

    @property
    def extra_bits(self) -> int:
        """Of scale and offset."""
        return (1 + self.has_offset) * _SCALES[self.scale] if self.scale else 0

    @property
    def problem(self) -> str | None:
        """Why there is no such format."""
        is_levels = self.numbers == _LEVELS
        if is_levels and not 1 <= self.bits <= _MOST_LEVEL_BITS:
            return f"levels have 1 to {_MOST_LEVEL_BITS} bits"
        if not is_levels and self.bits != 8:
            return f"{self.numbers} has 8 bits"
        if self.scale is None and self.numbers not in _FLOAT8:
            return "levels and int8 need a scale"
        if self.scale == "float16" and not is_levels:
            return f"the scale of {self.numbers} is float32"
        if is_levels and self.has_offset == bool(self.fit):
            return "levels need an offset or a fit, and not both"
        if not is_levels and (self.has_offset or self.fit):
            return f"{self.numbers} has neither offset nor fit"
        return None


def is_own(name: str) -> bool:
    """Whether a name says itself how K and V are stored."""
    return _BETWEEN in name


def own_name(key: SideFormat, value: SideFormat) -> str:
    """The name that says so. Raises `InvalidOptionError` for a side that cannot be."""
    name = f"{key}{_BETWEEN}{value}"
    _require(name, key, value)
    return name


def own_sides(name: str) -> tuple[SideFormat, SideFormat]:
    """Keys and values by a name for which `is_own`. Raises `InvalidOptionError`."""
    sides = name.split(_BETWEEN)
    if len(sides) != 2:
        raise InvalidOptionError("kv_cache_dtype", name, _PATTERN)
    key, value = (_side(name, text) for text in sides)
    _require(name, key, value)
    return key, value


def _require(name: str, *sides: SideFormat) -> None:
    for side in sides:
        if side.problem is not None:
            raise InvalidOptionError("kv_cache_dtype", name, f"{side}: {side.problem}")


def _side(name: str, text: str) -> SideFormat:
    code, *rest = text.split("-")
    scale, offset, fit, basis = (
        [part for part in rest if part in known] for known in (_SCALES, ("offset",), _FITS, _BASES)
    )
    is_level = code in _LEVEL_CODES
    is_known = is_level or code in ("int8", *_FLOAT8)
    found = (scale, offset, fit, basis)
    if not is_known or any(len(each) > 1 for each in found) or sum(map(len, found)) != len(rest):
        raise InvalidOptionError("kv_cache_dtype", name, _PATTERN)
    return SideFormat(
        numbers="levels" if is_level else cast(Literal["int8", "e4m3", "e5m2"], code),
        bits=int(code[-1]) if is_level else 8,
        scale=scale[0] if scale else None,
        has_offset=bool(offset),
        fit=cast(Literal["", "least", "norm", "unbiased"], fit[0] if fit else ""),
        turns=cast(Literal["", "hadamard", "signs"], basis[0] if basis else ""),
    )
