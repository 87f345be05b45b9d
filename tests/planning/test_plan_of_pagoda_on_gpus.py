"""For GPUs of the table: the plan tells what the engine's own sizing makes of the same figures.

No GPU is needed: the engine is given the shapes of real models without their numbers, and in place
of a trial run what the plan expects one to measure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import torch

from pagoda.cache.spec import CacheSpec
from pagoda.engine.devices.gpu_backend import GPUBackend, SizedGPU
from pagoda.engine.devices.gpu_steps import GPUSteps
from pagoda.engine.options import EngineOptions
from pagoda.errors import CapacityError, InvalidOptionError, UnsupportedModelError
from pagoda.execution.gpu.workspace import Workspace, model_shape
from pagoda.models.config import ModelConfig
from pagoda.models.decoder import DecoderSpec
from pagoda.models.registry import decoder_spec
from pagoda.models.weights import DecoderWeights
from pagoda.planning.budget import stage_memories, step_facts
from pagoda.planning.pagoda import profile_of, step_bytes
from pagoda.planning.plan import make_plan
from pagoda.planning.request import PlanRequest
from pagoda.planning.result import PoolFigures
from pagoda.planning.subject import Subject, read_subject
from pagoda.planning.tables import find_accelerator
from pagoda.sizing.device_policy import GPUPolicy
from pagoda.sizing.gpu_memory import GPUUsage, MemoryProfile
from pagoda.sizing.gpu_step import FLOAT32_BYTES, LargestStep, WorkspaceSize, layer_shape
from pagoda.sizing.step_limits import MAX_PROMPT_LOGIT_ROWS
from planning.plans import GIB, LLAMA_3_8B, facts

LLAMA_2, LLAMA_3B = "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-3.2-3B-Instruct"
MISTRAL, QWEN2, QWEN3 = "mistralai/Mistral-7B-v0.1", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-4B"
QWEN3_MOE, GPT_OSS = "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b"
DEEPSEEK = "deepseek-ai/DeepSeek-V2-Lite-Chat"
FALCON = "tiiuae/falcon-7b"
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"

SETTINGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "defaults": (LLAMA_3_8B, "H100", {}),
    "float16 and a share": (
        LLAMA_3_8B, "H100", {"dtype": "float16", "gpu_memory_utilization": 0.8},
    ),
    "an A100's smaller steps": (LLAMA_3_8B, "A100-80GB", {"max_model_len": 16_384}),
    "own float16": (LLAMA_2, "A100-40GB", {}),
    "float32": (LLAMA_3_8B, "B200", {"dtype": "float32", "max_model_len": 8192}),
    "a small card": (LLAMA_3B, "L4", {"max_model_len": 8192}),
    "a window lets go": (MISTRAL, "H200", {"max_num_seqs": 64}),
    "streams, whose sinks are asked apart": (
        LLAMA_3_8B, "H100",
        {"kv_retention": "streaming:sinks=4,window=1020", "max_model_len": 100_000},
    ),
    "AMD's": (QWEN2, "MI300X", {"max_num_batched_tokens": 4096}),
    "large blocks": (QWEN3, "RTX-4090", {"block_size": 128, "max_model_len": 1000}),
    "small blocks": (SMOLLM2, "A10G", {"block_size": 1, "gpu_memory_utilization": 0.5}),
    "stated memory": (LLAMA_3_8B, "L40S", {"kv_cache_memory_bytes": 20 * GIB + 12_345,
                                           "max_model_len": 9999}),
    "stated blocks": (SMOLLM2, "GH200", {"num_gpu_blocks_override": 1000, "block_size": 32}),
    "codes": (LLAMA_3_8B, "H100", {"kv_cache_dtype": "int8_per_token_head"}),
    "a codec of one's own": (
        LLAMA_3_8B, "H100", {"kv_cache_dtype": "levels5-float16-norm-hadamard/e5m2"},
    ),
    "codes, and layers that are left out": (
        QWEN3, "MI300X",
        {"kv_cache_dtype": "turboquant_3bit_nc", "kv_cache_dtype_skip_layers": (9,)},
    ),
    "requests choose what stays": (MISTRAL, "H100", {"request_kv_retention": True}),
    "or less than what stays of all": (
        SMOLLM2, "L4", {"request_kv_retention": True, "kv_retention": "window:1000"},
    ),
    "experts": (QWEN3_MOE, "H200", {"max_model_len": 8192}),
    "experts, sinks, and windows that are left out": (
        GPT_OSS, "MI300X",
        {"max_num_batched_tokens": 4096, "kv_cache_dtype": "fp8",
         "kv_cache_dtype_skip_layers": ("sliding_window", "3-5")},
    ),
    "latents": (DEEPSEEK, "H100", {"max_model_len": 32_768}),
    "latents in codes": (DEEPSEEK, "H200", {"kv_cache_dtype": "fp8", "max_num_seqs": 64}),
    "some of them": (
        DEEPSEEK, "MI300X",
        {"kv_cache_dtype": "int8_per_group", "kv_cache_dtype_skip_layers": (0,)},
    ),
    "no sequence for itself": (SMOLLM2, "RTX-3060", {"max_num_seqs": 1, "dtype": "bfloat16"}),
}  # fmt: skip


@dataclass(frozen=True)
class EmptyGPU:
    """A meter of a device that nobody uses."""

    total_bytes: int

    def usage(self) -> GPUUsage:
        return GPUUsage(self.total_bytes, self.total_bytes, 0, 0)

    def start_peak(self) -> None:
        """Nothing runs."""

    def peak_bytes(self) -> int:
        raise AssertionError("nothing runs")

    def settle(self) -> None:
        """Nothing runs."""


def planned(name: str, gpu: str, options: dict[str, Any]) -> tuple[Subject, PlanRequest]:
    request = PlanRequest(engine="pagoda", gpu=gpu, **options)
    return read_subject(facts(name), request, None), request


def sized(name: str, gpu: str, options: dict[str, Any]) -> SizedGPU:
    """The engine's stage before anything is allocated."""
    device = find_accelerator(gpu)
    policy = GPUPolicy(f"NVIDIA {device.name}", device.memory_bytes, device.capability)
    backend = GPUBackend(
        torch.device("meta"),
        policy,
        EmptyGPU(device.memory_bytes),
        lambda: lambda launches: launches,
    )
    given = EngineOptions(**options)
    backend.prepare(given)
    spec = model_of(name, options)
    no_numbers = cast("DecoderWeights", None)
    model = backend.hold(spec, no_numbers, policy.dtype(given.dtype, spec.dtype))
    return model.size(given, given.max_model_len or spec.max_position_embeddings)


def model_of(name: str, options: dict[str, Any]) -> DecoderSpec:
    """As the engine reads it: with a retention it may go on past its length."""
    length = None if "kv_retention" in options else options.get("max_model_len")
    return decoder_spec(facts(name).config, length)


def figures(stage: SizedGPU) -> tuple[object, ...]:
    capacity = stage.capacity
    return (
        capacity.available_bytes, capacity.num_blocks, capacity.size_bytes, capacity.num_tokens,
        capacity.max_concurrency, capacity.log_lines("GPU"),
    )  # fmt: skip


def told(end: PoolFigures | None) -> tuple[object, ...]:
    assert end is not None
    return (
        end.available_bytes, end.num_blocks, end.size_bytes, end.num_tokens, end.concurrency,
        end.lines,
    )  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_plan_is_what_the_engine_computes_from_the_same_figures(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, gpu, options = SETTINGS[setting]
    subject, request = planned(name, gpu, options)
    plan = make_plan(facts(name), request)
    [memory] = stage_memories(subject)
    assert plan.is_exact == subject.request.states_cache
    for end, least in ((plan.low, True), (plan.high, False)):
        measured = profile_of(memory, least=least)

        def profile(*_: object, measured: MemoryProfile = measured) -> MemoryProfile:
            return measured

        monkeypatch.setattr(GPUSteps, "profile", profile)
        stage = sized(name, gpu, options)
        assert figures(stage) == told(end)
        assert stage.limits == subject.batch
        assert isinstance(stage.capacity.spec, CacheSpec)
        assert stage.capacity.spec.block_size == plan.block_size
    assert not [words for words in plan.warnings if "CPU" in words]


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_counted_part_of_a_step_is_what_the_engine_allocates(setting: str) -> None:
    name, gpu, options = SETTINGS[setting]
    subject, _ = planned(name, gpu, options)
    spec = model_of(name, options)
    dtype = getattr(torch, subject.dtype)
    largest = LargestStep.of(subject.batch, MAX_PROMPT_LOGIT_ROWS)
    sees_sinks = "streaming" in options.get("kv_retention", "")
    sees_sinks = sees_sinks or "request_kv_retention" in options
    shapes = [layer_shape(layer, sees_sinks=sees_sinks) for layer in spec.layers]
    workspace = Workspace(
        WorkspaceSize(model_shape(spec, dtype, shapes), largest), dtype, torch.device("meta")
    )
    tensors = [value for value in vars(workspace).values() if isinstance(value, torch.Tensor)]
    tensors += [tensor for parts in workspace._partial.values() for tensor in parts]
    assert len(tensors) == 8
    counted = step_bytes(step_facts(subject))
    drawn = min(subject.batch) * spec.vocab_size * FLOAT32_BYTES
    assert counted == sum(tensor.nbytes for tensor in tensors) + drawn


def test_the_refusal_is_the_engines_own() -> None:
    options: dict[str, Any] = {"kv_cache_memory_bytes": GIB, "max_model_len": 131_072}
    with pytest.raises(CapacityError) as by_plan:
        make_plan(facts(LLAMA_3_8B), PlanRequest(engine="pagoda", gpu="H100", **options))
    with pytest.raises(CapacityError) as by_engine:
        sized(LLAMA_3_8B, "H100", options)
    assert str(by_plan.value) == str(by_engine.value)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({}, "num_key_value_heads=1: at least a sixteenth of the 71 heads on a GPU"),
        ({"num_attention_heads": 16, "hidden_size": 5120}, "head_dim=320: 16 to 256 on a GPU"),
        ({"num_attention_heads": 16, "hidden_size": 128}, "head_dim=8: 16 to 256 on a GPU"),
    ],
)
def test_heads_without_a_kernel_are_refused_by_both(changes: dict[str, Any], refusal: str) -> None:
    known = facts(FALCON)
    own = replace(known, config=ModelConfig({**known.config.values, **changes}))
    request = PlanRequest(engine="pagoda", gpu="H200", max_model_len=512)
    with pytest.raises(UnsupportedModelError) as by_plan:
        make_plan(own, request)
    with pytest.raises(UnsupportedModelError) as by_engine:
        layer_shape(decoder_spec(own.config, 512).layers[0])
    assert str(by_plan.value) == str(by_engine.value) == refusal
    on_cpu = make_plan(own, replace(request, gpu=None, memory=64 * GIB))
    assert on_cpu.low is not None
    assert on_cpu.low.num_tokens > 0


HALF_AND_WHOLE = "levels5-float16-unbiased-signs/int8-float32-hadamard"


def test_blocks_that_a_gpu_could_not_read_are_refused_by_both() -> None:
    options: dict[str, Any] = {
        "kv_cache_dtype": HALF_AND_WHOLE, "block_size": 5, "num_gpu_blocks_override": 2000,
    }  # fmt: skip
    with pytest.raises(InvalidOptionError) as by_plan:
        planned(SMOLLM2, "H100", options)
    with pytest.raises(InvalidOptionError) as by_engine:
        sized(SMOLLM2, "H100", options)
    assert str(by_plan.value) == str(by_engine.value)
    limit = "a GPU reads a scale of 4 bytes only at a multiple of 4 bytes: take a multiple of 4"
    refusal = by_plan.value
    assert (refusal.field, refusal.value, refusal.limit) == ("block_size", 5, limit)
    for gpu, block_size in (("H100", 4), ("EPYC-9654", 5)):
        subject, _ = planned(SMOLLM2, gpu, {**options, "block_size": block_size})
        assert subject.pool.groups[0].block_size == block_size


@pytest.mark.parametrize(
    ("gpu", "limit"),
    [
        ("T4", "the T4 has compute capability 7.5, and the kernels take 8.0 or newer"),
        (
            "V100-32GB",
            "the V100-32GB has compute capability 7.0, and the kernels take 8.0 or newer",
        ),
        ("GAUDI3", "Pagoda runs on CPUs, and on GPUs of NVIDIA and AMD"),
    ],
)
def test_a_device_that_the_engine_does_not_run_on_is_refused(gpu: str, limit: str) -> None:
    with pytest.raises(InvalidOptionError) as refusal:
        make_plan(facts(SMOLLM2), PlanRequest(engine="pagoda", gpu=gpu))
    assert (refusal.value.field, refusal.value.value, refusal.value.limit) == ("gpu", gpu, limit)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size"),
        ({"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "float32"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype"),
        ({"quantization": "fp8"}, "quantization"),
        ({"dtype": "float64"}, "dtype"),
    ],
)
def test_what_the_engine_does_not_do_is_refused_by_name(
    options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidOptionError) as refusal:
        make_plan(facts(SMOLLM2), PlanRequest(engine="pagoda", gpu="H100", **options))
    assert refusal.value.field == field


def test_a_draft_model_is_refused() -> None:
    with pytest.raises(InvalidOptionError) as refusal:
        make_plan(facts(LLAMA_3_8B), PlanRequest(engine="pagoda", gpu="H100"), facts(SMOLLM2))
    assert refusal.value.field == "speculative_model"


@pytest.mark.parametrize("gpu", [None, "EPYC-9654", "M4-MAX"])
def test_elsewhere_a_cpu_is_planned(gpu: str | None) -> None:
    subject = read_subject(facts(LLAMA_2), PlanRequest(engine="pagoda", gpu=gpu), None)
    assert subject.on_cpu
    assert (subject.dtype, subject.batch) == ("bfloat16", (512, 128))
    with pytest.raises(InvalidOptionError, match="float16"):
        read_subject(facts(LLAMA_2), PlanRequest(engine="pagoda", gpu=gpu, dtype="float16"), None)


def test_without_graphs_nothing_is_set_aside_for_them() -> None:
    request = PlanRequest(engine="pagoda", gpu="H100", enforce_eager=True)
    (stage,) = stage_memories(read_subject(facts(LLAMA_3_8B), request, None))
    graphs = next(part for part in stage.parts if part.name == "CUDA graphs")
    assert (graphs.low, graphs.high) == (0, 0)
