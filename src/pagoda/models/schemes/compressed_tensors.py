"""compressed-tensors: what LLM Compressor writes, each layer in one of three forms.

    pack-quantized    weight_packed [out, in / n] of n codes to a word of 32 along `in`,
                      weight_shape [2], weight_scale [out, groups], weight_zero_point
                      [out / n, groups] in words along `out`
    int-quantized,    weight [out, in] of int8, weight_scale, weight_zero_point of int8
    naive-quantized
    float-quantized   weight [out, in] of float8 e4m3, weight_scale

A number is (code − zero point) · scale; packed codes and zero points have half their range added.
In each form weight_g_idx [in] may say which group a number of a row is of.
What a layer has is read off its tensors. Activations are not quantised here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pagoda.models.config import ModelConfig
from pagoda.models.schemes.coding import Coding
from pagoda.models.schemes.fp8 import float8_matrix
from pagoda.models.schemes.packed import less_half, nibbles, optional_groups
from pagoda.models.schemes.quantised_matrix import Bytes, GroupedRows, QuantisedMatrix
from pagoda.models.schemes.scale_grid import ScaleGrid
from pagoda.models.schemes.scheme import names, require_one_of
from pagoda.models.schemes.stored_module import SCALES, Array, StoredModule

_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized")
_ZEROS, _GROUPS = "weight_zero_point", "weight_g_idx"
_SCALES_OF = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
"""Scales have the model's dtype."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """How the weights of a group of layers are stored, as far as the config tells."""

    code: str
    group: int | None
    """Numbers of a row that share a scale; None: all of it."""
    block: tuple[int, int] | None
    """Rows and columns that share a scale where blocks have one."""

    @classmethod
    def read(cls, groups: ModelConfig, name: str, form: str) -> _Weights:
        """One of `config_groups`, once it is seen to be covered."""
        group = groups.section(name)
        weights = None if group is None else group.section("weights")
        if group is None or weights is None:
            raise groups.error(name, groups.values[name], "must say how weights are stored")
        require_one_of(group, "format", group.string("format", default=form), _FORMATS)
        kind, bits = weights.string("type", default="int"), weights.integer("num_bits")
        require_one_of(weights, "type", kind, ("int", "float"))
        require_one_of(weights, "num_bits", bits, (8,) if kind == "float" else (4, 8))
        structure = weights.items("block_structure", int, length=2)
        if structure is not None and min(structure) < 1:
            raise weights.error("block_structure", structure, "must be numbers of at least 1")
        sign = "" if weights.boolean("symmetric", default=True) else "u"
        size = weights.optional_integer("group_size", minimum=-1)
        if structure is not None:
            size = structure[1]
        return cls(
            code="e4m3" if kind == "float" else f"{sign}int{bits}",
            group=size if size and size > 0 else None,
            block=None if structure is None else (structure[0], structure[1]),
        )


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """See `Scheme`."""

    layers: tuple[_Weights, ...]
    """Of each group of layers."""
    ignored: tuple[str, ...]
    title: ClassVar[str] = "compressed-tensors"
    separator: ClassVar[str] = "."
    weight: ClassVar[str] = ".weight"
    kinds: ClassVar[tuple[str, ...]] = (
        "weight", "weight_packed", "weight_shape", "weight_scale", _ZEROS, _GROUPS,
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
        layers = tuple(_Weights.read(groups, name, form) for name in groups.values)
        for name in ("transform_config", "sparsity_config"):
            found = section.section(name)
            if found is not None and found.values.get("format") != "dense":
                raise section.unsupported(name, found.values, "must be empty, or of format dense")
        return cls(layers, names(section, "ignore"))

    def presumed(self, columns: int, dtype: str) -> Coding:
        """See `Scheme`."""
        first = self.layers[0]
        return Coding(first.code, SCALES[_SCALES_OF[dtype]], first.group or columns)

    def matrix(self, module: StoredModule) -> QuantisedMatrix:
        """See `Scheme`."""
        matrix = self._matrix(module)
        return replace(matrix, groups=_groups(module, matrix.shape[1], matrix.coding.group))

    def _matrix(self, module: StoredModule) -> QuantisedMatrix:
        """With groups that follow each other."""
        if "weight_packed" in module:
            return _packed_matrix(module)
        if "weight" in module and module.tensors["weight"].dtype == "F8_E4M3":
            if _ZEROS in module:
                raise module.error(_ZEROS, None, "there must be none beside float8")
            block = next((each.block for each in self.layers if each.block is not None), None)
            return float8_matrix(module, "weight_scale", block)
        return _int8_matrix(module)


def _groups(module: StoredModule, width: int, group: int) -> npt.NDArray[np.int64] | None:
    """The group of each of a row's numbers; None where they follow each other.

    They do, too, where the tensor is as it began: all −1. Source: compressed-tensors'
    `quantization/lifecycle/forward.py`.
    """
    if _GROUPS in module and np.all(module.array(_GROUPS, "I32", shape=(width,)) == -1):
        return None
    return optional_groups(module, _GROUPS, width, group)


def _packed_matrix(module: StoredModule) -> QuantisedMatrix:
    words = module.array("weight_packed", "I32", dims=2)
    num_rows, width = (int(size) for size in module.array("weight_shape", "I64", "I32", shape=(2,)))
    widths = {bits: -(-width * bits // 32) for bits in (4, 8)}
    bits = next((bits for bits in widths if (num_rows, widths[bits]) == words.shape), None)
    if bits is None or num_rows < 1 or width % 2:
        limit = f"must hold codes of 4 or 8 bits for the shape {(num_rows, width)}"
        raise module.error("weight_packed", words.shape, limit)
    grid = ScaleGrid.of(module, "weight_scale", (num_rows, width))
    zeros = _packed_zeros(module, bits, num_rows, grid) if _ZEROS in module else None
    return QuantisedMatrix(
        name=f"{module.name}.weight",
        shape=(num_rows, width),
        coding=Coding(
            f"int{bits}" if zeros is None else f"uint{bits}",
            module.scale("weight_scale"),
            grid.num_columns,
        ),
        tensors=tuple(module.tensors.values()),
        scales=module.tensor("weight_scale"),
        rows=partial(_packed_rows, words, bits, width, grid, zeros),
    )


def _packed_zeros(module: StoredModule, bits: int, num_rows: int, grid: ScaleGrid) -> ScaleGrid:
    """Zero points, as codes are: in words along `out`, or, as once, each in a byte of its own."""
    if module.tensors[_ZEROS].dtype == "I8":
        found = grid.zeros(module, _ZEROS)
        whole = found.scales + np.int8(8) if bits == 4 else found.scales
        return replace(found, scales=whole.view(np.uint8))
    shape = (-(-num_rows * bits // 32), grid.scales.shape[1])
    words = module.array(_ZEROS, "I32", shape=shape)
    stored = np.ascontiguousarray(words.T).view(np.uint8)
    zeros = nibbles(stored) if bits == 4 else less_half(stored)
    return ScaleGrid(np.ascontiguousarray(zeros[:, :num_rows].T), 1, grid.num_columns)


def _packed_rows(
    words: Array, bits: int, width: int, grid: ScaleGrid, zeros: ScaleGrid | None,
    first: int, count: int,
) -> GroupedRows:  # fmt: skip
    stored = words[first : first + count].view(np.uint8)[:, : width * bits // 8]
    codes = less_half(stored) if bits == 8 else stored
    own_zeros = None if zeros is None else zeros.rows(first, count)
    return GroupedRows(codes, grid.rows(first, count), own_zeros)


def _int8_matrix(module: StoredModule) -> QuantisedMatrix:
    weight = module.array("weight", "I8", dims=2)
    shape = (weight.shape[0], weight.shape[1])
    grid = ScaleGrid.of(module, "weight_scale", shape)
    zeros = grid.zeros(module, _ZEROS) if _ZEROS in module else None
    return QuantisedMatrix(
        name=f"{module.name}.weight",
        shape=shape,
        coding=Coding(
            "int8" if zeros is None else "uint8", module.scale("weight_scale"), grid.num_columns
        ),
        tensors=tuple(module.tensors.values()),
        scales=module.tensor("weight_scale"),
        rows=partial(_int8_rows, weight, grid, zeros),
    )


def _int8_rows(
    weight: Array, grid: ScaleGrid, zeros: ScaleGrid | None, first: int, count: int
) -> GroupedRows:
    codes: Bytes = weight[first : first + count].view(np.uint8)
    own_zeros = None if zeros is None else zeros.rows(first, count).view(np.uint8)
    return GroupedRows(codes, grid.rows(first, count), own_zeros)
