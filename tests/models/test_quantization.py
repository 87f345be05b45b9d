"""Sections `quantization_config`, and tensors of layers, that are refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.quantization import read_quantization
from quantised_checkpoints import SCHEMES, compressed, matrix_of
from quantised_layers import Tensors

GROUP = "quantization_config.config_groups.group_0"


def read(name: str, **fields: Any) -> None:
    read_quantization(ModelConfig({"quantization_config": {**SCHEMES[name].section, **fields}}))


def groups(**weights: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"weights": {"num_bits": 4, **weights}}}}


@pytest.mark.parametrize(
    ("name", "fields", "match"),
    [
        ("gptq", {"quant_method": "hqq"}, "quant_method='hqq': covered are gptq, awq,"),
        ("gptq", {"bits": 3}, "quantization_config.bits=3: covered are 4, 8"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format='marlin': covered are gptq"),
        ("gptq", {"dynamic": {"+:.*down.*": {"bits": 8}}}, "quantization_config.dynamic"),
        ("awq", {"bits": 8}, "quantization_config.bits=8: covered are 4"),
        ("awq", {"version": "GEMV"}, "quantization_config.version='gemv': covered are gemm"),
        ("W4A16", {"format": "nvfp4-pack-quantized"}, f"{GROUP}.format='nvfp4-pack-quantized'"),
        ("W4A16", groups(num_bits=2), f"{GROUP}.weights.num_bits=2: covered are 4, 8"),
        ("W4A16", groups(type="float"), f"{GROUP}.weights.num_bits=4: covered are 8"),
        (
            "W4A16",
            groups(strategy="token"),
            f"{GROUP}.weights.strategy='token': covered",
        ),
        ("W4A16", groups(actorder="rows"), f"{GROUP}.weights.actorder='rows': covered are group"),
        (
            "FP8",
            groups(type="float", num_bits=8, symmetric=False),
            f"{GROUP}.weights.symmetric=False: covered are True",
        ),
        ("W4A16", {"transform_config": {"a": 1}}, "quantization_config.transform_config"),
        ("W4A16", {"sparsity_config": {"format": "sparse-24"}}, "quantization_config.sparsity"),
        ("fp8 in blocks", {"fmt": "e5m2"}, "quantization_config.fmt='e5m2': covered are e4m3"),
        ("nf4", {"bnb_4bit_quant_type": "int4"}, "bnb_4bit_quant_type='int4': covered are nf4"),
    ],
)
def test_what_is_not_covered_is_named(name: str, fields: dict[str, Any], match: str) -> None:
    with pytest.raises(UnsupportedModelError, match=re.escape(match)):
        read(name, **fields)


@pytest.mark.parametrize(
    ("name", "fields", "match"),
    [
        ("gptq", {"quant_method": None}, "quant_method=None"),
        ("gptq", {"bits": "4"}, "quantization_config.bits='4'"),
        ("gptq", {"group_size": 0}, "group_size=0: must be at least 1, or -1"),
        ("gptq", {"sym": 1}, "quantization_config.sym=1"),
        ("awq", {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert='lm_head'"),
        ("W4A16", {"config_groups": {}}, "quantization_config.config_groups=None"),
        ("W4A16", {"config_groups": {"group_0": {}}}, f"{GROUP[:-8]}.group_0={{}}"),
        (
            "fp8 in blocks",
            {"weight_block_size": [128, 0]},
            "weight_block_size=[128, 0]: must",
        ),
        ("fp8 in blocks", {"weight_block_size": [1, 2, 3]}, "weight_block_size=[1, 2, 3]: must be"),
        (
            "FP8",
            groups(type="float", num_bits=8, block_structure=[1, 2, 3]),
            f"{GROUP}.weights.block_structure=[1, 2, 3]: must be two",
        ),
        ("W4A16", groups(strategy="group"), f"{GROUP}.weights.group_size=None: must be at least 1"),
        ("W4A16", groups(group_size=0), f"{GROUP}.weights.group_size=0: must be at least 1"),
        ("W4A16", groups(strategy="block"), f"{GROUP}.weights.block_structure=None: the model's"),
        ("nf4", {"load_in_4bit": False}, "load_in_4bit=False: must be true"),
    ],
)
def test_a_field_that_is_wrong_is_named(name: str, fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ModelError, match=re.escape(match)):
        read(name, **fields)


def without(kind: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name != kind}


def changed(kind: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Tensors]:
    return lambda tensors: {**tensors, kind: change(tensors[kind])}


def filled(kind: str, value: float) -> Callable[[Tensors], Tensors]:
    """With one number that is another one."""

    def fill(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[-1] = value
        return tensor

    return changed(kind, fill)


STATE = "weight.quant_state.bitsandbytes__nf4"


def added(
    kind: str, shape: tuple[int, ...], value: int, dtype: torch.dtype
) -> Callable[..., Tensors]:
    return lambda tensors: {**tensors, kind: torch.full(shape, value, dtype=dtype)}


def state(**fields: Any) -> Callable[[Tensors], Tensors]:
    import json

    def edit(tensor: torch.Tensor) -> torch.Tensor:
        values = {**json.loads(tensor.numpy().tobytes()), **fields}
        return torch.from_numpy(np.frombuffer(json.dumps(values).encode(), np.uint8).copy())

    return changed(STATE, edit)


@pytest.mark.parametrize(
    ("name", "edit", "match"),
    [
        ("gptq", without("scales"), "a.layer.scales=None: the files lack this tensor"),
        (
            "gptq in order of activations",
            without("g_idx"),
            "a.layer.g_idx=None: the files lack this tensor",
        ),
        ("gptq", without("qweight"), "a.layer.qweight=None: the files lack"),
        ("gptq", without("qzeros"), "a.layer.qzeros=None: the files lack"),
        ("gptq", changed("qweight", lambda x: x[0]), "a.layer.qweight=(64,): must have 2 dim"),
        ("gptq", changed("scales", lambda x: x[:1]), "scales=(1, 64): its shape must be (2, 64)"),
        ("gptq", changed("scales", lambda x: x.int()), "a.layer.scales dtype='I32': must be F16"),
        ("gptq", changed("qzeros", lambda x: x.T), "a.layer.qzeros=(8, 2): its shape must be"),
        ("gptq", filled("g_idx", 2), "a.layer.g_idx=2: must name groups, 0 to 1"),
        ("gptq", filled("g_idx", -1), "a.layer.g_idx=-1: must name groups, 0 to 1"),
        ("gptq", filled("scales", np.inf), "a.layer.scales=inf: a scale must be finite"),
        ("gptq symmetric", filled("qzeros", 0), "qzeros=1: must be 8 where the config says sym"),
        ("awq", changed("qzeros", lambda x: x[:, 1:]), "a.layer.qzeros=(2, 7): its shape"),
        ("awq", filled("scales", np.nan), "a.layer.scales=nan: a scale must be finite"),
        ("W4A16", without("weight_shape"), "a.layer.weight_shape=None: the files lack"),
        (
            "W4A16",
            filled("weight_shape", 512),
            "weight_packed=(64, 32): must hold int4 for",
        ),
        ("W4A16", changed("weight_scale", lambda x: x[1:]), "a.layer.weight_scale=(63, 2): must"),
        ("W4A16", filled("weight_scale", -9e37), "a.layer.weight_scale=-8.9"),
        (
            "W8A8 with zero points",
            changed("weight_zero_point", lambda x: x[1:]),
            "a.layer.weight_zero_point=(63, 1): there must be one for each scale, (64, 1)",
        ),
        (
            "W4A16 with zero points",
            without("weight_zero_point"),
            "a.layer.weight_zero_point=None: the files lack this tensor",
        ),
        (
            "W8A8 with zero points",
            without("weight_zero_point"),
            "a.layer.weight_zero_point=None: the files lack this tensor",
        ),
        (
            "W4A16",
            added("weight_zero_point", (8, 2), 0x18888888, torch.int32),
            "a.layer.weight_zero_point=-7: must be 0 where the config says symmetric",
        ),
        (
            "W4A16",
            added("weight_zero_point", (64, 2), 127, torch.int8),
            "a.layer.weight_zero_point=127: must be 0 where the config says symmetric",
        ),
        (
            "W8A8",
            added("weight_zero_point", (64, 1), -128, torch.int8),
            "a.layer.weight_zero_point=-128: must be 0 where the config says symmetric",
        ),
        (
            "W8A8 in order of activations",
            without("weight_g_idx"),
            "a.layer.weight_g_idx=None: the files lack this tensor",
        ),
        (
            "FP8 in order of activations",
            without("weight_g_idx"),
            "a.layer.weight_g_idx=None: the files lack this tensor",
        ),
        (
            "W8A8 in order of activations",
            filled("weight_g_idx", 8),
            "a.layer.weight_g_idx=8: must name groups, 0 to 7",
        ),
        (
            "FP8 in order of activations",
            changed("weight_g_idx", lambda x: x[1:]),
            "a.layer.weight_g_idx=(255,): its shape must be (256,)",
        ),
        ("W8A8", changed("weight", lambda x: x.float()), "a.layer.weight dtype='F32': must be I8"),
        ("fp8 in blocks", without("weight_scale_inv"), "weight_scale_inv=None: the files lack"),
        ("fp8 in blocks", changed("weight_scale_inv", lambda x: x[:, :0]), "must not be empty"),
        ("fp8 by rows", filled("weight_scale", -np.inf), "a.layer.weight_scale=-inf: a scale must"),
        ("fp8 by rows", filled("weight", np.nan), "all of it must be numbers, but some is NaN"),
        ("nf4", without("weight.absmax"), "a.layer.weight.absmax=None: the files lack"),
        ("nf4", without(STATE), f"a.layer.{STATE}=None: the files lack this tensor"),
        ("nf4", state(shape=[64, 128]), "a.layer.weight=(8192, 1): must hold (64, 128) of 4"),
        ("nf4", state(shape=[64, 256, 1]), f"a.layer.{STATE}.shape=[64, 256, 1]: must be two"),
        ("nf4", state(quant_type="fp4"), f"a.layer.{STATE}.quant_type='fp4': the config says nf4"),
        ("nf4", state(blocksize=0), f"a.layer.{STATE}.blocksize=0"),
        ("nf4", filled("weight.quant_map", 2), "weight.quant_map='nf4': must be the table of nf4"),
        ("nf4 twice", state(nested_offset="1"), f"a.layer.{STATE}.nested_offset='1'"),
        ("nf4", filled("weight.absmax", np.nan), "a.layer.weight.absmax=nan: a scale must"),
        ("nf4 twice", filled("weight.nested_absmax", np.nan), "weight.nested_absmax=nan: a scale"),
        ("LLM.int8", filled("SCB", np.inf), "a.layer.SCB=inf: a scale must be finite"),
        ("nf4 twice", without("weight.nested_quant_map"), "nested_quant_map=None: the files lack"),
        ("LLM.int8", filled("weight_format", 1), "a.layer.weight_format=1: must be 0"),
        ("LLM.int8", changed("SCB", lambda x: x[1:]), "a.layer.SCB=(63,): its shape must be (64,)"),
    ],
)
def test_a_layer_whose_tensors_do_not_go_together_is_named(
    name: str, edit: Callable[[Tensors], Tensors], match: str
) -> None:
    stored = SCHEMES[name]
    tensors, _ = stored.layer(np.random.default_rng(1), 64, 256)
    with pytest.raises(ModelError, match=re.escape(match)):
        matrix_of(edit(tensors), stored.section).values(0, 64)


SAID = {
    "num_bits": (
        "W4A16",
        {"num_bits": 8},
        "a.layer.weight_packed=(64, 48): must hold int8 for the shape (64, 384), as the config",
    ),
    "float": (
        "W4A16",
        {"num_bits": 8, "type": "float"},
        "a.layer.weight_packed=(64, 48): must hold e4m3 for the shape (64, 384), as the config",
    ),
    "type": ("FP8", {"type": "int"}, "a.layer.weight dtype='F8_E4M3': must be I8"),
    "other type": ("W8A8", {"type": "float"}, "a.layer.weight dtype='I8': must be F8_E4M3"),
    "longer groups": (
        "W4A16",
        {"group_size": 256},
        "a.layer.weight_scale=(64, 3): must be (64, 2) for (1, 256) rows and columns of (64, 384)",
    ),
    "channel": (
        "W4A16",
        {"strategy": "channel", "group_size": None},
        "a.layer.weight_scale=(64, 3): must be (64, 1) for (1, 384) rows and columns of (64, 384)",
    ),
    "group": (
        "W8A8",
        {"strategy": "group", "group_size": 128},
        "a.layer.weight_scale=(64, 1): must be (64, 3) for (1, 128) rows and columns of (64, 384)",
    ),
    "tensor": ("FP8", {"strategy": "tensor"}, "a.layer.weight_scale=(64, 1): must be (1, 1) for"),
    "block": (
        "FP8",
        {"strategy": "block", "block_structure": [32, 128]},
        "a.layer.weight_scale=(64, 1): must be (2, 3) for (32, 128) rows and columns of (64, 384)",
    ),
}


def weights_of(name: str) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = SCHEMES[name].section["config_groups"]["group_0"]["weights"]
    return fields


@pytest.mark.parametrize("case", SAID)
def test_a_layer_that_is_not_as_the_config_says_is_named(case: str) -> None:
    name, fields, match = SAID[case]
    tensors, _ = SCHEMES[name].layer(np.random.default_rng(1), 64, 384)
    with pytest.raises(ModelError, match=re.escape(match)):
        matrix_of(tensors, compressed({**weights_of(name), **fields}))


def test_scales_of_blocks_are_not_those_of_rows() -> None:
    stored = SCHEMES["fp8 by rows"]
    tensors, _ = stored.layer(np.random.default_rng(1), 64, 256)
    match = "a.layer.weight_scale=(64, 1): must be (1, 2) for (64, 128) rows and columns"
    with pytest.raises(ModelError, match=re.escape(match)):
        matrix_of(tensors, SCHEMES["fp8 in blocks"].section)


def test_a_code_of_four_bits_is_the_configs() -> None:
    tensors, _ = SCHEMES["fp4"].layer(np.random.default_rng(1), 64, 256)
    match = "a.layer.weight.quant_state.bitsandbytes__fp4='fp4': the config says nf4"
    with pytest.raises(ModelError, match=match):
        matrix_of(tensors, SCHEMES["nf4"].section)
