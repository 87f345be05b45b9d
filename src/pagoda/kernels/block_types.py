"""Blocks of quantised types that CPUs compute with as they are, and the panels they lie in.

Some types are GGUF's. The others are Pagoda's own: what the schemes of safetensors checkpoints
store is put into them without losing a bit, a scale with the codes of its group. They are called
by what they consist of: `int4_f16_g128` has whole numbers of 4 bits and a float16 for each 128.

Numbers alone, neither Numba nor PyTorch, so that a planner can count them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

PANEL = 32
"""Rows of a weight that lie together, which are columns of a product."""


class BlockType(NamedTuple):
    """What a block of one type is."""

    num_values: int
    """Numbers of a row."""
    num_bytes: int


GGUF_TYPES: Mapping[str, BlockType] = MappingProxyType(
    {
        "Q4_0": BlockType(32, 18),
        "Q4_1": BlockType(32, 20),
        "Q5_0": BlockType(32, 22),
        "Q5_1": BlockType(32, 24),
        "Q8_0": BlockType(32, 34),
        "Q2_K": BlockType(256, 84),
        "Q3_K": BlockType(256, 110),
        "Q4_K": BlockType(256, 144),
        "Q5_K": BlockType(256, 176),
        "Q6_K": BlockType(256, 210),
        "IQ4_NL": BlockType(32, 18),
        "IQ4_XS": BlockType(256, 136),
    }
)
"""By their names in GGUF."""


class Code(NamedTuple):
    """How one number of a group is stored, but for the scale."""

    bits: int
    has_zero: bool = False
    """A byte of the block is taken from every code: the group's zero point."""
    table: tuple[float, ...] = ()
    """What codes name, where they are no numbers."""
    is_float: bool = False
    """They are floats themselves."""

    @property
    def is_whole(self) -> bool:
        return not (self.table or self.is_float)


_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of the normal distribution (arXiv 2305.14314, appendix E), as float32."""
_E2M1_SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FP4_SIZES = tuple(value / 12 for value in (0, 0.0625, 8, 12, 4, 6, 2, 3))

CODES: Mapping[str, Code] = MappingProxyType(
    {
        "int4": Code(4),
        "uint4": Code(4, has_zero=True),
        "int8": Code(8),
        "uint8": Code(8, has_zero=True),
        "e4m3": Code(8, is_float=True),
        "nf4": Code(4, table=_NF4),
        "fp4": Code(4, table=(*_FP4_SIZES, *(-size for size in _FP4_SIZES))),
        "e2m1": Code(4, table=(*_E2M1_SIZES, *(-size for size in _E2M1_SIZES))),
    }
)
"""int4 is stored plus 8, codes and zero points of int8 and uint8 as two's complement, those of
uint8 less 128; zero points of uint4 are 0 to 15; e4m3: float8 without infinities; e2m1: of
microscaling formats, whose scales are powers of two for 32 numbers."""
SCALE_BYTES: Mapping[str, int] = MappingProxyType({"f16": 2, "bf16": 2, "f32": 4})
"""A block's first bytes; its zero point follows, then its codes in order, from the lowest bits of
the first byte on."""
GROUPS = (128, 64, 32)
"""Numbers of a block. A group of more repeats its scale in several."""


class GroupedType(NamedTuple):
    """A type of Pagoda's own."""

    code: str
    scale: str
    group: int

    def __str__(self) -> str:
        return f"{self.code}_{self.scale}_g{self.group}"

    @property
    def block(self) -> BlockType:
        code = CODES[self.code]
        head = SCALE_BYTES[self.scale] + code.has_zero
        return BlockType(self.group, head + self.group * code.bits // 8)


GROUPED_TYPES: Mapping[str, GroupedType] = MappingProxyType(
    {
        str(each): each
        for each in (
            GroupedType(name, scale, group)
            for name, code in CODES.items()
            for scale in SCALE_BYTES
            for group in GROUPS
            if not (code.has_zero and scale == "f32")  # scale · zero point would be rounded
            and (name != "e2m1" or (scale, group) == ("bf16", 32))
        )
    }
)
"""By their names."""

BLOCK_TYPES: Mapping[str, BlockType] = MappingProxyType(
    {**GGUF_TYPES, **{name: grouped.block for name, grouped in GROUPED_TYPES.items()}}
)
"""Of GGUF and of Pagoda's own, by name."""


BYTE_TYPES = frozenset(GGUF_TYPES) | {
    name for name, grouped in GROUPED_TYPES.items() if CODES[grouped.code].is_whole
}
"""Those whose codes are bytes that rows rounded to eight bits can be multiplied with."""


def row_bytes(name: str, width: int) -> int:
    """Bytes of a row of `width` numbers, which are whole blocks."""
    block = BLOCK_TYPES[name]
    return width // block.num_values * block.num_bytes


def panel_bytes(name: str, width: int) -> int:
    """Bytes of a panel of such rows."""
    return PANEL * row_bytes(name, width)
