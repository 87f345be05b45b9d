"""A run of layers of one shape, as one compiled function takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch

from pagoda.execution.rope import RotaryTables
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.decoder import LayerTables
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.product import HeadRoutines, PanelRoutines, head_routines, panel_routines
from pagoda.models.decoder import DecoderLayer, DecoderSpec, RopeSpec
from pagoda.models.weights import DecoderWeights, LayerWeights
from pagoda.storage.kv_storage import KVStorage, LayerStorage

_LOG2_E = 1.4426950408889634
_NO_WINDOW = 2**31 - 1

Ropes = Mapping[RopeSpec | None, RotaryTables]


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive layers and the code for them."""

    tables: LayerTables
    shape: HeadShape
    heads: HeadRoutines
    panels: PanelRoutines
    like: Array
    """An array of the cache's dtype."""
    qkv_width: int
    attended_width: int
    inner_width: int


class _Part(NamedTuple):
    """One layer."""

    spec: DecoderLayer
    weights: LayerWeights
    storage: LayerStorage


def segments(
    spec: DecoderSpec, weights: DecoderWeights, storage: KVStorage, ropes: Ropes
) -> tuple[Segment, ...]:
    """All layers in order, together where they have the same shape; matrices lie in panels."""
    layers = zip(spec.layers, weights.layers, storage.layers, strict=True)
    parts = [_Part(*layer) for layer in layers]
    return tuple(_segment(list(run), ropes) for _, run in groupby(parts, _shape))


def _shape(part: _Part) -> tuple[object, ...]:
    attention = part.spec.attention
    return (
        attention.num_heads, attention.num_kv_heads, attention.head_dim, attention.qk_norm,
        part.spec.mlp.intermediate_size, part.storage.array.dtype,
    )  # fmt: skip


def _segment(parts: Sequence[_Part], ropes: Ropes) -> Segment:
    attention, storage = parts[0].spec.attention, parts[0].storage
    shape = HeadShape(
        attention.num_kv_heads,
        attention.num_heads // attention.num_kv_heads,
        attention.head_dim,
        storage.block_size,
    )
    first = parts[0].weights
    cache_paired = storage.array.dtype == np.uint16
    return Segment(
        tables=_tables(parts, ropes),
        shape=shape,
        heads=head_routines(cache_paired, shape.head_dim, shape.block_size),
        panels=panel_routines(first.qkv.dtype == torch.bfloat16),
        like=storage.array[:0],
        qkv_width=first.qkv.shape[0],
        attended_width=first.o.shape[1],
        inner_width=first.down.shape[1],
    )


def _tables(parts: Sequence[_Part], ropes: Ropes) -> LayerTables:
    weights = [part.weights for part in parts]
    used = list(dict.fromkeys(part.spec.attention.rope for part in parts))
    cosines, sines = _stack_ropes([ropes[rope] for rope in used])
    windows = (part.spec.attention.sliding_window for part in parts)
    scales = [part.spec.attention.scale * _LOG2_E for part in parts]
    return LayerTables(
        matrices=np.array([_addresses(layer) for layer in weights], np.int64),
        input_norm=_stack([layer.input_norm for layer in weights]),
        qkv_bias=_stack([_bias(layer.qkv_bias, layer.qkv) for layer in weights]),
        q_norm=_stack([_norm(layer.q_norm) for layer in weights]),
        k_norm=_stack([_norm(layer.k_norm) for layer in weights]),
        o_bias=_stack([_bias(layer.o_bias, layer.o) for layer in weights]),
        post_norm=_stack([layer.post_norm for layer in weights]),
        gate_up_bias=_stack([_bias(layer.gate_up_bias, layer.gate_up) for layer in weights]),
        down_bias=_stack([_bias(layer.down_bias, layer.down) for layer in weights]),
        cosines=cosines,
        sines=sines,
        rotary=np.array(
            [
                (used.index(part.spec.attention.rope), _half(part.spec.attention.rope))
                for part in parts
            ],
            np.int64,
        ),
        blocks=np.array([part.storage.array.ctypes.data for part in parts], np.int64),
        scales=np.array(scales, np.float32),
        windows=np.array([window or _NO_WINDOW for window in windows], np.int64),
    )


def _addresses(layer: LayerWeights) -> list[int]:
    gate, up = layer.gate_up.chunk(2)
    return [matrix.data_ptr() for matrix in (layer.qkv, layer.o, gate, up, layer.down)]


def _half(rope: RopeSpec | None) -> int:
    return 0 if rope is None else len(rope.inv_freq)


def _stack_ropes(tables: Sequence[RotaryTables]) -> tuple[Array, Array]:
    """Cosines and sines, [tables, positions, most columns], zeros where a table has fewer."""
    width = max(table.cosines.shape[1] for table in tables)
    shape = (len(tables), len(tables[0].cosines), width)
    cosines, sines = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for number, table in enumerate(tables):
        columns = table.cosines.shape[1]
        cosines[number, :, :columns] = table.cosines
        sines[number, :, :columns] = table.sines
    return cosines, sines


def _stack(rows: Sequence[torch.Tensor]) -> Array:
    return torch.stack([row.float() for row in rows]).numpy()


def _bias(bias: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(weight)) if bias is None else bias


def _norm(norm: torch.Tensor | None) -> torch.Tensor:
    return torch.empty(0) if norm is None else norm
