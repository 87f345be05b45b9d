"""Quantised checkpoints of safetensors answer as their de-quantised models do, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_stored_weights import answers, load, make, wide

from checkpoints import write_checkpoint
from pagoda.errors import InvalidOptionError, ModelError
from pagoda.kernels.block_types import BLOCK_TYPES, PANEL, panel_bytes
from quantised_checkpoints import SCHEMES, write_dequantised, write_quantised

SOME = ("gptq", "awq", "W4A16", "W8A8 with zero points", "fp8 in blocks", "nf4 twice")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Biases, and rows of k and v that fill no more than a panel or two."""
    folder = tmp_path_factory.mktemp("plain") / "a"
    return write_checkpoint(folder, wide("qwen2"), dtype=torch.bfloat16)


@pytest.mark.parametrize("name", SOME)
def test_answers_are_those_of_the_plain_model(name: str, plain: Path, tmp_path: Path) -> None:
    path = write_quantised(tmp_path / "quantised", name, plain)
    expected = answers(make(write_dequantised(tmp_path / "plain", name, plain)))
    assert answers(make(path)) == expected
    assert answers(make(path, max_num_batched_tokens=7, threads=1)) == expected
    assert answers(make(path, "none")) == expected


@pytest.mark.parametrize("name", ["gptq in order of activations", "fp4"])
def test_what_cannot_stay_is_de_quantised(name: str, plain: Path, tmp_path: Path) -> None:
    options = {"dtype": "float32"} if name == "fp4" else {}
    model = load(write_quantised(tmp_path / "quantised", name, plain), **options)
    assert model.held.kept == ()
    assert model.held.converted == ("BF16", SCHEMES[name].type)[-1:]
    assert model.weights.layers[0].o.nbytes == 256 * 256 * model.weights.dtype.itemsize


@pytest.mark.parametrize("name", SOME)
def test_matrices_take_the_bytes_of_their_blocks(name: str, plain: Path, tmp_path: Path) -> None:
    model = load(write_quantised(tmp_path / "quantised", name, plain))
    kind, layer = SCHEMES[name].type, model.weights.layers[0]
    assert kind in BLOCK_TYPES
    assert layer.qkv.nbytes == (256 + 2 * 128) // PANEL * panel_bytes(kind, 256)
    assert layer.down.nbytes == 256 // PANEL * panel_bytes(kind, 512)
    assert str(model.held).endswith(f": {kind} as stored")


def test_activations_may_be_rounded_for_whole_codes(plain: Path, tmp_path: Path) -> None:
    path = write_quantised(tmp_path / "a", "gptq 8 bits", plain)
    exact, rounded = (answers(make(path, activation_dtype=kind)) for kind in ("auto", "int8"))
    assert rounded != exact
    assert [len(tokens) for tokens, _, _ in rounded] == [len(tokens) for tokens, _, _ in exact]


def test_activations_are_not_rounded_where_codes_are_floats(plain: Path, tmp_path: Path) -> None:
    path = write_quantised(tmp_path / "a", "nf4", plain)
    with pytest.raises(InvalidOptionError, match="activation_dtype='int8'"):
        load(path, activation_dtype="int8")


def test_a_config_that_says_nothing_of_quantised_tensors_is_told_so(
    plain: Path, tmp_path: Path
) -> None:
    path = write_quantised(tmp_path / "a", "gptq", plain)
    config = json.loads((path / "config.json").read_text())
    del config["quantization_config"]
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"config.json has no quantization_config"):
        load(path)
