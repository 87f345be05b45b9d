"""Configs of every family, in both forms, against what transformers makes of them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from asked_fields import Config, each_missing, fields_of, without
from checkpoints import (
    CASES,
    CONFIGS,
    SEEING,
    SIZES,
    Case,
    attention_of,
    case_config,
    empty_model,
    layers_of,
)
from family_agreement import (
    assert_agrees,
    assert_same,
    head_norm,
    head_size,
    transformers_config,
)
from latent_cases import LATENT_FAMILIES
from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import Activation, DecoderSpec
from pagoda.models.registry import ARCHITECTURES, decoder_spec

LLAMA_3_1 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
LLAMA_2 = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vocab_size": 32000,
}
MISTRAL_7B = {
    "architectures": ["MistralForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}
QWEN_2_5 = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN_3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
SMOLLM_3 = {
    "architectures": ["SmolLM3ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "max_position_embeddings": 65536,
    "model_type": "smollm3",
    "no_rope_layer_interval": 4,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 5000000.0,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 128256,
}
"""Published configs in the form of transformers 4; fields equal to a default are often left out."""

NEEDED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
"""Fields that have no default, but in the text of Gemma 3."""
NOT_LEFT_OUT = ("model_type", "architectures", "vision_config")
"""Fields that say which class reads a config, and what sees."""
MODELS = {family.model_type: name for name, family in ARCHITECTURES.items()}

MAY_SLIDE = (
    "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
    "SmolLM3ForCausalLM",
)  # fmt: skip
"""Those whose configs say whether there are windows."""
OF_HEADS = [name for family, name in MODELS.items() if family not in LATENT_FAMILIES]
NEEDED_TOO = {"deepseek_v2": {"num_experts_per_tok": 2}}
HUB = {
    "llama-3.1": LLAMA_3_1,
    "llama-2": LLAMA_2,
    "mistral": MISTRAL_7B,
    "qwen2.5": QWEN_2_5,
    "qwen3": QWEN_3,
    "smollm3": SMOLLM_3,
}


def saved(name: str) -> dict[str, Any]:
    """The config of a case as transformers writes it."""
    config = case_config(CASES[name])
    config.architectures = [MODELS[CASES[name].family]]
    return json.loads(config.to_json_string())


@pytest.mark.parametrize("name", HUB)
def test_published_configs_in_the_old_form(name):
    assert_agrees(HUB[name])


@pytest.mark.parametrize("name", [*HUB, *CASES])
def test_configs_as_transformers_saves_them_now(name):
    if name in CASES:
        assert_agrees(saved(name))
        return
    config = transformers_config(HUB[name])
    config.architectures = HUB[name]["architectures"]
    assert_agrees(json.loads(config.to_json_string()))


def read(values: Config) -> DecoderSpec | None:
    """The spec of a config; None where it is refused."""
    try:
        return decoder_spec(ModelConfig(values))
    except ModelError:
        return None


@pytest.mark.parametrize("name", CASES)
def test_layers_that_are_alike_are_one_object(name):
    """So that each kind is looked at once."""
    spec = decoder_spec(ModelConfig(saved(name)))
    assert len(spec.kinds) == len(set(spec.layers))
    assert spec.of_each_layer(kind.layer for kind in spec.kinds) == spec.layers


@pytest.mark.parametrize("name", CASES)
def test_a_field_that_is_missing_takes_the_default_of_transformers(name):
    values = saved(name)
    text = ("text_config",) if "text_config" in values else ()
    fields = [
        field
        for field in fields_of(values)
        if field[-1] not in NOT_LEFT_OUT and len(field) <= len(text) + 1
    ]
    each, others = each_missing(values, fields, read)
    lackings = [(without(values, field), spec) for field, spec in each.items()]
    lackings.append((without(values, *others), read(values)))
    agreed = read(values), transformers_config(values)
    for number, (lacking, spec) in enumerate(lackings):
        if spec is None:
            continue
        try:
            whole = transformers_config(lacking)
        except ZeroDivisionError:  # what is left without that one makes no sense to it
            assert number < len(each)
            continue
        if (spec, whole) != agreed:
            assert_same(spec, whole)


@pytest.mark.parametrize(
    ("architecture", "extra"),
    [
        *((architecture, {}) for architecture in OF_HEADS),
        *((architecture, {"use_sliding_window": True}) for architecture in MAY_SLIDE),
    ],
)
def test_a_config_of_the_sizes_alone_takes_the_defaults_of_transformers(architecture, extra):
    [family] = [family for family, name in MODELS.items() if name == architecture]
    sizes = {
        "vocab_size": 1000,
        "hidden_size": 2048,
        "intermediate_size": 4096,
        "num_hidden_layers": 30 if extra else 8,  # more than have no window by default
        "num_attention_heads": 32,
        "max_position_embeddings": 8192,
    }
    own = {**sizes, **extra}
    if family in SEEING:
        own = {"text_config": own, **SEEING[family]}
    assert_agrees({"architectures": [architecture], "model_type": family, **own})


@pytest.mark.parametrize("architecture", OF_HEADS)
def test_which_configs_say_whether_there_are_windows(architecture):
    theirs = defaults(architecture).get_text_config()
    assert hasattr(theirs, "use_sliding_window") == (architecture in MAY_SLIDE)


@pytest.mark.parametrize("architecture", sorted({*OF_HEADS} - {"FalconForCausalLM"}))
def test_null_key_value_heads_are_as_many_as_query_heads(architecture):
    attention = layers(architecture, num_key_value_heads=None)[0].attention
    assert attention.num_kv_heads == attention.num_heads == SIZES["num_attention_heads"]


def small(architecture: str, **fields: Any) -> ModelConfig:
    family = ARCHITECTURES[architecture].model_type
    own = {**SIZES, **NEEDED_TOO.get(family, {}), **fields}
    if family in SEEING:
        own = {"text_config": own, **SEEING[family]}
    return ModelConfig({"architectures": [architecture], **own})


def defaults(architecture: str) -> Any:
    """The config of `SIZES` as transformers completes it."""
    return case_config(Case(ARCHITECTURES[architecture].model_type))


def layers(architecture: str, **fields: Any):
    return decoder_spec(small(architecture, **fields)).layers


def windows(architecture: str, **fields: Any) -> list[int | None]:
    return [layer.attention.sliding_window for layer in layers(architecture, **fields)]


def biases(architecture: str, **fields: Any) -> tuple[bool, bool, bool]:
    layer = layers(architecture, **fields)[0]
    return layer.attention.qkv_bias, layer.attention.output_bias, layer.mlp.bias


def test_where_each_family_has_biases():
    assert biases("LlamaForCausalLM") == (False, False, False)
    assert biases("LlamaForCausalLM", attention_bias=True) == (True, True, False)
    assert biases("LlamaForCausalLM", mlp_bias=True) == (False, False, True)
    assert biases("MistralForCausalLM", attention_bias=True) == (False, False, False)
    assert biases("Qwen2ForCausalLM") == (True, False, False)
    assert biases("Qwen3ForCausalLM") == (False, False, False)
    assert biases("Qwen3ForCausalLM", attention_bias=True) == (True, True, False)
    assert biases("SmolLM3ForCausalLM", attention_bias=True, mlp_bias=True) == (True, True, True)


@pytest.mark.parametrize("architecture", OF_HEADS)
def test_heads_have_norms_and_a_size_of_their_own_as_in_transformers(architecture):
    attention = layers(architecture)[0].attention
    own = attention_of(layers_of(empty_model(defaults(architecture)))[0])
    assert attention.qk_norm == head_norm(own)
    assert attention.head_dim == head_size(own)
    has_none_in_a_config = (
        "Cohere2ForCausalLM", "FalconForCausalLM", "GPTNeoXForCausalLM", "StableLmForCausalLM",
    )  # fmt: skip
    own_size = 16 if architecture in has_none_in_a_config else 24
    assert layers(architecture, head_dim=24)[0].attention.head_dim == own_size


@pytest.mark.parametrize("family", ["llama", "ernie4_5", "seed_oss"])
def test_a_null_head_size_is_what_transformers_takes_for_it(family):
    attention = layers(MODELS[family], head_dim=None)[0].attention
    assert attention.head_dim == CONFIGS[family](**SIZES, head_dim=None).head_dim == 16


def test_every_layer_of_mistral_slides():
    assert windows("MistralForCausalLM") == [4096] * 4
    assert windows("MistralForCausalLM", sliding_window=8) == [8] * 4
    assert windows("MistralForCausalLM", sliding_window=None) == [None] * 4


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_the_upper_layers_of_qwen_slide_where_it_is_switched_on(architecture):
    sliding = {"sliding_window": 8, "max_window_layers": 3}
    assert windows(architecture, **sliding) == [None] * 4
    assert windows(architecture, use_sliding_window=True, **sliding) == [None, None, None, 8]
    types = ["sliding_attention", "full_attention"] * 2
    listed = {**sliding, "use_sliding_window": True, "layer_types": types}
    assert windows(architecture, **listed) == [8, None, 8, None]
    sliding = {"use_sliding_window": True, "max_window_layers": 3}
    assert windows(architecture, **sliding) == [None, None, None, 4096]
    assert windows(architecture, **sliding, sliding_window=None) == [None] * 4


def test_only_layers_without_positions_slide_in_smollm3():
    def has_rope(**fields: Any) -> list[bool]:
        return [
            layer.attention.rope is not None for layer in layers("SmolLM3ForCausalLM", **fields)
        ]

    assert has_rope() == [True, True, True, False]
    assert has_rope(no_rope_layer_interval=2) == [True, False, True, False]
    assert has_rope(no_rope_layers=[0, 1, 0, 1, 1]) == [False, True, False, True]
    sliding = {"use_sliding_window": True, "sliding_window": 8}
    assert windows("SmolLM3ForCausalLM", **sliding) == [None, None, None, 8]
    assert windows("SmolLM3ForCausalLM", sliding_window=8) == [None] * 4


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_word_embeddings_are_tied_by_default_as_in_transformers(architecture):
    tied = decoder_spec(small(architecture)).tie_word_embeddings
    assert tied == defaults(architecture).tie_word_embeddings


def test_the_dtype_is_found_under_both_names():
    assert decoder_spec(small("LlamaForCausalLM", dtype="bfloat16")).dtype == "bfloat16"
    assert decoder_spec(small("LlamaForCausalLM", torch_dtype="float16")).dtype == "float16"
    assert decoder_spec(small("LlamaForCausalLM", dtype="torch.float16")).dtype == "float16"
    assert decoder_spec(small("LlamaForCausalLM")).dtype == "float32"


def test_the_cache_of_a_model_follows_from_its_spec():
    spec = decoder_spec(ModelConfig(QWEN_3))
    assert spec.cache_spec(16, "bfloat16").bytes_per_token == 28 * 2 * 8 * 128 * 2


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "JambaForCausalLM", "llama", None])
def test_an_architecture_that_is_not_covered_is_refused_with_those_that_are(name):
    with pytest.raises(UnsupportedModelError, match=re.escape(repr(name))) as caught:
        decoder_spec(ModelConfig({**SIZES, "architectures": [name]}))
    assert caught.value.field == "architectures"
    for architecture in ARCHITECTURES:
        assert architecture in caught.value.limit


@pytest.mark.parametrize("value", [None, [], "LlamaForCausalLM", ["a", "b"]])
def test_architectures_must_be_a_list_of_one(value):
    with pytest.raises(ModelError, match="must name one architecture"):
        decoder_spec(ModelConfig({**SIZES, "architectures": value}))


@pytest.mark.parametrize("listed", [None, []])
@pytest.mark.parametrize("architecture", OF_HEADS)
def test_a_config_without_architectures_goes_by_its_model_type(architecture, listed):
    named = small(architecture).values
    own = {**named, "model_type": ARCHITECTURES[architecture].model_type, "architectures": listed}
    assert decoder_spec(ModelConfig(own)) == decoder_spec(ModelConfig(named))
    left_out = without(own, ("architectures",))
    assert decoder_spec(ModelConfig(left_out)) == decoder_spec(ModelConfig(named))


def test_a_model_type_that_is_not_covered_is_refused_with_those_that_are():
    with pytest.raises(UnsupportedModelError, match=r"near it (is|are) .*qwen3") as caught:
        decoder_spec(ModelConfig({**SIZES, "model_type": "qwen33"}))
    assert caught.value.field == "model_type"
    for family in ARCHITECTURES.values():
        assert family.model_type in caught.value.limit


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("field", NEEDED)
def test_a_needed_field_that_is_missing_is_named(architecture, field):
    if (architecture, field) == ("FalconForCausalLM", "intermediate_size"):
        return  # it is four times the hidden size
    values = small(architecture, **{field: None})
    with pytest.raises(ModelError, match=f"{field}=None: the model's config lacks this field"):
        decoder_spec(values)


@pytest.mark.parametrize(
    ("architecture", "fields", "error", "match"),
    [
        ("LlamaForCausalLM", {"hidden_size": "64"}, ModelError, "hidden_size='64'"),
        ("LlamaForCausalLM", {"hidden_size": 66}, ModelError, "must be a multiple of the 4"),
        ("LlamaForCausalLM", {"num_key_value_heads": 3}, ModelError, "must divide"),
        ("LlamaForCausalLM", {"head_dim": 15}, ModelError, "head_dim=15: must be even"),
        ("LlamaForCausalLM", {"head_dim": 2**40}, ModelError, "must be at most 16384"),
        ("LlamaForCausalLM", {"num_hidden_layers": 10**9}, ModelError, "must be at most 1024"),
        (
            "LlamaForCausalLM",
            {"layer_types": ["full_attention"] * 3 + ["sliding_attention"]},
            UnsupportedModelError,
            "layer_types='sliding_attention': only full_attention",
        ),
        (
            "MistralForCausalLM",
            {"sliding_window": 8, "layer_types": ["full_attention"] * 4},
            UnsupportedModelError,
            "layer_types='full_attention': only sliding_attention",
        ),
        ("LlamaForCausalLM", {"rms_norm_eps": 0}, ModelError, "rms_norm_eps=0"),
        ("OlmoForCausalLM", {"clip_qkv": 8.0}, UnsupportedModelError, "clip_qkv=8.0: only null"),
        ("StableLmForCausalLM", {"qk_layernorm": True}, UnsupportedModelError, "qk_layernorm=True"),
        ("LlamaForCausalLM", {"hidden_act": "relu"}, UnsupportedModelError, "hidden_act='relu'"),
        ("FalconForCausalLM", {"alibi": True}, UnsupportedModelError, "alibi=True: only false"),
        (
            "FalconForCausalLM",
            {"num_ln_in_parallel_attn": 2},
            UnsupportedModelError,
            "num_ln_in_parallel_attn=2: only 1 is covered without new_decoder_architecture",
        ),
        (
            "FalconForCausalLM",
            {"new_decoder_architecture": True, "parallel_attn": False},
            UnsupportedModelError,
            "parallel_attn=False: only true is covered with new_decoder_architecture",
        ),
        (
            "FalconForCausalLM",
            {"multi_query": False, "num_kv_heads": 2},
            ModelError,
            "num_kv_heads=2: must be the 4 attention heads",
        ),
        ("PhiForCausalLM", {"qk_layernorm": True}, UnsupportedModelError, "qk_layernorm=True"),
        ("GPTNeoXForCausalLM", {"rotary_pct": 1.5}, ModelError, "rotary_pct=1.5: must be at most"),
        ("LlamaForCausalLM", {"dtype": "float8_e4m3fn"}, UnsupportedModelError, "dtype='float8"),
        ("LlamaForCausalLM", {"mlp_bias": "no"}, ModelError, "mlp_bias='no'"),
        (
            "LlamaForCausalLM",
            {"quantization_config": {"quant_method": "hqq"}},
            UnsupportedModelError,
            "quantization_config.quant_method='hqq': covered are gptq, awq, compressed-tensors",
        ),
        ("MistralForCausalLM", {"sliding_window": 0}, ModelError, "sliding_window=0"),
        (
            "Qwen2ForCausalLM",
            {"layer_types": ["sliding_attention"] * 4},
            ModelError,
            "layer_types has sliding layers",
        ),
        (
            "Qwen2ForCausalLM",
            {"layer_types": ["chunked_attention"] * 4},
            UnsupportedModelError,
            "layer_types='chunked_attention'",
        ),
        ("Qwen3ForCausalLM", {"layer_types": ["full_attention"]}, ModelError, "at least 4 items"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1]}, ModelError, "no_rope_layers=[1]"),
    ],
)
def test_a_field_that_is_wrong_or_not_covered_is_named(architecture, fields, error, match):
    with pytest.raises(error, match=re.escape(match)):
        decoder_spec(small(architecture, **fields))


@pytest.mark.parametrize(
    ("fields", "activation"),
    [
        ({}, Activation.GELU_TANH),
        ({"hidden_act": "gelu"}, Activation.GELU_TANH),
        ({"hidden_act": "gelu_pytorch_tanh", "hidden_activation": None}, Activation.GELU_TANH),
        ({"hidden_act": "silu"}, Activation.SILU),
        ({"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}, Activation.GELU_TANH),
    ],
)
def test_gelu_of_the_first_gemmas_means_its_tanh_form(fields, activation):
    values = case_config(CASES["gemma"]).to_dict() | {"architectures": ["GemmaForCausalLM"]}
    for name in ("hidden_act", "hidden_activation"):
        values.pop(name, None)
    spec = decoder_spec(ModelConfig(values | fields))
    assert {layer.mlp.activation for layer in spec.layers} == {activation}
