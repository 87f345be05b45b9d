"""Weights of every family, merged, against the state dict that transformers saved."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints import (
    CASES,
    Case,
    build_model,
    language_layers,
    num_kv_heads,
    write_checkpoint,
)
from pagoda.errors import InvalidOptionError, ModelError, RefusedError
from pagoda.models.decoder import DecoderSpec
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import ModelFiles, locate
from pagoda.models.names import HUGGING_FACE_NAMES
from pagoda.models.part import Part
from pagoda.models.weights import DTYPES, DecoderWeights, load_decoder

State = dict[str, torch.Tensor]


ATTENTION = tuple(f"self_attn.{name}_proj" for name in "qkv")
MLP = ("mlp.gate_proj", "mlp.up_proj")
MERGED = {ATTENTION: "self_attn.qkv_proj", MLP: "mlp.gate_up_proj"}
"""What some families call all of these rows."""
NEIGHBOURS_TURN = ("cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "glm", "glm4")
"""Families whose rotation is of i with i + 1, which Pagoda's is not."""
LEARN_NOTHING = ("olmo",)
"""Families whose norms have no tensors."""
BEFORE = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
AROUND = {
    "attention_norm": "input_layernorm",
    "attention_output_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
}
NORMS = {
    **dict.fromkeys(("gemma2", "gemma3_text", "gemma3", "exaone4", "olmo2", "olmo3"), AROUND),
    "glm4": {
        **BEFORE,
        "attention_output_norm": "post_self_attn_layernorm",
        "mlp_output_norm": "post_mlp_layernorm",
    },
}
"""What families call a layer's norms, of which each has some; all others do as `BEFORE` says."""


_LEGS = {"mlp.dense_h_to_4h": "mlp.plain_up", "mlp.dense_4h_to_h": "mlp.down_proj"}
USUAL: dict[str, dict[str, str]] = {
    "falcon": {
        "transformer.word_embeddings": "model.embed_tokens",
        "transformer.ln_f": "model.norm",
        "transformer.h.": "model.layers.",
        "self_attention.query_key_value": "self_attn.qkv_proj",
        "self_attention.dense": "self_attn.o_proj",
        "ln_attn": "input_layernorm",
        "ln_mlp": "post_attention_layernorm",
        **_LEGS,
    },
    "gpt_neox": {
        "gpt_neox.embed_in": "model.embed_tokens",
        "gpt_neox.final_layer_norm": "model.norm",
        "gpt_neox.layers.": "model.layers.",
        ".attention.query_key_value": ".self_attn.qkv_proj",
        ".attention.dense": ".self_attn.o_proj",
        **_LEGS,
    },
    "phi": {
        "final_layernorm": "norm",
        "self_attn.dense": "self_attn.o_proj",
        "mlp.fc1": "mlp.plain_up",
        "mlp.fc2": "mlp.down_proj",
    },
    "starcoder2": {"mlp.c_fc": "mlp.plain_up", "mlp.c_proj": "mlp.down_proj"},
}
"""What families call otherwise, and what most call it."""
TAKE_TURNS = ("falcon", "gpt_neox")
"""Families with rows of each KV head's queries, key and value together."""


def in_order(rows: torch.Tensor, num_kv_heads: int, head_dim: int) -> torch.Tensor:
    """All queries, then keys, then values."""
    heads = rows.unflatten(0, (num_kv_heads, -1, head_dim))
    queries = heads[:, :-2].flatten(0, 2)
    return torch.cat([queries, heads[:, -2].flatten(0, 1), heads[:, -1].flatten(0, 1)])


def usual_name(family: str, name: str) -> str:
    for own, usual in USUAL.get(family, {}).items():
        name = name.replace(own, usual)
    return name


def own_state(case: Case, dtype: torch.dtype, model: Any = None) -> State:
    """What transformers' model of a case has, as Pagoda has to take it: of the text alone."""
    model = model or build_model(case)
    state: State = {
        usual_name(case.family, name.replace("model.language_model.", "model.")): tensor.to(dtype)
        for name, tensor in model.state_dict().items()
    }
    if case.family in TAKE_TURNS:
        heads = num_kv_heads(model.config)
        size = model.config.hidden_size // model.config.num_attention_heads
        return {
            name: in_order(rows, heads, size) if "qkv_proj" in name else rows
            for name, rows in state.items()
        }
    if case.family not in NEIGHBOURS_TURN:
        return state
    head_dim = language_layers(model).layers[0].self_attn.head_dim
    rotary_dim = 2 * len(language_layers(model).rotary_emb.inv_freq)
    turned = ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")
    return {
        name: halves(rows, head_dim, rotary_dim) if name.endswith(turned) else rows
        for name, rows in state.items()
    }


def halves(rows: torch.Tensor, head_dim: int, rotary_dim: int) -> torch.Tensor:
    """Rows of heads, of those that rotate the even ones before the odd ones."""
    heads = rows.unflatten(0, (-1, head_dim))
    turned, others = heads[:, :rotary_dim], heads[:, rotary_dim:]
    return torch.cat([turned[:, 0::2], turned[:, 1::2], others], dim=1).flatten(0, 1)


def merged(state: State, prefix: str, kind: str, *modules: str) -> torch.Tensor | None:
    """What a merged weight must be, or None where the checkpoint has no such tensors."""
    if f"{prefix}{MERGED.get(modules)}.{kind}" in state:
        modules = (MERGED[modules],)
    parts = [state.get(f"{prefix}{module}.{kind}") for module in modules]
    present = [part for part in parts if part is not None]
    assert len(present) in (0, len(modules))
    return torch.cat(present) if present else None


def row_norm(state: State, family: str, name: str) -> torch.Tensor | None:
    """What a norm of rows must be: weights, then biases; ones where it has learned nothing."""
    if family in LEARN_NOTHING and not name.endswith("none"):
        return torch.ones(64, dtype=state["lm_head.weight"].dtype)
    weight, bias = state.get(f"{name}.weight"), state.get(f"{name}.bias")
    return weight if weight is None or bias is None else torch.cat([weight, bias])


def assert_weights(
    weights: DecoderWeights,
    case: Case,
    dtype: torch.dtype,
    stored: torch.dtype = torch.float32,
    model: torch.nn.Module | None = None,
) -> None:
    """Every weight is that of transformers' model, `stored` and converted."""
    state = {name: rows.to(dtype) for name, rows in own_state(case, stored, model).items()}
    norms = NORMS.get(case.family, BEFORE)
    found = [
        (weights.embedding, state["model.embed_tokens.weight"]),
        (weights.final_norm, row_norm(state, case.family, "model.norm")),
        (weights.lm_head, state["lm_head.weight"]),
        (weights.logit_bias, state.get("lm_head.bias")),
    ]
    for index, layer in enumerate(weights.layers):
        prefix = f"model.layers.{index}."
        for norm in AROUND:
            name = f"{prefix}{norms.get(norm, 'none')}"
            found.append((getattr(layer, norm), row_norm(state, case.family, name)))
        expected = {
            "qkv": ("weight", *ATTENTION),
            "qkv_bias": ("bias", *ATTENTION),
            "q_norm": ("weight", "self_attn.q_norm"),
            "k_norm": ("weight", "self_attn.k_norm"),
            "o": ("weight", "self_attn.o_proj"),
            "o_bias": ("bias", "self_attn.o_proj"),
            "gate_up": ("weight", *MLP),
            "gate_up_bias": ("bias", *MLP),
            "up": ("weight", "mlp.plain_up"),
            "up_bias": ("bias", "mlp.plain_up"),
            "down": ("weight", "mlp.down_proj"),
            "down_bias": ("bias", "mlp.down_proj"),
        }
        for field, (kind, *modules) in expected.items():
            found.append((getattr(layer, field), merged(state, prefix, kind, *modules)))
    for own, wanted in found:
        assert (own is None) == (wanted is None)
        if own is not None and wanted is not None:
            assert own.is_contiguous()
            assert torch.equal(own, wanted)


def load(directory: Path, dtype: str = "float32") -> tuple[DecoderSpec, DecoderWeights]:
    files = locate(str(directory))
    spec = load_spec(files)
    return spec, load_weights(files, spec, dtype)


@pytest.mark.parametrize("name", CASES)
def test_every_family_is_loaded_as_it_was_saved(name, tmp_path):
    model = build_model(CASES[name])
    model.save_pretrained(tmp_path)
    spec, weights = load(tmp_path)
    assert_weights(weights, CASES[name], torch.float32, model=model)
    assert (weights.lm_head is weights.embedding) == spec.tie_word_embeddings


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("wanted", DTYPES)
def test_weights_are_converted_from_any_dtype_to_any(stored, wanted, tmp_path):
    case = CASES["llama-gqa"]
    write_checkpoint(tmp_path, case, dtype=DTYPES[stored], tokenizer=False)
    spec, weights = load(tmp_path, wanted)
    assert spec.dtype == stored
    assert weights.dtype == DTYPES[wanted]
    assert_weights(weights, case, DTYPES[wanted], DTYPES[stored])


def test_a_sharded_checkpoint_is_loaded_whole(tmp_path):
    case = CASES["qwen3-bias"]
    write_checkpoint(tmp_path, case, max_shard_size="100KB", tokenizer=False)
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    _, weights = load(tmp_path)
    assert_weights(weights, case, torch.float32)


@pytest.mark.parametrize("name", ["llama-gqa", "llama-tied", "qwen3-bias"])
def test_the_size_is_that_of_every_parameter_once(name, tmp_path):
    write_checkpoint(tmp_path, CASES[name], tokenizer=False)
    _, weights = load(tmp_path, "bfloat16")
    assert weights.size_bytes == 2 * build_model(CASES[name]).num_parameters()


def test_progress_grows_to_the_size_of_the_weights(tmp_path):
    files = locate(str(write_checkpoint(tmp_path, CASES["llama-tied"], tokenizer=False)))
    calls: list[tuple[int, int]] = []
    weights = load_weights(
        files, load_spec(files), "bfloat16", lambda done, total: calls.append((done, total))
    )
    done = [call[0] for call in calls]
    assert done == sorted(set(done))
    assert {call[1] for call in calls} == {weights.size_bytes}
    assert done[-1] == weights.size_bytes


class Tensors:
    """A checkpoint in memory that counts what is read of it."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        self.num_reads = 0
        self.spare: frozenset[str] = frozenset()

    def read(self, part: Part, target: torch.Tensor) -> None:
        self.num_reads += 1
        target.copy_(self.state[part.name][part.rows(0, len(target))])

    def stored(self, part: Part) -> None:
        pass


@pytest.fixture
def llama(tmp_path) -> tuple[DecoderSpec, State]:
    files = locate(str(write_checkpoint(tmp_path, CASES["llama-gqa"], tokenizer=False)))
    return load_spec(files), dict(build_model(CASES["llama-gqa"]).state_dict())


Q = "model.layers.2.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({Q: None}, f"{Q}=None: the files lack this tensor, (64, 64)"),
        ({"lm_head.weight": None}, "lm_head.weight=None: the files lack this tensor"),
        ({Q: torch.zeros(64, 32)}, f"{Q}=(64, 32): its shape must be (64, 64)"),
        (
            {"model.embed_tokens.weight": torch.zeros(100, 64)},
            "model.embed_tokens.weight=(100, 64): its shape must be (288, 64)",
        ),
        (
            {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)},
            "model.layers.0.self_attn.q_proj.bias=(64,): the model that the config describes",
        ),
        (
            {"model.layers.4.input_layernorm.weight": torch.zeros(64)},
            "model.layers.4.input_layernorm.weight=(64,): the model that the config describes",
        ),
    ],
)
def test_a_tensor_that_is_missing_misshaped_or_unknown_is_named_before_any_is_read(
    llama, change, match
):
    spec, state = llama
    changed = {name: tensor for name, tensor in {**state, **change}.items() if tensor is not None}
    source = Tensors(changed)
    with pytest.raises(ModelError, match=re.escape(match)):
        load_decoder(spec, source, HUGGING_FACE_NAMES, "float32")
    assert source.num_reads == 0


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_refused_by_its_tensors_name(
    number: float, tmp_path: Path
) -> None:
    model = build_model(CASES["qwen2"])
    name = "model.layers.2.self_attn.k_proj.bias"
    with torch.no_grad():
        model.get_parameter(name)[3] = number
    model.save_pretrained(tmp_path)
    files = locate(str(tmp_path), None)
    with pytest.raises(ModelError, match="must be finite as float32") as refused:
        load_weights(files, load_spec(files), "float32")
    assert refused.value.field == name


def test_numbers_that_a_dtype_cannot_have_are_refused_and_large_sums_are_not(
    tmp_path: Path,
) -> None:
    model = build_model(CASES["llama-gqa"])
    name = "model.layers.1.mlp.up_proj.weight"
    with torch.no_grad():
        model.get_parameter(name).fill_(60_000.0)
    model.save_pretrained(tmp_path)
    files = locate(str(tmp_path), None)
    load_weights(files, load_spec(files), "float16")  # their sum is infinite there
    with torch.no_grad():
        model.get_parameter(name)[0, 0] = 70_000.0
    model.save_pretrained(tmp_path / "larger")
    files = locate(str(tmp_path / "larger"), None)
    load_weights(files, load_spec(files), "bfloat16")
    with pytest.raises(ModelError, match="must be finite as float16") as refused:
        load_weights(files, load_spec(files), "float16")
    assert refused.value.field == name


def test_buffers_and_the_head_of_a_tied_model_may_be_in_the_files(tmp_path):
    files = locate(str(write_checkpoint(tmp_path, CASES["llama-tied"], tokenizer=False)))
    state = dict(build_model(CASES["llama-tied"]).state_dict())
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    assert "lm_head.weight" in state
    weights = load_decoder(load_spec(files), Tensors(state), HUGGING_FACE_NAMES, "float32")
    assert weights.lm_head is weights.embedding


def test_an_unknown_dtype_is_refused(llama):
    spec, state = llama
    with pytest.raises(InvalidOptionError, match="dtype='int8': one of float32, bfloat16, float16"):
        load_decoder(spec, Tensors(state), HUGGING_FACE_NAMES, "int8")


MEASURE = """
import os
import sys
import psutil
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
for model in sys.argv[1:]:
    if os.fork():
        os.wait()
        continue
    process = psutil.Process()
    files = locate(model)
    spec = load_spec(files)
    base = process.memory_info().rss
    sizes = []
    weights = load_weights(
        files, spec, "bfloat16", lambda done, total: sizes.append(process.memory_info().rss)
    )
    print(base, max(sizes), weights.size_bytes, flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Bytes of a process before a model is loaded, the most meanwhile, and those of its weights.

    One program loads its libraries, and a process of its own each model.
    """
    case, directory = CASES["llama-gqa"], tmp_path_factory.mktemp("large")
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}
    large = Case(case.family, {**case.config, **sizes})
    write_checkpoint(directory, large, dtype=torch.bfloat16, tokenizer=False)
    models = {"directory": str(directory), "default": "smollm2"}
    try:
        locate("smollm2")
    except RefusedError:
        del models["default"]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *models.values()],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    return {name: list(map(int, line.split())) for name, line in zip(models, lines, strict=True)}


def assert_lean(base: int, most: int, size_bytes: int) -> None:
    """Loading adds at most 1.3 times the weights to a process, which has 400 MB for the rest."""
    assert most - base < 1.3 * size_bytes
    assert most < 1.3 * size_bytes + 400e6


def test_loading_holds_little_more_than_the_weights(measured: dict[str, list[int]]):
    assert_lean(*measured["directory"])


@pytest.mark.model
def test_loading_the_default_model_holds_little_more_than_its_weights(
    measured: dict[str, list[int]],
):
    assert_lean(*measured["default"])


def test_a_directory_is_named_after_itself(tmp_path):
    assert locate(str(tmp_path)) == ModelFiles("directory", tmp_path, tmp_path.name)
