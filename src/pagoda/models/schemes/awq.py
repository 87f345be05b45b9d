"""AWQ: codes of 4 bits, eight in a word of 32 along `out`, in an order of their own.

    qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out]

A number is (code − zero point) · scale. Source: the checkpoints' writer, AutoAWQ, version gemm.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from pagoda.models.config import ModelConfig
from pagoda.models.schemes.coding import Coding
from pagoda.models.schemes.packed import nibbles, turned
from pagoda.models.schemes.quantised_matrix import Bytes, GroupedRows, QuantisedMatrix
from pagoda.models.schemes.scheme import group_size, names, require_one_of
from pagoda.models.schemes.stored_module import SCALES, Array, StoredModule

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which four bits of a word, from the lowest on, each of eight neighbours has."""


@dataclass(frozen=True, slots=True)
class AWQ:
    """See `Scheme`."""

    group: int | None
    """None: the whole row."""
    ignored: tuple[str, ...]
    title: ClassVar[str] = "AWQ"
    separator: ClassVar[str] = "."
    weight: ClassVar[str] = ".weight"
    kinds: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales")
    left_aside: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def read(cls, section: ModelConfig) -> AWQ:
        """From `quantization_config`."""
        require_one_of(section, "bits", section.integer("bits"), (4,))
        version = section.string("version", default="gemm").lower()
        require_one_of(section, "version", version, ("gemm",))
        return cls(group_size(section), names(section, "modules_to_not_convert"))

    def presumed(self, columns: int, dtype: str) -> Coding:
        """See `Scheme`."""
        return Coding("uint4", "f16", self.group or columns)

    def matrix(self, module: StoredModule) -> QuantisedMatrix:
        """See `Scheme`."""
        qweight = module.array("qweight", "I32", dims=2)
        width, num_rows = qweight.shape[0], qweight.shape[1] * 8
        if width % 2:
            raise module.error("qweight", qweight.shape, "must have rows in pairs")
        group = self.group or width
        num_groups = -(-width // group)
        scales = module.array("scales", *SCALES, shape=(num_groups, num_rows))
        zeros = module.array("qzeros", "I32", shape=(num_groups, qweight.shape[1]))
        return QuantisedMatrix(
            name=f"{module.name}.weight",
            shape=(num_rows, width),
            coding=Coding("uint4", module.scale("scales"), group),
            tensors=tuple(module.tensors.values()),
            scales=module.tensor("scales"),
            rows=partial(_rows, qweight, scales, zeros),
        )


def _rows(qweight: Array, scales: Array, qzeros: Array, first: int, count: int) -> GroupedRows:
    words = slice(first // 8, -(-(first + count) // 8))
    codes = _in_order(_pairs(_bytes(qweight[:, words])))
    zeros = _in_order(nibbles(_bytes(qzeros[:, words])))
    return GroupedRows(codes[:count], turned(scales[:, first : first + count]), zeros[:count])


def _bytes(words: Array) -> Bytes:
    """[…, words] → […, words, 4]."""
    return np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)


def _pairs(stored: Bytes) -> Bytes:
    """Codes of two numbers of a row in one byte: [in, words, 4] → [in / 2, words, 8]."""
    even, odd = stored[::2], stored[1::2]
    both = [even & 15 | odd << 4, even >> 4 | odd & 0xF0]
    return np.stack(both, axis=-1).reshape(*even.shape[:-1], 8)


def _in_order(found: Bytes) -> Bytes:
    """[n, words, 8] → [8 · words, n]."""
    rows = turned(found.reshape(len(found), -1)).reshape(-1, 8, len(found))
    return rows[:, _PLACES].reshape(-1, len(found))
