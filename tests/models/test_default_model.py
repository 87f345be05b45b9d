"""The model that is served where none is named."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pagoda.models.gguf import GGUFFile
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.tokenizer import Tokenizer
from pagoda.models.weights import DecoderWeights

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def weights() -> DecoderWeights:
    files = locate()
    return load_weights(files, load_spec(files), "bfloat16")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(locate())


def test_it_is_a_llama_of_30_layers():
    spec = load_spec(locate())
    attention = spec.layers[0].attention
    assert (spec.architecture, len(spec.layers)) == ("LlamaForCausalLM", 30)
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (9, 3, 64)
    assert (spec.hidden_size, spec.layers[0].mlp.intermediate_size) == (576, 1536)
    assert (spec.vocab_size, spec.max_position_embeddings) == (49152, 8192)
    assert spec.norm.eps == pytest.approx(1e-5)
    assert attention.rope is not None
    assert attention.rope.inv_freq[1] == pytest.approx(100_000 ** (-1 / 32))
    assert spec.tie_word_embeddings
    assert spec.dtype == "bfloat16"
    assert spec.cache_spec(16, "bfloat16").bytes_per_token == 23_040


def test_its_weights_take_269_million_bytes_as_bfloat16(weights):
    assert weights.size_bytes == 2 * 134_515_008
    assert weights.lm_head is weights.embedding


def test_its_weights_are_those_of_the_file_with_heads_put_in_order(weights):
    file = GGUFFile(locate().path)

    def stored(name: str) -> np.ndarray:
        shape = file.tensors[name].shape
        return file.read_rows(name, slice(None)).reshape(shape)

    def heads_in_order(rows: np.ndarray) -> np.ndarray:
        heads = [rows[start : start + 64] for start in range(0, len(rows), 64)]
        return np.concatenate([np.concatenate([head[0::2], head[1::2]]) for head in heads])

    layer = weights.layers[17]
    q, k = (heads_in_order(stored(f"blk.17.attn_{name}.weight")) for name in "qk")
    expected = {
        "qkv": np.concatenate([q, k, stored("blk.17.attn_v.weight")]),
        "o": stored("blk.17.attn_output.weight"),
        "gate_up": np.concatenate(
            [stored("blk.17.ffn_gate.weight"), stored("blk.17.ffn_up.weight")]
        ),
        "down": stored("blk.17.ffn_down.weight"),
        "attention_norm": stored("blk.17.attn_norm.weight"),
        "mlp_norm": stored("blk.17.ffn_norm.weight"),
    }
    for field, values in expected.items():
        assert torch.equal(getattr(layer, field), torch.from_numpy(values.copy()).bfloat16())


def test_its_tokenizer_splits_digits_one_by_one(tokenizer):
    tokens = tokenizer.backend.encode("In 2024,  17 of\n\n3.").tokens
    assert tokens == ["In", "Ġ", *"2024", ",", "ĠĠ", *"17", "Ġof", "ĊĊ", "3", "."]
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_token_ids == {0, 2}  # <|endoftext|>, which no key names, and <|im_end|>


def test_its_chat_starts_with_its_system_message(tokenizer):
    prompt = tokenizer.decode(tokenizer.chat([{"role": "user", "content": "Hi"}]), False)
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
