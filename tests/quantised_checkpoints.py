"""Small random checkpoints of safetensors under each scheme of quantised weights.

`write_quantised(directory, "gptq", plain)` writes random codes and scales as the scheme lays them
out, and `write_dequantised` the numbers that they stand for, in bfloat16, both from one seed.
The numbers are worked out plainly, scale · (code − zero point), before anything is packed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from pagoda.models.config import ModelConfig
from pagoda.models.quantization import read_quantization
from pagoda.models.schemes.quantised_matrix import QuantisedMatrix
from pagoda.models.schemes.stored_module import StoredModule
from pagoda.models.stored_tensors import StoredTensor

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


def _gptq_section(bits: int, group: int, *, sym: bool, **fields: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym, **fields}


def _groups(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "kv_cache_scheme": None, "sparsity_config": {},
    }  # fmt: skip


_AWQ = {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}
_BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
_BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


@dataclass(frozen=True)
class Stored:
    """How layers are stored, and what the config says of it."""

    layer: Layer
    section: Mapping[str, Any]
    type: str
    """Pagoda's name of it."""


SCHEMES: Mapping[str, Stored] = {
    "gptq": Stored(gptq(), _gptq_section(4, 128, sym=False), "uint4_f16_g128"),
    "gptq symmetric": Stored(
        gptq(4, 32, symmetric=True), _gptq_section(4, 32, sym=True), "int4_f16_g32"
    ),
    "gptq 8 bits": Stored(gptq(8, 64), _gptq_section(8, 64, sym=False), "uint8_f16_g64"),
    "gptq 8 bits symmetric": Stored(
        gptq(8, -1, symmetric=True), _gptq_section(8, -1, sym=True), "int8_f16_g128"
    ),
    "gptq_v2": Stored(
        gptq(4, -1, less=0), _gptq_section(4, -1, sym=False, checkpoint_format="gptq_v2"),
        "uint4_f16_g128",
    ),
    "gptq in order of activations": Stored(
        gptq(order=True), _gptq_section(4, 128, sym=False, desc_act=True), "uint4_f16_act_order"
    ),
    "awq": Stored(awq(), {**_AWQ, "group_size": 128}, "uint4_f16_g128"),
    "awq of 64": Stored(awq(64), {**_AWQ, "group_size": 64}, "uint4_f16_g64"),
    "W4A16": Stored(
        packed(4, 128, symmetric=True),
        _groups("pack-quantized", num_bits=4, strategy="group", group_size=128), "int4_bf16_g128",
    ),
    "W4A16 with zero points": Stored(
        packed(4, 64, symmetric=False, dtype=torch.float16),
        _groups("pack-quantized", symmetric=False, num_bits=4, strategy="group", group_size=64),
        "uint4_f16_g64",
    ),
    "W4A16 of float32 with zero points": Stored(
        packed(4, 64, symmetric=False, dtype=torch.float32),
        _groups("pack-quantized", symmetric=False, num_bits=4, strategy="group", group_size=64),
        "uint4_f32",
    ),
    "W8A16": Stored(
        packed(8, -1, symmetric=True),
        _groups("pack-quantized", num_bits=8, strategy="channel"), "int8_bf16_g128",
    ),
    "W8A16 with zero points": Stored(
        packed(8, 32, symmetric=False),
        _groups("pack-quantized", symmetric=False, num_bits=8, strategy="group", group_size=32),
        "uint8_bf16_g32",
    ),
    "W8A8": Stored(
        int8(symmetric=True), _groups("int-quantized", num_bits=8, strategy="channel"),
        "int8_bf16_g128",
    ),
    "W8A8 with zero points": Stored(
        int8(symmetric=False),
        _groups("naive-quantized", symmetric=False, num_bits=8, strategy="channel"),
        "uint8_bf16_g128",
    ),
    "W8A8 in order of activations": Stored(
        in_order_of_activations(int8(symmetric=True, group=32), 32),
        _groups("int-quantized", num_bits=8, strategy="group", group_size=32, actorder="group"),
        "int8_bf16_act_order",
    ),
    "W8A8 with zero points in order of activations": Stored(
        in_order_of_activations(int8(symmetric=False, group=32), 32),
        _groups(
            "naive-quantized", symmetric=False, num_bits=8, strategy="group", group_size=32,
            actorder="group",
        ),
        "uint8_bf16_act_order",
    ),
    "FP8 in order of activations": Stored(
        in_order_of_activations(float8("weight_scale", 1, 64, torch.bfloat16), 64),
        _groups(
            "float-quantized", num_bits=8, type="float", strategy="group", group_size=64,
            actorder="group",
        ),
        "e4m3_bf16_act_order",
    ),
    "FP8": Stored(
        float8("weight_scale", 1, 0, torch.bfloat16),
        _groups("float-quantized", num_bits=8, type="float", strategy="channel"),
        "e4m3_bf16_g128",
    ),
    "fp8 in blocks": Stored(
        float8("weight_scale_inv", 128, 128),
        _BLOCKS, "e4m3_f32_g128",
    ),
    "fp8 with one scale": Stored(
        float8("weight_scale", 0, 0), {"quant_method": "fp8"}, "e4m3_f32_g128"
    ),
    "fp8 by rows": Stored(
        float8("weight_scale", 1, 0), {"quant_method": "fbgemm_fp8"},
        "e4m3_f32_g128",
    ),
    "nf4": Stored(four_bits("nf4", double=False), _BNB, "nf4_f32_g64"),
    "nf4 twice": Stored(four_bits("nf4", double=True), _BNB, "nf4_f32_g64"),
    "fp4": Stored(
        four_bits("fp4", double=False, block=128), {**_BNB, "bnb_4bit_quant_type": "fp4"},
        "fp4_f32_g128"),
    "LLM.int8": Stored(eight_bits, {**_BNB, "load_in_8bit": True}, "int8_f32_g128"),
}  # fmt: skip
"""By names of their own."""


def is_quantised(name: str) -> bool:
    """Whether schemes store a tensor: the matrices of layers."""
    return name.endswith("_proj.weight")


def write_quantised(directory: Path, name: str, plain: Path, **section: Any) -> Path:
    """A copy of a plain checkpoint with random matrices of a scheme in its layers."""
    stored = SCHEMES[name]
    shutil.copytree(plain, directory)
    edit_tensors(directory, lambda tensors: quantised(tensors, stored))
    edit_config(directory, quantization_config={**stored.section, **section})
    return directory


def write_dequantised(directory: Path, name: str, plain: Path) -> Path:
    """A copy with the numbers that these stand for, in bfloat16."""
    shutil.copytree(plain, directory)
    edit_tensors(directory, lambda tensors: dequantised(tensors, SCHEMES[name]))
    return directory


def quantised(tensors: Tensors, stored: Stored) -> Tensors:
    """All tensors of a model, the matrices of its layers under a scheme."""
    found = {name: tensor for name, tensor in tensors.items() if not is_quantised(name)}
    for name, (layer, _) in _layers(tensors, stored):
        module = name.removesuffix(".weight")
        found |= {f"{module}.{kind}": tensor for kind, tensor in layer.items()}
    return found


def dequantised(tensors: Tensors, stored: Stored) -> Tensors:
    """The same, plain."""
    weights = {name: weight.bfloat16() for name, (_, weight) in _layers(tensors, stored)}
    return {**tensors, **weights}


def _layers(tensors: Tensors, stored: Stored) -> list[tuple[str, tuple[Tensors, torch.Tensor]]]:
    rng = np.random.default_rng(0)
    names = [name for name in sorted(tensors) if is_quantised(name)]
    return [(name, stored.layer(rng, *tensors[name].shape)) for name in names]


def edit_tensors(directory: Path, edit: Callable[[Tensors], Tensors]) -> None:
    """Write the tensors of a directory again."""
    path = directory / "model.safetensors"
    tensors = edit(load_file(path))
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, path)


def edit_config(directory: Path, **fields: Any) -> None:
    """Change fields of a directory's config."""
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


_DTYPES = {
    torch.int8: "I8", torch.uint8: "U8", torch.int32: "I32", torch.int64: "I64",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32",
    torch.float8_e4m3fn: "F8_E4M3",
}  # fmt: skip


def matrix_of(tensors: Tensors, section: Mapping[str, Any]) -> QuantisedMatrix:
    """A layer, read as if its tensors were in a file."""
    scheme = read_quantization(ModelConfig({"quantization_config": section}))
    assert scheme is not None
    stored = {kind: _stored_tensor(tensor) for kind, tensor in tensors.items()}
    return scheme.matrix(StoredModule("a.layer", stored))


def _stored_tensor(tensor: torch.Tensor) -> StoredTensor:
    data: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return StoredTensor(data, _DTYPES[tensor.dtype], tuple(tensor.shape), 0, len(data))
