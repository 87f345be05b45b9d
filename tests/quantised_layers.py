"""Random layers as each scheme of quantised weights lays them out, and the numbers they stand for.

The numbers are worked out plainly, scale · (code − zero point), before anything is packed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Tensors = dict[str, torch.Tensor]
Layer = Callable[[np.random.Generator, int, int], tuple[Tensors, torch.Tensor]]
"""(rows, columns) → tensors by their endings, and the weight in float32."""

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
FP4 = tuple(
    sign * value / 12 for sign in (1, -1) for value in (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
)


def words(codes: np.ndarray, bits: int) -> torch.Tensor:
    """[rows, n] → [rows, n / codes in a word] of int32, the first code lowest."""
    per_word = 32 // bits
    packed = np.zeros((codes.shape[0], codes.shape[1] // per_word), np.uint32)
    for place in range(per_word):
        packed |= codes[:, place::per_word].astype(np.uint32) << np.uint32(bits * place)
    return torch.from_numpy(packed.view(np.int32).copy())


@dataclass(frozen=True)
class Grouped:
    """Random codes with scales and zero points of groups, and what they say."""

    codes: np.ndarray
    scales: torch.Tensor
    zeros: np.ndarray
    weight: torch.Tensor

    @classmethod
    def draw(
        cls, rng: np.random.Generator, rows: int, columns: int, bits: int, group: int,
        dtype: torch.dtype, *, symmetric: bool,
    ) -> Grouped:  # fmt: skip
        group = columns if group == -1 else group
        shape, middle = (rows, columns // group), 1 << bits - 1
        codes = rng.integers(0, 1 << bits, (rows, columns))
        size = 1.5 / middle / columns**0.5
        scales = torch.from_numpy(rng.uniform(size / 2, size, shape)).to(dtype)
        zeros = np.full(shape, middle) if symmetric else rng.integers(1, 1 << bits, shape)
        each = np.arange(columns) // group
        weight = scales.float()[:, each] * torch.from_numpy(codes - zeros[:, each]).float()
        return cls(codes, scales, zeros, weight)


def gptq(
    bits: int = 4, group: int = 128, *, symmetric: bool = False, less: int = 1, order: bool = False,
    dtype: torch.dtype = torch.float16,
) -> Layer:  # fmt: skip
    def layer(rng: np.random.Generator, rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
        drawn = Grouped.draw(rng, rows, columns, bits, group, dtype, symmetric=symmetric)
        g_idx = np.arange(columns) // (columns if group == -1 else group)
        shuffled = rng.permutation(columns) if order else np.arange(columns)
        tensors = {
            "qweight": words(drawn.codes[:, shuffled], bits).T.contiguous(),
            "qzeros": words(drawn.zeros.T - less, bits),
            "scales": drawn.scales.T.contiguous(),
            "g_idx": torch.from_numpy(g_idx[shuffled].astype(np.int32)),
        }
        return tensors, drawn.weight[:, torch.from_numpy(shuffled)]

    return layer


def awq(group: int = 128) -> Layer:
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # of the columns in a word, from its lowest bits on

    def mixed(codes: np.ndarray) -> np.ndarray:
        return codes.reshape(len(codes), -1, 8)[:, :, order].reshape(len(codes), -1)

    def layer(rng: np.random.Generator, rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
        drawn = Grouped.draw(rng, rows, columns, 4, group, torch.float16, symmetric=False)
        tensors = {
            "qweight": words(mixed(drawn.codes.T), 4),
            "qzeros": words(mixed(drawn.zeros.T), 4),
            "scales": drawn.scales.T.contiguous(),
        }
        return tensors, drawn.weight

    return layer


def packed(bits: int, group: int, *, symmetric: bool, dtype: torch.dtype = torch.bfloat16) -> Layer:
    def layer(rng: np.random.Generator, rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
        drawn = Grouped.draw(rng, rows, columns, bits, group, dtype, symmetric=symmetric)
        tensors = {
            "weight_packed": words(drawn.codes, bits),
            "weight_scale": drawn.scales,
            "weight_shape": torch.tensor([rows, columns]),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words(drawn.zeros.T, bits).T.contiguous()
        return tensors, drawn.weight

    return layer


def int8(*, symmetric: bool, group: int = -1) -> Layer:
    def layer(rng: np.random.Generator, rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
        drawn = Grouped.draw(rng, rows, columns, 8, group, torch.bfloat16, symmetric=symmetric)
        tensors = {
            "weight": torch.from_numpy((drawn.codes - 128).astype(np.int8)),
            "weight_scale": drawn.scales,
            "input_scale": torch.ones(1),
        }
        if not symmetric:
            tensors["weight_zero_point"] = torch.from_numpy((drawn.zeros - 128).astype(np.int8))
        return tensors, drawn.weight

    return layer


def in_order_of_activations(layer: Layer, group: int) -> Layer:
    """The same with columns that are of any group, as compressed-tensors tells it."""

    def shuffled(rng: np.random.Generator, rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
        tensors, weight = layer(rng, rows, columns)
        order = torch.from_numpy(rng.permutation(columns))
        tensors["weight"] = tensors["weight"][:, order]
        tensors["weight_g_idx"] = (order // group).int()
        return tensors, weight[:, order]

    return shuffled


def float8(kind: str, num_rows: int, num_columns: int, dtype: torch.dtype = torch.float32) -> Layer:
    """One scale for so many rows and columns; 0: for all of them."""

    def layer(rng: np.random.Generator, rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
        block, size = (num_rows or rows, num_columns or columns), columns**-0.5
        weight = torch.from_numpy(rng.normal(size=(rows, columns))).to(torch.float8_e4m3fn)
        grid = (-(-rows // block[0]), -(-columns // block[1]))
        scales = torch.from_numpy(rng.uniform(size / 2, size, grid)).to(dtype)
        of_rows, of_columns = torch.arange(rows) // block[0], torch.arange(columns) // block[1]
        stored = scales if num_rows else scales.reshape(())
        tensors = {"weight": weight, kind: stored, "input_scale": torch.ones(1)}
        return tensors, weight.float() * scales.float()[of_rows][:, of_columns]

    return layer


def four_bits(kind: str, *, double: bool, block: int = 64) -> Layer:
    table = torch.tensor(NF4 if kind == "nf4" else FP4, dtype=torch.float32)

    def layer(rng: np.random.Generator, rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
        codes, count = rng.integers(0, 16, rows * columns), rows * columns // block
        state: dict[str, Any] = {
            "quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": [rows, columns],
        }  # fmt: skip
        size = columns**-0.5
        tensors = {
            "weight": torch.from_numpy((codes[::2] << 4 | codes[1::2]).astype(np.uint8))[:, None],
            "weight.quant_map": table,
        }
        if double:
            stored = torch.from_numpy(rng.integers(0, 256, count).astype(np.uint8))
            nested = torch.from_numpy(rng.uniform(0, size, -(-count // 256))).float()
            nested_map = torch.linspace(-1, 1, 256)
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": size}
            tensors |= {
                "weight.absmax": stored,
                "weight.nested_absmax": nested,
                "weight.nested_quant_map": nested_map,
            }
            each = torch.arange(count) // 256
            absmax = nested_map[stored.long()] * nested[each] + torch.tensor(size).float()
        else:
            absmax = torch.from_numpy(rng.uniform(size, 2 * size, count)).float()
            tensors["weight.absmax"] = absmax
        text = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
        tensors[f"weight.quant_state.bitsandbytes__{kind}"] = torch.from_numpy(text)
        weight = table[torch.from_numpy(codes)].reshape(-1, block) * absmax[:, None]
        return tensors, weight.reshape(rows, columns)

    return layer


def eight_bits(rng: np.random.Generator, rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
    codes = torch.from_numpy(rng.integers(-127, 128, (rows, columns)).astype(np.int8))
    largest = torch.from_numpy(rng.uniform(1, 2, rows) * columns**-0.5).float()
    tensors = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, codes.float() * (largest * torch.tensor(1 / 127).float())[:, None]
