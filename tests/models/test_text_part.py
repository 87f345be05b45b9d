"""The language model of checkpoints that see: by both forms of names, and nothing else taken."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import CASES, SEEING, SIZES, Case, write_checkpoint
from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import ModelFiles, locate
from pagoda.models.registry import decoder_spec, language_tensors
from quantised_checkpoints import (
    SCHEMES,
    Stored,
    dequantised,
    edit_config,
    edit_tensors,
    quantised,
)
from quantised_layers import Tensors

FORMS = {
    "before transformers 5": {
        "model.language_model.": "language_model.model.",
        "model.vision_tower.": "vision_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
        "lm_head.": "language_model.lm_head.",
    },
    "transformers 5": {},
}


def in_form(name: str, form: str) -> str:
    """The name of a tensor of transformers 5 in a form of files."""
    for beginning, other in FORMS[form].items():
        if name.startswith(beginning):
            return other + name.removeprefix(beginning)
    return name


def in_transformers_5(name: str) -> str:
    for other, beginning in FORMS["before transformers 5"].items():
        if name.startswith(beginning):
            return other + name.removeprefix(beginning)
    return name


def write_form(directory: Path, case: str, form: str) -> ModelFiles:
    """A checkpoint of a case whose tensors are called as in a form."""
    write_checkpoint(directory, CASES[case], tokenizer=False)
    path = directory / "model.safetensors"
    tensors = {in_transformers_5(name): tensor for name, tensor in load_file(path).items()}
    assert any(name.startswith("model.vision_tower.") for name in tensors)
    save_file({in_form(name, form): tensor for name, tensor in tensors.items()}, path)
    return locate(str(directory))


@pytest.mark.parametrize("case", ["gemma3-seeing", "mistral3-seeing", "mistral3-tied"])
def test_both_forms_of_names_give_the_same_weights(case: str, tmp_path: Path) -> None:
    loaded = []
    for number, form in enumerate(FORMS):
        files = write_form(tmp_path / str(number), case, form)
        loaded.append(load_weights(files, load_spec(files), "float32"))
    first, second = loaded
    assert torch.equal(first.embedding, second.embedding)
    assert torch.equal(first.lm_head, second.lm_head)
    assert (first.lm_head is first.embedding) == (case != "mistral3-seeing")
    assert torch.equal(first.layers[3].qkv, second.layers[3].qkv)


@pytest.mark.parametrize("form", FORMS)
def test_a_tensor_that_is_neither_of_the_text_nor_of_a_tower_is_refused(
    form: str, tmp_path: Path
) -> None:
    files = write_form(tmp_path, "gemma3-seeing", form)
    path = tmp_path / "model.safetensors"
    save_file({**load_file(path), "model.audio_tower.weight": torch.ones(2)}, path)
    with pytest.raises(ModelError, match="has no such tensor") as refused:
        load_weights(files, load_spec(files), "float32")
    assert refused.value.field == "model.audio_tower.weight"


def test_a_checkpoint_of_a_language_model_alone_keeps_its_names() -> None:
    tensors = {"model.vision_tower.weight": 1, "model.norm.weight": 2}
    config = ModelConfig({"architectures": ["Gemma3ForCausalLM"]})
    assert language_tensors(config, tensors) == tensors


def seeing(**fields: object) -> ModelConfig:
    text = {**SIZES, "model_type": "mistral", **fields}
    own = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
    return ModelConfig({**own, **SEEING["mistral3"]})


def test_another_language_model_is_refused_by_name() -> None:
    limit = "text_config.model_type='ministral3': covered is mistral"
    with pytest.raises(UnsupportedModelError, match=re.escape(limit)):
        decoder_spec(seeing(model_type="ministral3"))


def test_a_field_of_the_section_is_named_with_it() -> None:
    with pytest.raises(ModelError, match="must divide") as refused:
        decoder_spec(seeing(num_key_value_heads=3))
    assert refused.value.field == "text_config.num_key_value_heads"


def test_a_config_of_gemma_3_may_leave_out_what_is_as_in_the_one_of_4b() -> None:
    """The sizes that google/gemma-3-4b-it names, and no others."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }
    own = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    spec = decoder_spec(ModelConfig({**own, "text_config": text, "torch_dtype": "bfloat16"}))
    attention = spec.layers[5].attention
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (8, 4, 256)
    assert [layer.attention.sliding_window for layer in spec.layers[:7]] == [
        *[1024] * 5, None, 1024
    ]  # fmt: skip
    assert (spec.vocab_size, spec.dtype, spec.tie_word_embeddings) == (262_208, "bfloat16", True)


@pytest.mark.parametrize("scheme", ["awq", "LLM.int8"])
def test_a_language_model_that_is_quantised_is_read_as_the_plain_one(
    scheme: str, tmp_path: Path
) -> None:
    """Its towers stay plain, as schemes leave them in published checkpoints."""
    given, stored = CASES["gemma3-seeing"], SCHEMES[scheme]
    wider = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 1}
    case = Case(given.family, {**given.config, **wider, "layer_types": ["full_attention"]})
    loaded = []
    for name, made in (("quantised", quantised), ("plain", dequantised)):
        path = write_checkpoint(tmp_path / name, case, dtype=torch.bfloat16, tokenizer=False)
        edit_tensors(path, lambda tensors, made=made: of_text(tensors, made, stored))
        if name == "quantised":
            edit_config(path, quantization_config=stored.section)
        files = locate(str(path))
        loaded.append(load_weights(files, load_spec(files), "bfloat16"))
    first, second = (weights.layers[0] for weights in loaded)
    assert torch.equal(first.qkv, second.qkv)
    assert torch.equal(first.gate_up, second.gate_up)
    assert torch.equal(first.down, second.down)


def of_text(
    tensors: Tensors, made: Callable[[Tensors, Stored], Tensors], stored: Stored
) -> Tensors:
    """The tensors, those of the language model's layers under a scheme or as that reads."""
    text = {name: tensor for name, tensor in tensors.items() if "language_model." in name}
    return {name: tensor for name, tensor in tensors.items() if name not in text} | made(
        text, stored
    )
