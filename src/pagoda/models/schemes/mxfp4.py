"""MXFP4: four-bit floats with a power of two for each 32 of them (OCP Microscaling Formats 1.0).

NAME_blocks [experts, out, in / 32, 16] uint8, NAME_scales [experts, out, in / 32] uint8

A byte of blocks has two numbers, the first in its lower half; a byte e of scales means 2^(e - 127).
gpt-oss stores its experts so, all of a layer in one tensor, while plain ones would lie [experts,
in, out].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from pagoda.models.config import ModelConfig
from pagoda.models.schemes.coding import Coding
from pagoda.models.schemes.quantised_matrix import GroupedRows, QuantisedMatrix
from pagoda.models.schemes.scheme import names
from pagoda.models.schemes.stored_module import Array, StoredModule

GROUP = 32
CODING = Coding("e2m1", "bf16", GROUP)
_NOTHING = 27
"""Scales up to this are taken for 0: they are 2^-100 and less."""


@dataclass(frozen=True, slots=True)
class MXFP4:
    """See `Scheme`."""

    ignored: tuple[str, ...] = ()
    title: ClassVar[str] = "MXFP4"
    kinds: ClassVar[tuple[str, ...]] = ("blocks", "scales")
    separator: ClassVar[str] = "_"
    weight: ClassVar[str] = ""
    left_aside: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def read(cls, section: ModelConfig) -> MXFP4:
        """From `quantization_config`; a name with a star is known by what follows the star."""
        plain = names(section, "modules_to_not_convert")
        return cls(tuple(name.rsplit("*", 1)[-1] for name in plain))

    def presumed(self, columns: int, dtype: str) -> Coding:
        """See `Scheme`."""
        return CODING

    def matrix(self, module: StoredModule) -> QuantisedMatrix:
        """See `Scheme`."""
        blocks = module.array("blocks", "U8", dims=4)
        experts, rows, groups, size = blocks.shape
        if size != GROUP // 2:
            raise module.error("blocks", blocks.shape, "its last axis must be 16 bytes")
        scales = module.array("scales", "U8", shape=(experts, rows, groups))
        columns = groups * GROUP
        return QuantisedMatrix(
            name=module.name,
            shape=(experts * rows, columns),
            plain_shape=(experts, columns, rows),
            coding=CODING,
            tensors=tuple(module.tensors.values()),
            scales=module.tensor("scales"),
            rows=partial(
                _rows, blocks.reshape(experts * rows, -1), scales.reshape(experts * rows, groups)
            ),
        )


def _rows(blocks: Array, scales: Array, first: int, count: int) -> GroupedRows:
    last = first + count
    return GroupedRows(blocks[first:last], scale_bits(scales[first:last]))


def scale_bits(exponents: Array) -> Array:
    """What bytes of scales mean, as the bits of bfloat16: uint16 of the same shape."""
    wide = exponents.astype(np.uint16)
    return np.where(wide > _NOTHING, wide << 7, 0).astype(np.uint16)
