"""Sections `quantization_config`, and tensors of layers, that are refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.quantization import read_quantization
from quantised_checkpoints import SCHEMES, Tensors, matrix_of

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
        ("fp8 in blocks", {"weight_block_size": [128, 0]}, "weight_block_size=(128, 0)"),
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
        ("W4A16", filled("weight_shape", 512), "a.layer.weight_packed=(64, 32): must hold codes"),
        ("W4A16", changed("weight_scale", lambda x: x[1:]), "a.layer.weight_scale=(63, 2): must"),
        ("W4A16", filled("weight_scale", -9e37), "a.layer.weight_scale=-8.9"),
        (
            "W8A8 with zero points",
            changed("weight_zero_point", lambda x: x[1:]),
            "a.layer.weight_zero_point=(63, 1): there must be one for each scale, (64, 1)",
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
