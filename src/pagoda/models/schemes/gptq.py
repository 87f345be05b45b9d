"""GPTQ: codes of 4 or 8 bits in words of 32 along `in`, zero points along `out`.

    qweight [in / n, out], qzeros [groups, out / n], scales [groups, out], g_idx [in]

with n codes to a word. A number is (code − zero point) · scale. The first form of the format stores
zero points less one, taken from whole words, so that a 0 borrows from the next one; `gptq_v2`
stores them as they are. A symmetric layer has half the range of a code, 8 or 128, everywhere. Where
columns were quantised in the order of their activations, `g_idx` mixes the groups: such a matrix is
de-quantised. Sources: the checkpoints' writers, AutoGPTQ and GPTQModel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from pagoda.models.config import ModelConfig
from pagoda.models.schemes.coding import Coding
from pagoda.models.schemes.packed import less_half, nibbles, optional_groups, turned
from pagoda.models.schemes.quantised_matrix import Bytes, GroupedRows, QuantisedMatrix
from pagoda.models.schemes.scheme import group_size, require_one_of
from pagoda.models.schemes.stored_module import SCALES, Array, StoredModule

_ONES = {4: 0x11111111, 8: 0x01010101}
"""A word with 1 for every code, by their bits."""


@dataclass(frozen=True, slots=True)
class GPTQ:
    """See `Scheme`."""

    bits: int
    group: int | None
    """None: the whole row."""
    is_symmetric: bool
    is_first_form: bool
    """Zero points are stored less one."""
    in_order_of_activations: bool = False
    """Groups are of columns that do not lie together."""
    ignored: ClassVar[tuple[str, ...]] = ()
    title: ClassVar[str] = "GPTQ"
    separator: ClassVar[str] = "."
    weight: ClassVar[str] = ".weight"
    kinds: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales", "g_idx")
    left_aside: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def read(cls, section: ModelConfig) -> GPTQ:
        """From `quantization_config`."""
        bits = section.integer("bits")
        require_one_of(section, "bits", bits, (4, 8))
        form = section.string("checkpoint_format", default="gptq")
        require_one_of(section, "checkpoint_format", form, ("gptq", "gptq_v2"))
        dynamic = section.section("dynamic")
        rules = () if dynamic is None else dynamic.values
        if any(not rule.startswith("-") for rule in rules):
            limit = "layers of other bits than the rest are not covered"
            raise section.unsupported("dynamic", list(rules), limit)
        is_symmetric = section.boolean("sym", default=True)
        by_activations = section.boolean("desc_act", default=False)
        return cls(bits, group_size(section), is_symmetric, form == "gptq", by_activations)

    def presumed(self, columns: int, dtype: str) -> Coding:
        """See `Scheme`."""
        if self.group is None:
            return Coding(self._code, "f16", columns)
        return Coding(self._code, "f16", 1 if self.in_order_of_activations else self.group)

    def matrix(self, module: StoredModule) -> QuantisedMatrix:
        """See `Scheme`."""
        qweight = module.array("qweight", "I32", dims=2)
        per_word = 32 // self.bits
        num_rows, width = qweight.shape[1], qweight.shape[0] * per_word
        group = self.group or width
        num_groups = -(-width // group)
        scales = module.array("scales", *SCALES, shape=(num_groups, num_rows))
        zeros = module.array("qzeros", "I32", shape=(num_groups, -(-num_rows // per_word)))
        return QuantisedMatrix(
            name=f"{module.name}.weight",
            shape=(num_rows, width),
            coding=Coding(self._code, module.scale("scales"), group),
            tensors=tuple(module.tensors.values()),
            scales=module.tensor("scales"),
            rows=partial(self._rows, module, qweight, scales, zeros),
            groups=optional_groups(
                module, "g_idx", width, group, needed=self.in_order_of_activations
            ),
        )

    @property
    def _code(self) -> str:
        return f"int{self.bits}" if self.is_symmetric else f"uint{self.bits}"

    def _rows(
        self, module: StoredModule, qweight: Array, scales: Array, qzeros: Array,
        first: int, count: int,
    ) -> GroupedRows:  # fmt: skip
        chosen = slice(first, first + count)
        stored = turned(qweight[:, chosen]).view(np.uint8)
        codes = less_half(stored) if self.bits == 8 else stored
        zeros = self._zeros(qzeros, chosen)
        own_scales = turned(scales[:, chosen])
        if not self.is_symmetric:
            return GroupedRows(codes, own_scales, less_half(zeros) if self.bits == 8 else zeros)
        middle = 1 << self.bits - 1
        if np.any(zeros != middle):
            found = int(zeros[zeros != middle][0])
            limit = f"must be {middle} where the config says sym; with sym false it is taken as is"
            raise module.error("qzeros", found, limit)
        return GroupedRows(codes, own_scales)

    def _zeros(self, qzeros: Array, chosen: slice) -> Bytes:
        """[rows, groups]."""
        less = np.uint32(_ONES[self.bits] if self.is_first_form else 0)
        stored = (qzeros.view(np.uint32) + less).view(np.uint8)
        zeros = nibbles(stored) if self.bits == 4 else stored
        return turned(zeros[:, chosen])
