"""Small random checkpoints of safetensors under each scheme of quantised weights.

`write_quantised(directory, "gptq", plain)` writes random codes and scales as the scheme lays them
out, and `write_dequantised` the numbers that they stand for, in bfloat16, both from one seed.
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
from quantised_layers import (
    Layer,
    Tensors,
    awq,
    eight_bits,
    float8,
    four_bits,
    gptq,
    in_order_of_activations,
    int8,
    packed,
)


def _gptq_section(bits: int, group: int, *, sym: bool, **fields: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym, **fields}


def _groups(form: str, **weights: Any) -> dict[str, Any]:
    return compressed(weights, form=form)


def compressed(*weights: Mapping[str, Any], form: str = "pack-quantized") -> dict[str, Any]:
    """The section of compressed-tensors with so many groups of layers."""
    groups = {
        f"group_{place}": {"targets": ["Linear"], "weights": fields, "input_activations": None}
        for place, fields in enumerate(weights)
    }
    return {
        "quant_method": "compressed-tensors", "format": form, "config_groups": groups,
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
