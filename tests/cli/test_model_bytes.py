"""What a step reads of a model as a server runs it, for `pagoda doctor --model`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checkpoints import CASES, build_model, write_checkpoint
from gguf_files import GGML, quantisable, write_gguf
from pagoda.cli.doctor import Told, machine_of
from pagoda.cli.model_bytes import Served, model_bytes
from pagoda.cli.plan_model import find_facts


def test_a_models_bytes_are_those_of_its_matrices(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, CASES["llama-gqa"])
    config = json.loads((directory / "config.json").read_text())
    sizes = model_bytes(find_facts(str(directory)), Served("pagoda"))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    head_dim = config.get("head_dim") or hidden // heads
    values = layers * hidden * (
        2 * heads * head_dim + 2 * kv_heads * head_dim + 3 * config["intermediate_size"]
    ) + hidden * config["vocab_size"]  # fmt: skip
    assert sizes.weights == pytest.approx(4 * values, rel=0.01)
    assert sizes.kv_token == 4 * 2 * layers * kv_heads * head_dim
    machine = machine_of(Told(bandwidth=45.0), sizes)
    assert (machine.weight_bytes, machine.bandwidth) == (sizes.weights, 45e9)
    given = machine_of(Told(weight_bytes=7, kv_token_bytes=8), sizes)
    assert (given.weight_bytes, given.kv_token_bytes) == (7, 8)


def test_a_well_known_model_and_accelerator_are_the_planners() -> None:
    sizes = model_bytes(find_facts("meta-llama/Llama-3.1-8B-Instruct"), Served(block_size=16))
    machine = machine_of(Told(gpu="H100"), sizes)
    assert machine.kv_token_bytes == 2 * 32 * 8 * 128 * 2
    assert machine.weight_bytes == pytest.approx(2 * (8.03e9 - 128_256 * 4096), rel=1e-3)
    assert machine.bandwidth == pytest.approx(3.35e12, rel=0.01)
    assert machine.intensity == pytest.approx(295, rel=0.01)
    assert machine_of(Told(gpu="H100", bandwidth=2500)).bandwidth == 2.5e12


def test_pagoda_reads_a_quantised_file_as_it_is_stored_on_cpus_alone(tmp_path: Path) -> None:
    model = build_model(quantisable(CASES["llama-gqa"]))
    facts = find_facts(str(write_gguf(tmp_path / "model.gguf", model, quantisation=GGML.Q8_0)))
    assert facts.files_bytes is not None
    on_cpu, on_gpu = (model_bytes(facts, Served("pagoda", gpu)).weights for gpu in (None, "H100"))
    assert on_cpu < facts.files_bytes
    assert on_gpu > 1.8 * on_cpu


def test_weights_that_a_server_quantised_are_counted_so() -> None:
    facts = find_facts("meta-llama/Llama-3.1-8B-Instruct")
    for engine, name in (("pagoda", "q8_0"), ("vllm", "fp8")):
        plain = model_bytes(facts, Served(engine)).weights
        found = model_bytes(facts, Served(engine, quantization=name)).weights
        assert 0.53 * plain < found < 0.54 * plain


def test_a_server_that_computes_in_another_dtype_reads_that_many_bytes() -> None:
    facts = find_facts("HuggingFaceTB/SmolLM2-135M")
    own, wide = (model_bytes(facts, Served("pagoda", dtype=name)) for name in (None, "float32"))
    assert own.kv_token is not None
    assert (wide.weights, wide.kv_token) == (2 * own.weights, 2 * own.kv_token)
    coded = Served("pagoda", dtype="float32", kv_cache_dtype="int8_per_token_head")
    assert model_bytes(facts, coded).kv_token == 30 * 6 * 68
    for name in ("float16", "of tomorrow", ""):  # of a GPU that is not named, or of a stranger
        assert model_bytes(facts, Served("pagoda", dtype=name)) == own


def test_a_step_of_more_sequences_reads_more_experts() -> None:
    facts = find_facts("mistralai/Mixtral-8x7B-v0.1")
    one, many = (model_bytes(facts, Served(num_sequences=n)).weights for n in (1, 64))
    assert 3 * one < many < 4 * one


# What a server says, and what a step reads for each token that a held block has room for.
LLAMA, HALF = 2 * 32 * 8 * 128, 21 * 2 * 8 * 256 * 2
HELD: dict[str, tuple[str, Served, float]] = {
    "fp8": ("meta-llama/Llama-3.1-8B-Instruct", Served(kv_cache_dtype="fp8", block_size=16), LLAMA),
    "each keeps the latents": (
        "deepseek-ai/DeepSeek-V3", Served(tensor_parallel_size=8, block_size=64), 8 * 61 * 576 * 2,
    ),
    "heads are split": (
        "meta-llama/Llama-3.1-8B-Instruct", Served(tensor_parallel_size=4), 2 * LLAMA,
    ),
    "half of the layers in a block": ("google/gemma-2-9b-it", Served(block_size=16), HALF),
    "windows alone": ("mistralai/Mistral-7B-v0.1", Served(block_size=16), 2 * LLAMA),
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_what_a_held_block_makes_a_step_read(name: str) -> None:
    model, served, expected = HELD[name]
    kv_token = model_bytes(find_facts(model), served).kv_token
    assert kv_token is not None
    assert 0.99 * expected < kv_token <= expected


@pytest.mark.parametrize("kept", [None, "full", "window:2000", "streaming:sinks=4,window=2044"])
@pytest.mark.parametrize("gpu", [None, "H100"])
def test_pagoda_lets_go_of_what_windows_have_passed_on_any_device(
    gpu: str | None, kept: str | None
) -> None:
    """So of what a long request holds a step reads nearly all, as of vLLM's; and where but a part
    stays of every request."""
    facts = find_facts("mistralai/Mistral-7B-v0.1")
    served = Served("pagoda", gpu=gpu, block_size=16, kv_retention=kept)
    size = model_bytes(facts, served).kv_token
    assert 0.95 * 2 * LLAMA < (size or 0) <= 2 * LLAMA


@pytest.mark.parametrize("served", [Served(kv_cache_dtype="of tomorrow"), Served(block_size=16)])
@pytest.mark.parametrize(
    "model", ["mistralai/Mamba-Codestral-7B-v0.1", "microsoft/Phi-3-mini-4k-instruct"]
)
def test_well_known_models_are_not_refused(model: str, served: Served) -> None:
    sizes = model_bytes(find_facts(model), served)
    assert (machine_of(Told(), sizes).kv_token_bytes is None) == (served.block_size is None)


def test_layers_that_a_server_skips_are_read_in_their_own_dtype() -> None:
    facts = find_facts("smollm2")

    def kv_token(*skipped: int) -> float | None:
        coded = Served("pagoda", kv_cache_dtype="int8_per_token_head", skipped_layers=skipped)
        return model_bytes(facts, coded).kv_token

    assert kv_token() == 30 * 6 * 68
    assert kv_token(0, 29) == 28 * 6 * 68 + 2 * 6 * 128
    assert kv_token(30) is None  # what a server says is nobody's mistake here
