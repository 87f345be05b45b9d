"""float8 e4m3 with scales of float32 or less: one, one for each row, or one for each block.

    weight [out, in], weight_scale_inv or weight_scale

Whatever it is called, a number is weight · scale. Activations are not quantised here, so their
scales are left aside.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from pagoda.models.config import ModelConfig
from pagoda.models.schemes.coding import Coding
from pagoda.models.schemes.quantised_matrix import GroupedRows, QuantisedMatrix
from pagoda.models.schemes.scale_grid import ScaleGrid
from pagoda.models.schemes.scheme import names, require_one_of
from pagoda.models.schemes.span import ROW, WHOLE, Span
from pagoda.models.schemes.stored_module import Array, StoredModule

_SCALES = ("weight_scale_inv", "weight_scale")


@dataclass(frozen=True, slots=True)
class FP8:
    """See `Scheme`."""

    spans: tuple[Span, ...]
    """Numbers that may share a scale: those of a block where the config has blocks."""
    ignored: tuple[str, ...] = ()
    title: ClassVar[str] = "fp8"
    separator: ClassVar[str] = "."
    weight: ClassVar[str] = ".weight"
    kinds: ClassVar[tuple[str, ...]] = ("weight", *_SCALES)
    left_aside: ClassVar[tuple[str, ...]] = (
        "input_scale", "activation_scale", "input_scale_ub", "k_scale", "v_scale",
    )  # fmt: skip

    @classmethod
    def read(cls, section: ModelConfig) -> FP8:
        """From `quantization_config`."""
        form = section.string("fmt", default="e4m3")
        require_one_of(section, "fmt", form, ("e4m3", "float8_e4m3fn"))
        block = section.pair("weight_block_size")
        ignored = names(section, "modules_to_not_convert", "ignored_layers")
        return cls((WHOLE, ROW) if block is None else (Span(*block),), ignored)

    def presumed(self, columns: int, dtype: str) -> Coding:
        """See `Scheme`."""
        return Coding("e4m3", "f32", self.spans[0].within((1, columns))[1])

    def matrix(self, module: StoredModule) -> QuantisedMatrix:
        """See `Scheme`."""
        missing = "weight_scale" if WHOLE in self.spans else "weight_scale_inv"
        kind = next((kind for kind in _SCALES if kind in module), missing)
        weight = module.array("weight", "F8_E4M3", dims=2)
        shape = (weight.shape[0], weight.shape[1])
        grid = ScaleGrid.of(module, kind, shape, self.spans)
        return QuantisedMatrix(
            name=f"{module.name}.weight",
            shape=shape,
            coding=Coding("e4m3", module.scale(kind), grid.num_columns),
            tensors=tuple(module.tensors.values()),
            scales=module.tensor(kind),
            rows=partial(_rows, weight, grid),
        )


def _rows(weight: Array, grid: ScaleGrid, first: int, count: int) -> GroupedRows:
    return GroupedRows(weight[first : first + count], grid.rows(first, count))
