"""What the metadata of a GGUF file says about the model."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import CASES, build_model, write_checkpoint
from gguf_files import write_gguf
from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.decoder import DecoderSpec
from pagoda.models.gguf_architectures import GGUF_ARCHITECTURES
from pagoda.models.gguf_rope import ROPE_FACTORS
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate


def spec_of(tmp_path: Path, name: str = "llama-gqa", **options: Any) -> DecoderSpec:
    path = write_gguf(tmp_path / "tiny.gguf", build_model(CASES[name]), **options)
    return load_spec(locate(str(path)))


def inv_freq(spec: DecoderSpec) -> tuple[float, ...]:
    rope = spec.layers[0].attention.rope
    assert rope is not None
    return rope.inv_freq


COVERED = [
    "llama-mha",
    "llama-tied",
    "llama-mlp-bias",
    "llama-head-dim",
    "qwen2",
    "qwen2-tied",
    "qwen3",
    "smollm3",
    "smollm3-untied",
]


@pytest.mark.parametrize("name", COVERED)
def test_a_file_describes_the_model_it_was_made_of(name, tmp_path):
    reference = load_spec(locate(str(write_checkpoint(tmp_path / "hf", CASES[name]))))
    spec = spec_of(tmp_path, name)
    assert spec.norm.eps == pytest.approx(reference.norm.eps, rel=1e-6)
    for field in DecoderSpec.__dataclass_fields__:
        if field != "norm":
            assert getattr(spec, field) == getattr(reference, field)


def test_a_llama_file_with_a_sliding_window_is_mistral(tmp_path):
    spec = spec_of(tmp_path, "mistral", metadata={"attention.sliding_window": 8})
    assert spec.architecture == "MistralForCausalLM"
    assert [layer.attention.sliding_window for layer in spec.layers] == [8] * 4


def test_the_factors_of_llama3_divide_the_angles(tmp_path):
    reference = load_spec(locate(str(write_checkpoint(tmp_path / "hf", CASES["llama-llama3"]))))
    plain = spec_of(tmp_path)
    factors = np.divide(inv_freq(plain), inv_freq(reference)).astype(np.float32)
    files = locate(
        str(
            write_gguf(
                tmp_path / "llama3.gguf",
                build_model(CASES["llama-llama3"]),
                extra_tensors={ROPE_FACTORS: factors},
            )
        )
    )
    spec = load_spec(files)
    np.testing.assert_allclose(inv_freq(spec), inv_freq(reference), rtol=1e-6)
    assert load_weights(files, spec, "float32").embedding.shape == (288, 64)


def test_linear_and_yarn_scaling_are_read(tmp_path):
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
    yarn = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
    }
    for name, metadata in (("llama-linear", linear), ("llama-yarn", yarn)):
        reference = load_spec(locate(str(write_checkpoint(tmp_path / name, CASES[name]))))
        spec = spec_of(tmp_path, metadata=metadata)
        assert spec.layers[0].attention.rope == reference.layers[0].attention.rope
        assert spec.max_position_embeddings == reference.max_position_embeddings


def test_yarn_takes_its_own_factor_and_ramp(tmp_path):
    metadata = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
    }
    plain = spec_of(tmp_path, metadata=metadata)
    own = {"rope.scaling.yarn_attn_factor": 1.5, "rope.scaling.yarn_beta_slow": 0.25}
    changed = spec_of(tmp_path, metadata={**metadata, **own})
    rope = changed.layers[0].attention.rope
    assert rope is not None
    assert rope.attention_factor == 1.5
    assert rope.inv_freq != inv_freq(plain)


def test_without_a_key_length_the_head_size_is_derived(tmp_path):
    for name in ("llama-gqa", "qwen2"):
        spec = spec_of(tmp_path, name, without=("attention.key_length",))
        assert spec.layers[0].attention.head_dim == 16


def test_without_a_rope_base_it_is_ten_thousand(tmp_path):
    spec = spec_of(tmp_path, "smollm3", without=("rope.freq_base",))
    assert inv_freq(spec)[1] == pytest.approx(10_000 ** (-2 / 16))


def test_a_number_for_each_layer_is_taken_where_all_are_the_same(tmp_path):
    spec = spec_of(tmp_path, metadata={"attention.head_count_kv": [2, 2, 2, 2]})
    assert spec.layers[0].attention.num_kv_heads == 2
    with pytest.raises(UnsupportedModelError, match="layers that differ in this are not covered"):
        spec_of(tmp_path, metadata={"attention.head_count_kv": [2, 2, 1, 2]})


@pytest.mark.parametrize(
    "key",
    [
        "embedding_length",
        "feed_forward_length",
        "block_count",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
        "context_length",
    ],
)
def test_a_key_that_is_missing_is_named(key, tmp_path):
    with pytest.raises(ModelError, match=re.escape(f"llama.{key}=None: the file's metadata lacks")):
        spec_of(tmp_path, without=(key,))


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({"rope.freq_base": math.nan}, "llama.rope.freq_base=nan: must be a number above 1"),
        ({"rope.freq_base_swa": math.nan}, "llama.rope.freq_base_swa=nan: this feature is not"),
        (
            {"embedding_length": 4_000_000_000},
            "llama.embedding_length=4000000000: must be 64, as of token_embd.weight",
        ),
        (
            {"attention.head_count": 4_000_000_000},
            "llama.attention.head_count=4000000000: must divide embedding_length, 64",
        ),
        ({"attention.head_count": 5}, "llama.attention.head_count=5: must divide"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_own_key(metadata, match, tmp_path):
    own = {"attention.key_length": None, "rope.dimension_count": 16, **metadata}
    with pytest.raises(ModelError, match=re.escape(match)):
        spec_of(tmp_path, metadata=own)


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({"general.architecture": "gpt2"}, "general.architecture='gpt2': covered are"),
        (
            {"leading_dense_block_count": 1},
            "llama.leading_dense_block_count=1: this",
        ),
        ({"logit_scale": 0.5}, "llama.logit_scale=0.5"),
        ({"attention.value_length": 32}, "llama.attention.value_length=32"),
        ({"rope.dimension_count": 8}, "llama.rope.dimension_count=8: only the head size, 16"),
        ({"rope.scaling.type": "su"}, "rope_type='su': covered are"),
        ({"rope.scaling.attn_factor": 1.25}, "llama.rope.scaling.attn_factor=1.25"),
        ({"split.count": 3}, "split.count=3: merge the parts"),
    ],
)
def test_what_is_not_covered_is_refused_by_its_key(metadata, match, tmp_path):
    with pytest.raises(UnsupportedModelError, match=re.escape(match)):
        spec_of(tmp_path, metadata=metadata)


def test_the_refusal_lists_what_is_covered(tmp_path):
    with pytest.raises(UnsupportedModelError) as caught:
        spec_of(tmp_path, metadata={"general.architecture": "bert"})
    for name in GGUF_ARCHITECTURES:
        assert name in caught.value.limit


def test_factors_together_with_a_scaling_are_refused(tmp_path):
    with pytest.raises(UnsupportedModelError, match="not covered together with rope_freqs"):
        spec_of(
            tmp_path,
            metadata={"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
            extra_tensors={ROPE_FACTORS: np.ones(8, dtype=np.float32)},
        )


def test_a_file_without_the_embedding_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"token_embd\.weight=None: the file lacks this matrix"):
        spec_of(tmp_path, without=("token_embd.weight",))


def test_a_file_that_lacks_a_layers_tensor_is_refused_before_reading(tmp_path):
    path = write_gguf(
        tmp_path / "tiny.gguf", build_model(CASES["llama-gqa"]), without=("blk.3.ffn_up.weight",)
    )
    files = locate(str(path))
    with pytest.raises(ModelError, match=r"blk\.3\.ffn_up\.weight=None: the files lack"):
        load_weights(files, load_spec(files), "float32")


def test_a_file_with_a_layer_too_many_is_refused(tmp_path):
    model = build_model(CASES["llama-gqa"])
    files = locate(str(write_gguf(tmp_path / "tiny.gguf", model, metadata={"block_count": 3})))
    with pytest.raises(ModelError, match=r"blk\.3\.attn_k\.weight="):
        load_weights(files, load_spec(files), "float32")
