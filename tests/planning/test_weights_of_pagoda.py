"""Weights in a plan of Pagoda are those that its engine holds, to the byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoints import CASES, Case, build_model, write_checkpoint
from gguf_files import GGML, write_gguf
from pagoda.cli.plan_model import find_facts
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.build import load_model
from pagoda.engine.options import EngineOptions
from pagoda.errors import CapacityError, InvalidOptionError
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.planning.alternatives import plan_with_alternatives
from pagoda.planning.plan import make_plan
from pagoda.planning.request import PlanRequest
from pagoda.planning.result import Plan
from pagoda.sizing.capacity import format_gib
from pagoda.sizing.quantised_weights import RECIPES

TWO_LAYERS = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
MIXED = {
    "blk.0.attn_q.weight": "Q4_K", "blk.0.attn_k.weight": "Q4_K", "blk.0.attn_v.weight": "Q6_K",
    "blk.0.ffn_gate.weight": "Q5_K", "blk.1.ffn_down.weight": "IQ4_XS",
    "blk.1.attn_v.weight": "Q2_K", "token_embd.weight": "Q3_K",
}  # fmt: skip
"""Types of some tensors; the second layer's v is in one matrix with plain q and k."""
EXPERTS = {
    "mlp_only_layers": [], "norm_topk_prob": False,
    "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256,
}  # fmt: skip
MIXED_EXPERTS = {
    "blk.0.ffn_gate_exps.weight": "Q4_K", "blk.0.ffn_down_exps.weight": "Q6_K",
    "blk.1.ffn_up_exps.weight": "Q8_0", "blk.1.ffn_up_shexp.weight": "Q5_K",
}  # fmt: skip
FILES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "untied": ("llama-gqa", {}, {"types": {**MIXED, "output.weight": "Q8_0"}}),
    "tied": ("llama-tied", {}, {"types": MIXED, "quantisation": GGML.Q8_0}),
    "plain head": ("llama-gqa", {}, {"types": MIXED, "quantisation": GGML.F16}),
    "biases": ("qwen2", {}, {"quantisation": GGML.Q4_0}),
    "norms of heads": ("qwen3", {}, {"types": MIXED}),
    "rows of k end within a panel": (
        "llama-mqa", {"head_dim": 16, "num_attention_heads": 16}, {"quantisation": GGML.Q8_0},
    ),
    "vocabulary ends within a panel": (
        "llama-tied", {"vocab_size": 295}, {"types": {"token_embd.weight": "Q6_K"}},
    ),
    "gate ends within a panel": (
        "llama-gqa", {"intermediate_size": 500},
        {"types": {"blk.0.ffn_gate.weight": "Q4_K"}, "quantisation": GGML.F16},
    ),
    "experts": ("qwen2-moe", EXPERTS, {"types": MIXED_EXPERTS, "quantisation": GGML.F16}),
    "experts that end within a panel": (
        "mixtral", {"intermediate_size": 288}, {"quantisation": GGML.Q8_0},
    ),
    "experts in MXFP4": ("gpt-oss", {}, {"quantisation": GGML.MXFP4}),
    "a type that is not kept": ("llama-gqa", {}, {"types": MIXED, "quantisation": GGML.TQ2_0}),
    "numbers of 32 bits": ("llama-gqa", {}, {}),
    "norms with biases": ("stablelm", {}, {"quantisation": GGML.Q8_0}),
    "norms without weights": ("olmo", {}, {"quantisation": GGML.Q8_0}),
}  # fmt: skip
"""A case, what its config has else, and how `write_gguf` stores it."""
ASKED: tuple[dict[str, Any], ...] = (
    {}, {"dtype": "bfloat16"}, {"dtype": "float32"}, {"dtype": "bfloat16", "quantization": "none"},
)  # fmt: skip


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("held")
    return {name: write(folder / f"{name}.gguf", name) for name in FILES}


def write(path: Path, name: str) -> Path:
    case, config, stored = FILES[name]
    given = CASES[case]
    model = build_model(Case(given.family, {**given.config, **TWO_LAYERS, **config}))
    return write_gguf(path, model, **stored)


def planned(path: Path, **options: Any) -> Plan:
    return make_plan(find_facts(str(path)), PlanRequest(engine="pagoda", **options))


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.parametrize("name", FILES)
def test_a_plan_tells_the_bytes_that_the_engine_holds(
    paths: dict[str, Path], name: str, asked: dict[str, Any]
) -> None:
    model = load_model(EngineOptions(model=str(paths[name]), device="cpu", **asked))
    assert planned(paths[name], **asked).weights_bytes == model.weights.size_bytes


@pytest.mark.parametrize("name", FILES)
def test_on_a_gpu_all_are_de_quantised(paths: dict[str, Path], name: str) -> None:
    files = locate(str(paths[name]))
    whole = load_weights(files, load_spec(files), "bfloat16").size_bytes
    plan = planned(paths[name], gpu="H100", dtype="bfloat16")
    assert (plan.weights_bytes, plan.quantization) == (whole, None)
    assert planned(paths[name], dtype="bfloat16").weights_bytes <= whole


def test_a_plan_names_the_types_that_are_kept(paths: dict[str, Path]) -> None:
    kept = "IQ4_XS, Q2_K, Q3_K, Q4_K, Q5_K and Q6_K"
    assert planned(paths["a type that is not kept"]).quantization == kept
    assert planned(paths["biases"]).quantization == "Q4_0"
    assert planned(paths["biases"], quantization="none").quantization is None
    assert planned(paths["numbers of 32 bits"]).quantization is None
    assert planned(paths["experts"]).quantization == "Q4_K, Q5_K, Q6_K and Q8_0"
    assert planned(paths["experts in MXFP4"]).quantization == "e2m1_bf16_g32"


def test_what_stays_as_stored_takes_less_of_the_machine(paths: dict[str, Path]) -> None:
    machine = {"memory": 8 * 2**30}
    kept, plain = (
        planned(paths["untied"], dtype="bfloat16", quantization=scheme, **machine)
        for scheme in (None, "none")
    )
    saved = plain.weights_bytes - kept.weights_bytes
    own, other = (plan.memory[0].low for plan in (kept, plain))
    assert other - own == saved > 0


@pytest.fixture(scope="module")
def plain_experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = CASES["qwen2-moe"]
    sizes = {**TWO_LAYERS, **EXPERTS, "moe_intermediate_size": 96}
    folder = tmp_path_factory.mktemp("experts")
    return write_checkpoint(folder, Case(case.family, {**case.config, **sizes}))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = CASES["llama-gqa"]
    sizes = {**TWO_LAYERS, "intermediate_size": 544}
    folder = tmp_path_factory.mktemp("plain")
    return write_checkpoint(folder, Case(case.family, {**case.config, **sizes}))


def test_weights_of_safetensors_are_plain(plain: Path) -> None:
    for dtype in ("bfloat16", "float32"):
        model = load_model(EngineOptions(model=str(plain), device="cpu", dtype=dtype))
        assert planned(plain, dtype=dtype).weights_bytes == model.weights.size_bytes


def test_schemes_of_other_engines_are_refused() -> None:
    told = "quantization='awq': one of none, q8_0, q6_k, q4_k, q4_0 for Pagoda"
    with pytest.raises(InvalidOptionError, match=told):
        PlanRequest(engine="pagoda", quantization="awq")


@pytest.mark.parametrize("name", RECIPES)
def test_a_plan_tells_the_bytes_of_weights_that_are_quantised(
    paths: dict[str, Path], plain: Path, plain_experts: Path, name: str
) -> None:
    for path in (plain, plain_experts, paths["plain head"]):
        model = load_model(EngineOptions(model=str(path), device="cpu", quantization=name))
        plan = planned(path, quantization=name)
        assert plan.weights_bytes == model.weights.size_bytes == model.held.total_bytes
        assert plan.quantization == model.held.stored_as
    assert planned(plain, quantization=name).weights_bytes < planned(plain).weights_bytes / 3


def test_a_plan_says_what_quantising_would_bring() -> None:
    facts = find_facts("meta-llama/Llama-3.1-8B-Instruct")
    request = PlanRequest(engine="pagoda", memory=12 * 2**30, max_model_len=8192)
    with pytest.raises(CapacityError, match="It certainly fits with --quantization q8_0"):
        plan_with_alternatives(facts, request)
    plan = plan_with_alternatives(facts, replace(request, memory=20 * 2**30))
    tried = {other.flags: other for other in plan.alternatives}
    assert tried["--quantization q4_k"].users_high == 4
    on_gpu = plan_with_alternatives(facts, replace(request, memory=None, gpu="H100"))
    assert not [other for other in on_gpu.alternatives if "quantization" in other.flags]


def test_a_plan_refuses_what_the_engine_refuses(plain: Path) -> None:
    with pytest.raises(InvalidOptionError, match="quantization='q4_k': weights are quantised on C"):
        planned(plain, gpu="H100", quantization="q4_k")
    with pytest.raises(InvalidOptionError, match="quantization='q4_k': takes bfloat16 for all"):
        planned(plain, dtype="float32", quantization="q4_k")
    assert planned(plain, gpu="DESKTOP-DDR5", quantization="q4_k").dtype == "bfloat16"


def test_the_start_says_what_is_held(
    paths: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = paths["biases"]
    with caplog.at_level("INFO", logger="pagoda"):
        model = load_model(EngineOptions(model=str(path), device="cpu", dtype="bfloat16"))
    assert model.held.total_bytes == model.weights.size_bytes
    size = format_gib(model.weights.size_bytes)
    *hints, told = caplog.messages
    assert told == f"weights: {size} GiB, Q4_0 as stored, F32 as bfloat16"
    assert ["--quantization none" in hint for hint in hints] == [True]


def test_a_server_can_tell_it(paths: dict[str, Path]) -> None:
    options = EngineOptions(model=str(paths["tied"]), device="cpu", num_gpu_blocks_override=64)
    held = AsyncEngine.load(options).held
    assert held is not None
    assert held.total_bytes == planned(paths["tied"]).weights_bytes
    assert {"Q4_K", "Q8_0"} <= set(held.kept)
