"""compressed-tensors: what LLM Compressor writes, each layer in one of three forms.

    pack-quantized    weight_packed [out, in / n] of n codes to a word of 32 along `in`,
                      weight_shape [2], weight_scale [out, groups], weight_zero_point
                      [out / n, groups] in words along `out`
    int-quantized,    weight [out, in] of int8, weight_scale, weight_zero_point of int8
    naive-quantized
    float-quantized   weight [out, in] of float8 e4m3, weight_scale

A number is (code − zero point) · scale; packed codes and zero points have half their range added.
In each form weight_g_idx [in] may say which group a number of a row is of.
Which form a layer has is read off its tensors; they must be what the config says of some layers.
Activations are not quantised here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pagoda.models.config import ModelConfig
from pagoda.models.schemes.coding import Coding
from pagoda.models.schemes.compressed_layers import CompressedLayers
from pagoda.models.schemes.packed import less_half, nibbles, optional_groups
from pagoda.models.schemes.quantised_matrix import Bytes, GroupedRows, QuantisedMatrix
from pagoda.models.schemes.scale_grid import ScaleGrid
from pagoda.models.schemes.scheme import names
from pagoda.models.schemes.stored_module import SCALES, Array, StoredModule

_SCALES, _ZEROS, _GROUPS = "weight_scale", "weight_zero_point", "weight_g_idx"
_SCALES_OF = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
"""Scales have the model's dtype."""


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """See `Scheme`."""

    layers: tuple[CompressedLayers, ...]
    """Each group of them."""
    ignored: tuple[str, ...]
    title: ClassVar[str] = "compressed-tensors"
    separator: ClassVar[str] = "."
    weight: ClassVar[str] = ".weight"
    kinds: ClassVar[tuple[str, ...]] = (
        "weight", "weight_packed", "weight_shape", _SCALES, _ZEROS, _GROUPS,
    )  # fmt: skip
    left_aside: ClassVar[tuple[str, ...]] = (
        "input_scale", "input_zero_point", "output_scale", "output_zero_point", "k_scale",
        "v_scale", "q_scale", "k_zero_point", "v_zero_point", "q_zero_point",
    )  # fmt: skip

    @classmethod
    def read(cls, section: ModelConfig) -> CompressedTensors:
        """From `quantization_config`."""
        groups = section.section("config_groups")
        if groups is None:
            raise section.missing("config_groups")
        form = section.string("format", default="dense")
        layers = tuple(CompressedLayers.read(groups, name, form) for name in groups.values)
        for name in ("transform_config", "sparsity_config"):
            found = section.section(name)
            if found is not None and found.values.get("format") != "dense":
                raise section.unsupported(name, found.values, "must be empty, or of format dense")
        return cls(layers, names(section, "ignore"))

    def presumed(self, columns: int, dtype: str) -> Coding:
        """See `Scheme`."""
        first = self.layers[0]
        _, group = first.span.within((1, columns))
        is_mixed = first.in_order_of_activations and group < columns
        return Coding(first.code, SCALES[_SCALES_OF[dtype]], 1 if is_mixed else group)

    def matrix(self, module: StoredModule) -> QuantisedMatrix:
        """See `Scheme`. Where the config has several groups of layers, it may be of any of them."""
        codes = _Codes.of(module, self.layers)
        layers = [each for each in self.layers if codes.fits(each)]
        grid = ScaleGrid.of(module, _SCALES, codes.shape, [each.span for each in layers])
        layers = [each for each in layers if each.span.within(codes.shape) == grid.span]
        zeros = _zeros(module, codes, grid, layers)
        is_mixed = all(each.in_order_of_activations for each in layers)
        return QuantisedMatrix(
            name=f"{module.name}.weight",
            shape=codes.shape,
            coding=Coding(
                codes.code if zeros is None else f"u{codes.code}",
                module.scale(_SCALES),
                grid.num_columns,
            ),
            tensors=tuple(module.tensors.values()),
            scales=module.tensor(_SCALES),
            rows=partial(_rows, codes, grid, zeros),
            groups=_groups(module, codes.shape[1], grid.num_columns, needed=is_mixed),
        )


@dataclass(frozen=True, slots=True)
class _Codes:
    """The codes of a matrix, as they lie in the files."""

    code: str
    """One of `CODES`, without zero points."""
    is_packed: bool
    shape: tuple[int, int]
    rows: Callable[[int, int], Bytes]
    """As `GroupedRows` has them."""

    @classmethod
    def of(cls, module: StoredModule, layers: Sequence[CompressedLayers]) -> _Codes:
        """Raises `ModelError` for codes that none of the config's groups of layers has."""
        if "weight_packed" in module:
            return cls._packed(module, layers)
        dtypes = dict.fromkeys("F8_E4M3" if each.is_float else "I8" for each in layers)
        weight = module.array("weight", *dtypes, dims=2)
        is_float = module.tensors["weight"].dtype == "F8_E4M3"
        shape = (weight.shape[0], weight.shape[1])
        return cls("e4m3" if is_float else "int8", False, shape, partial(_plain_rows, weight))

    @classmethod
    def _packed(cls, module: StoredModule, layers: Sequence[CompressedLayers]) -> _Codes:
        words = module.array("weight_packed", "I32", dims=2)
        sizes = module.array("weight_shape", "I64", "I32", shape=(2,))
        num_rows, width = (int(size) for size in sizes)
        said = {each.bits for each in layers if not each.is_float}
        widths = {bits: -(-width * bits // 32) for bits in said}
        bits = next((bits for bits in widths if (num_rows, widths[bits]) == words.shape), None)
        if bits is None or num_rows < 1 or width % 2:
            codes = " or ".join(dict.fromkeys(each.code for each in layers))
            limit = f"must hold {codes} for the shape {(num_rows, width)}, as the config says"
            raise module.error("weight_packed", words.shape, limit)
        rows = partial(_packed_rows, words, bits, width)
        return cls(f"int{bits}", True, (num_rows, width), rows)

    def fits(self, layers: CompressedLayers) -> bool:
        """Whether those have such codes; ones of 4 bits may lie in bytes."""
        if layers.is_float or self.code == "e4m3":
            return layers.code == self.code
        return not self.is_packed or self.code == f"int{layers.bits}"


def _plain_rows(weight: Array, first: int, count: int) -> Bytes:
    codes: Bytes = weight[first : first + count].view(np.uint8)
    return codes


def _packed_rows(words: Array, bits: int, width: int, first: int, count: int) -> Bytes:
    stored = words[first : first + count].view(np.uint8)[:, : width * bits // 8]
    return less_half(stored) if bits == 8 else stored


def _rows(
    codes: _Codes, grid: ScaleGrid, zeros: ScaleGrid | None, first: int, count: int
) -> GroupedRows:
    own_zeros = None if zeros is None else zeros.rows(first, count)
    return GroupedRows(codes.rows(first, count), grid.rows(first, count), own_zeros)


def _zeros(
    module: StoredModule, codes: _Codes, grid: ScaleGrid, layers: Sequence[CompressedLayers]
) -> ScaleGrid | None:
    """Zero points; None where there are none.

    Where the config says that weights are symmetric, the tensor may be there and say the same.
    """
    if _ZEROS not in module and any(each.is_symmetric for each in layers):
        return None
    if codes.code == "e4m3":
        raise module.error(_ZEROS, None, "there must be none beside float8")
    zeros = _stored_zeros(module, codes, grid)
    if not all(each.is_symmetric for each in layers):
        return zeros
    middle = 8 if codes.code == "int4" else 0
    found = (zeros.scales - np.uint8(middle)).view(np.int8)
    if found.any():
        limit = "must be 0 where the config says symmetric; with symmetric false it is taken as is"
        raise module.error(_ZEROS, int(found[found != 0][0]), limit)
    return None


def _stored_zeros(module: StoredModule, codes: _Codes, grid: ScaleGrid) -> ScaleGrid:
    """As codes are: in words along `out`, or, as once, each in a byte of its own."""
    words = module.array(_ZEROS, "I8", *(["I32"] if codes.is_packed else []))
    is_four = codes.code == "int4"
    if words.dtype == np.int8:
        found = grid.zeros(module, _ZEROS)
        whole = found.scales + np.int8(8) if is_four else found.scales
        return replace(found, scales=whole.view(np.uint8))
    num_rows, num_groups = grid.scales.shape
    words = module.array(_ZEROS, "I32", shape=(-(-num_rows // (8 if is_four else 4)), num_groups))
    stored = np.ascontiguousarray(words.T).view(np.uint8)
    zeros = nibbles(stored) if is_four else less_half(stored)
    return replace(grid, scales=np.ascontiguousarray(zeros[:, :num_rows].T))


def _groups(
    module: StoredModule, width: int, group: int, *, needed: bool
) -> npt.NDArray[np.int64] | None:
    """The group of each of a row's numbers; None where they follow each other.

    They do, too, where the tensor is as it began: all −1. Source: compressed-tensors'
    `quantization/lifecycle/forward.py`.
    """
    if _GROUPS in module and np.all(module.array(_GROUPS, "I32", shape=(width,)) == -1):
        return None
    return optional_groups(module, _GROUPS, width, group, needed=needed)
