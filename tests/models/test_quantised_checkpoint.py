"""Quantised checkpoints of safetensors: every number is the one that the scheme says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from checkpoints import CASES, Case, write_checkpoint
from pagoda.errors import ModelError
from pagoda.models.load import FORMATS, load_spec, load_weights
from pagoda.models.locate import ModelFiles
from pagoda.models.part import Part
from pagoda.models.weights import TensorSource
from quantised_checkpoints import (
    SCHEMES,
    compressed,
    edit_tensors,
    matrix_of,
    write_dequantised,
    write_quantised,
)
from quantised_layers import float8

WEIGHTS = {"num_bits": 4, "strategy": "group", "group_size": 128}
SIZES = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 1}


def source(directory: Path) -> TensorSource:
    return FORMATS["directory"].source(ModelFiles("directory", directory, "a model"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = CASES["qwen2"]
    case = Case(given.family, {**given.config, **SIZES})
    return write_checkpoint(tmp_path_factory.mktemp("plain") / "a", case, dtype=torch.bfloat16)


@pytest.mark.parametrize("name", ["gptq", "awq", "W4A16", "fp8 in blocks", "nf4", "LLM.int8"])
def test_a_checkpoint_reads_like_a_plain_one(name: str, plain: Path, tmp_path: Path) -> None:
    checkpoint = source(write_quantised(tmp_path / "quantised", name, plain))
    expected = load_file(write_dequantised(tmp_path / "plain", name, plain) / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    assert shapes == dict(checkpoint.shapes)
    for tensor_name, tensor in expected.items():
        target = torch.empty(tensor.shape, dtype=torch.bfloat16)
        checkpoint.read(Part(tensor_name, tuple(tensor.shape)), target)
        assert torch.equal(target, tensor)


@pytest.mark.parametrize("name", SCHEMES)
def test_every_number_is_scale_times_code_less_zero_point(name: str) -> None:
    stored = SCHEMES[name]
    tensors, weight = stored.layer(np.random.default_rng(1), 96, 384)
    matrix = matrix_of(tensors, stored.section)
    assert (matrix.shape, matrix.type) == ((96, 384), stored.type)
    assert np.array_equal(matrix.values(32, 64), weight[32:].numpy())
    assert matrix.nbytes == sum(tensor.nbytes for tensor in tensors.values())


def test_biases_of_zeros_that_a_model_does_not_have_are_spared(tmp_path: Path) -> None:
    case = Case("llama", SIZES)
    plain = write_checkpoint(tmp_path / "plain", case, dtype=torch.bfloat16)
    path = write_quantised(tmp_path / "quantised", "gptq", plain)
    module = "model.layers.0.self_attn.q_proj"

    def load(value: float) -> object:
        bias = {f"{module}.bias": torch.full((256,), value)}
        edit_tensors(path, lambda tensors: {**tensors, **bias})
        files = ModelFiles("directory", path, "a model")
        return load_weights(files, load_spec(files), "bfloat16").layers[0].qkv_bias

    assert load(0) is None
    with pytest.raises(ModelError, match=f"{module}.bias=.*has no such tensor"):
        load(1)


def test_a_layer_may_stay_plain(plain: Path, tmp_path: Path) -> None:
    path = write_quantised(tmp_path / "quantised", "awq", plain)
    name = "model.layers.0.self_attn.v_proj"
    own = {f"{name}.weight": load_file(plain / "model.safetensors")[f"{name}.weight"]}
    packed = {f"{name}.{kind}" for kind in ("qweight", "qzeros", "scales")}
    edit_tensors(path, lambda tensors: {k: t for k, t in tensors.items() if k not in packed} | own)
    plain_shape = tuple(own[f"{name}.weight"].shape)
    found = source(path).stored(Part(f"{name}.weight", plain_shape))
    assert found is not None
    assert found.type == "BF16"
    target = torch.empty(found.shape, dtype=torch.bfloat16)
    found.read(target)
    assert torch.equal(target, own[f"{name}.weight"])


def test_zero_points_of_the_first_form_borrow_from_each_other() -> None:
    stored = SCHEMES["gptq"]
    tensors, _ = stored.layer(np.random.default_rng(1), 64, 128)
    zeros = torch.zeros((1, 8), dtype=torch.int32)  # less one in every four bits
    tensors |= {"qweight": torch.full_like(tensors["qweight"], 0x11111111)}
    tensors |= {"qzeros": zeros - 0x11111111}
    values = matrix_of(tensors, stored.section).values(0, 64)
    assert np.array_equal(values, tensors["scales"].float().numpy().T.repeat(128, axis=1))


def test_four_bits_may_be_stored_as_any_dtype() -> None:
    stored = SCHEMES["nf4"]
    tensors, weight = stored.layer(np.random.default_rng(1), 64, 128)
    tensors["weight"] = tensors["weight"].view(-1).view(torch.bfloat16)[:, None]
    assert np.array_equal(matrix_of(tensors, stored.section).values(0, 64), weight.numpy())


@pytest.mark.parametrize("name", ["W4A16", "W8A8", "FP8"])
def test_groups_that_were_never_set_follow_each_other(name: str) -> None:
    stored = SCHEMES[name]
    tensors, weight = stored.layer(np.random.default_rng(1), 64, 256)
    tensors["weight_g_idx"] = torch.full((256,), -1, dtype=torch.int32)
    matrix = matrix_of(tensors, stored.section)
    assert matrix.type == stored.type
    assert np.array_equal(matrix.values(0, 64), weight.numpy())


@pytest.mark.parametrize("name", ["gptq in order of activations", "gptq"])
def test_one_group_needs_no_order(name: str) -> None:
    stored = SCHEMES[name]
    tensors, weight = stored.layer(np.random.default_rng(1), 64, 128)
    del tensors["g_idx"]
    matrix = matrix_of(tensors, stored.section)
    assert np.array_equal(matrix.values(0, 64), weight.numpy())


@pytest.mark.parametrize("order", [None, False, "weight", "static"])
def test_an_order_that_does_not_mix_groups_needs_no_tensor(order: object) -> None:
    tensors, weight = SCHEMES["W4A16"].layer(np.random.default_rng(1), 64, 256)
    section = compressed({**WEIGHTS, "actorder": order})
    assert np.array_equal(matrix_of(tensors, section).values(0, 64), weight.numpy())


@pytest.mark.parametrize(
    "zeros",
    [torch.full((8, 2), -0x77777778, dtype=torch.int32), torch.zeros((64, 2), dtype=torch.int8)],
    ids=["words", "bytes"],
)
def test_zero_points_of_zero_say_what_symmetric_says(zeros: torch.Tensor) -> None:
    stored = SCHEMES["W4A16"]
    tensors, weight = stored.layer(np.random.default_rng(1), 64, 256)
    matrix = matrix_of({**tensors, "weight_zero_point": zeros}, stored.section)
    assert matrix.type == stored.type
    assert np.array_equal(matrix.values(0, 64), weight.numpy())


def test_the_last_group_of_a_row_may_be_shorter() -> None:
    """384 columns in groups of 256: the second scale is of 128 of them."""
    tensors, _ = SCHEMES["W4A16"].layer(np.random.default_rng(1), 64, 384)
    tensors["weight_scale"] = tensors["weight_scale"][:, [0, 0, 2]]
    expected = matrix_of(tensors, compressed(WEIGHTS)).values(0, 64)
    tensors["weight_scale"] = tensors["weight_scale"][:, [0, 2]]
    matrix = matrix_of(tensors, compressed({**WEIGHTS, "group_size": 256}))
    assert np.array_equal(matrix.values(0, 64), expected)


def test_a_group_longer_than_any_row_is_the_row() -> None:
    stored = SCHEMES["gptq 8 bits symmetric"]
    tensors, weight = stored.layer(np.random.default_rng(1), 64, 256)
    matrix = matrix_of(tensors, {**stored.section, "group_size": 2**50})
    assert np.array_equal(matrix.values(0, 64), weight.numpy())
    expected = matrix_of(tensors, stored.section).blocks(0, 64)
    assert np.array_equal(matrix.blocks(0, 64), expected)


@pytest.mark.parametrize("strategy", ["tensor", "block"])
def test_scales_of_float8_are_as_the_config_says(strategy: str) -> None:
    block = [128, 64] if strategy == "block" else [0, 0]
    layer = float8("weight_scale", *block, dtype=torch.bfloat16)
    tensors, weight = layer(np.random.default_rng(1), 192, 256)
    said = {"type": "float", "num_bits": 8, "strategy": strategy}
    section = compressed({**said, "block_structure": block if strategy == "block" else None})
    assert np.array_equal(matrix_of(tensors, section).values(0, 192), weight.numpy())


@pytest.mark.parametrize("name", ["W4A16", "W8A16 with zero points", "W8A8", "FP8"])
def test_a_layer_is_of_one_of_the_configs_groups(name: str) -> None:
    stored = SCHEMES[name]
    tensors, weight = stored.layer(np.random.default_rng(1), 64, 256)
    said = stored.section["config_groups"]["group_0"]["weights"]
    other = {"num_bits": 4, "strategy": "group", "group_size": 64, "symmetric": False}
    for groups in ((other, said), (said, other)):
        matrix = matrix_of(tensors, compressed(*groups))
        assert matrix.type == stored.type
        assert np.array_equal(matrix.values(0, 64), weight.numpy())
