"""bitsandbytes: nf4 and fp4 with a scale for each block of numbers, and int8 with one for each row.

    4 bits   weight: the upper half of a byte first, of any dtype; weight.absmax, of float32 or,
             quantised again, of bytes, with weight.nested_absmax and weight.nested_quant_map;
             weight.quant_map and weight.quant_state.bitsandbytes__nf4, which is JSON
    8 bits   weight [out, in] of int8, SCB [out]

A number is table[code] · absmax, or int8 · SCB / 127. Blocks run through the matrix without regard
to its rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from pagoda.kernels.block_types import CODES
from pagoda.models.config import ModelConfig
from pagoda.models.json_file import JSONLimits, parse_json
from pagoda.models.schemes.coding import Coding
from pagoda.models.schemes.packed import swapped_halves
from pagoda.models.schemes.quantised_matrix import GroupedRows, QuantisedMatrix, Values
from pagoda.models.schemes.scheme import names, require_one_of
from pagoda.models.schemes.stored_module import Array, StoredModule

_STATES = {code: f"weight.quant_state.bitsandbytes__{code}" for code in ("nf4", "fp4")}
_BLOCK = 64
"""Numbers that share a scale where nothing else is said."""
_LIMITS = JSONLimits(most_bytes=2**12, most_values=2**8)


@dataclass(frozen=True, slots=True)
class BitsAndBytes:
    """See `Scheme`. Each layer tells its own form."""

    is_eight_bits: bool
    code: str
    """Of 4 bits."""
    ignored: tuple[str, ...]
    title: ClassVar[str] = "bitsandbytes"
    separator: ClassVar[str] = "."
    weight: ClassVar[str] = ".weight"
    kinds: ClassVar[tuple[str, ...]] = (
        "weight", "weight.absmax", "weight.quant_map", "weight.nested_absmax",
        "weight.nested_quant_map", *_STATES.values(), "SCB", "weight_format",
    )  # fmt: skip
    left_aside: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def read(cls, section: ModelConfig) -> BitsAndBytes:
        """From `quantization_config`."""
        ways = ("load_in_4bit", "load_in_8bit")
        if not any(section.boolean(way, default=False) for way in ways):
            raise section.error(ways[0], section.values.get(ways[0]), f"must be true, or {ways[1]}")
        code = section.string("bnb_4bit_quant_type", default="fp4")
        require_one_of(section, "bnb_4bit_quant_type", code, tuple(_STATES))
        is_eight_bits = section.boolean("load_in_8bit", default=False)
        return cls(is_eight_bits, code, names(section, "llm_int8_skip_modules"))

    def presumed(self, columns: int, dtype: str) -> Coding:
        """See `Scheme`."""
        if self.is_eight_bits:
            return Coding("int8", "f32", columns)
        return Coding(self.code, "f32", math.gcd(_BLOCK, columns))

    def matrix(self, module: StoredModule) -> QuantisedMatrix:
        """See `Scheme`."""
        code = next((code for code, kind in _STATES.items() if kind in module), None)
        if code is not None:
            if code != self.code:
                raise module.error(_STATES[code], code, f"the config says {self.code}")
            return _four_bits(module, code)
        if "SCB" in module or "weight.absmax" not in module:
            return _eight_bits(module)
        raise module.error(_STATES["nf4"], None, "the files lack this tensor")


def _four_bits(module: StoredModule, code: str) -> QuantisedMatrix:
    state = _state(module, _STATES[code])
    said = state.string("quant_type", default=code)
    if said != code:
        raise state.error("quant_type", said, f"the config says {code}")
    shape = state.pair("shape")
    if shape is None or shape[1] % 2:
        raise state.error("shape", shape, "must be rows and numbers in pairs")
    rows, width = shape
    packed = module.raw("weight")
    if 2 * packed.size != rows * width:
        raise module.error("weight", module.tensors["weight"].shape, f"must hold {shape} of 4 bits")
    packed = packed.reshape(rows, width // 2)
    block = state.integer("blocksize")
    absmax = _Absmax.of(module, state, -(-rows * width // block))
    table = module.array("weight.quant_map", "F32", shape=(16,))
    if not np.array_equal(table, np.array(CODES[code].table, np.float32)):
        raise module.error("weight.quant_map", code, f"must be the table of {code}")
    group = math.gcd(block, width)
    return QuantisedMatrix(
        name=f"{module.name}.weight",
        shape=(rows, width),
        coding=Coding(code, "f32", group),
        tensors=tuple(module.tensors.values()),
        scales=module.tensor(absmax.kind),
        rows=partial(_four_bit_rows, packed, absmax, block, group),
    )


def _state(module: StoredModule, kind: str) -> ModelConfig:
    """What a layer says of itself."""
    text = module.array(kind, "U8", dims=1).tobytes()
    field = f"{module.name}.{kind}"
    return ModelConfig(parse_json(text, field, f"{len(text)} bytes", _LIMITS), f"{field}.")


@dataclass(frozen=True, slots=True)
class _Absmax:
    """The scales of all blocks of a matrix, one after the other."""

    kind: str
    """Of the tensor that says how large they are."""
    stored: Array
    nested: _Nested | None

    @classmethod
    def of(cls, module: StoredModule, state: ModelConfig, count: int) -> _Absmax:
        once, twice = "weight.absmax", "weight.nested_absmax"
        if twice not in module:
            return cls(once, module.array(once, "F32", shape=(count,)), None)
        stored = module.array(once, "U8", shape=(count,))
        size = state.integer("nested_blocksize")
        scales = module.array(twice, "F32", shape=(-(-count // size),))
        table = module.array("weight.nested_quant_map", "F32", shape=(256,))
        offset = np.float32(state.number("nested_offset", minimum=-math.inf))
        return cls(twice, stored, _Nested(table, scales, size, offset))

    def at(self, places: Array) -> Values:
        """Those of some blocks."""
        found: Values = self.stored[places]
        if self.nested is None:
            return found
        scales = self.nested.scales[places // self.nested.size]
        return self.nested.table[found] * scales + self.nested.offset


class _Nested(NamedTuple):
    """How scales are stored that are quantised again: table[byte] · scale + offset."""

    table: Array
    scales: Array
    size: int
    """Bytes that share a scale."""
    offset: np.float32


def _four_bit_rows(
    packed: Array, absmax: _Absmax, block: int, group: int, first: int, count: int
) -> GroupedRows:
    num_groups = 2 * packed.shape[1] // group
    numbers = group * np.arange(first * num_groups, (first + count) * num_groups)
    scales = absmax.at(numbers // block).reshape(count, num_groups)
    return GroupedRows(swapped_halves(packed[first : first + count]), scales)


def _eight_bits(module: StoredModule) -> QuantisedMatrix:
    weight = module.array("weight", "I8", dims=2)
    rows, width = weight.shape
    largest = module.array("SCB", "F32", shape=(rows,))
    if "weight_format" in module and module.array("weight_format", "U8").any():
        found = int(module.array("weight_format", "U8").max())
        raise module.error("weight_format", found, "must be 0, row after row")
    scales = (largest * np.float32(1 / 127)).reshape(rows, 1)
    return QuantisedMatrix(
        name=f"{module.name}.weight",
        shape=(rows, width),
        coding=Coding("int8", "f32", width),
        tensors=tuple(module.tensors.values()),
        scales=module.tensor("SCB"),
        rows=partial(_eight_bit_rows, weight, scales),
    )


def _eight_bit_rows(weight: Array, scales: Values, first: int, count: int) -> GroupedRows:
    chosen = slice(first, first + count)
    return GroupedRows(weight[chosen].view(np.uint8), scales[chosen])
