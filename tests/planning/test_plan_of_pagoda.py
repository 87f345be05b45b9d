"""What Pagoda allocates and says at its start is what its plan said, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkpoints import CASES, write_checkpoint
from pagoda.cache.retention import MOST_POSITIONS
from pagoda.cli.plan_model import find_facts
from pagoda.engine.build import connect, load_model
from pagoda.engine.devices import cpu_backend
from pagoda.engine.options import EngineOptions
from pagoda.errors import CapacityError, InvalidOptionError
from pagoda.execution.rope import RotaryTables
from pagoda.planning.pagoda import PROCESS
from pagoda.planning.plan import longest_requests, make_plan
from pagoda.planning.request import PlanRequest

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("llama-gqa", {"kv_cache_memory_bytes": 10_000_000}),
    ("llama-gqa", {"kv_cache_memory_bytes": 10_000_000, "block_size": 1}),
    ("llama-gqa", {"kv_cache_memory_bytes": 7_654_321, "block_size": 48}),
    ("llama-gqa", {"kv_cache_memory_bytes": 10_000_000, "max_model_len": 100}),
    ("llama-gqa", {"kv_cache_memory_bytes": 10_000_000, "dtype": "bfloat16"}),
    ("llama-gqa", {"num_gpu_blocks_override": 77, "block_size": 8}),
    ("llama-gqa", {"num_gpu_blocks_override": 77, "kv_cache_memory_bytes": 10_000_000}),
    ("llama-mha", {"kv_cache_memory_bytes": 12_345_678}),
    ("llama-mqa", {"kv_cache_memory_bytes": 12_345_678, "block_size": 32}),
    ("qwen3", {"kv_cache_memory_bytes": 9_999_999, "max_model_len": 255}),
    ("mistral-window", {"kv_cache_memory_bytes": 9_999_999}),
    ("qwen2-window", {"kv_cache_memory_bytes": 9_999_999, "block_size": 4}),
    *(
        ("qwen2-window", {"kv_cache_memory_bytes": 9_999_999, "dtype": "bfloat16"} | mix)
        for mix in (
            {},
            {"block_size": 32},
            {"max_num_batched_tokens": 64},
            {"max_num_batched_tokens": 8, "max_model_len": 100},
            {"kv_retention": "window:16"},
            {"kv_retention": "streaming:sinks=4,window=60"},
            {"kv_retention": "streaming:sinks=4,window=60", "max_model_len": 100_000},
            {"kv_retention": "streaming:sinks=20,window=40", "max_num_batched_tokens": 33},
            {"request_kv_retention": True},
            {"request_kv_retention": True, "block_size": 32, "max_num_batched_tokens": 8},
            {"request_kv_retention": True, "kv_retention": "streaming:sinks=4,window=60"},
        )
    ),
    *(
        ("llama-gqa", {"kv_cache_memory_bytes": 9_999_999} | mix)
        for mix in (
            {"kv_retention": "window:64"},
            {"kv_retention": "streaming:sinks=1,window=17", "block_size": 4},
            {"kv_retention": "streaming:sinks=4,window=60", "dtype": "bfloat16"},
            {"request_kv_retention": True},
        )
    ),
    ("mistral-window", {"num_gpu_blocks_override": 300, "max_num_batched_tokens": 32}),
    ("mistral-window", {"kv_cache_memory_bytes": 9_999_999, "kv_retention": "window:32"}),
    ("llama-linear", {"kv_cache_memory_bytes": 9_999_999}),
    ("llama-dynamic", {"kv_cache_memory_bytes": 20_000_000, "block_size": 64}),
    ("llama-yarn", {"kv_cache_memory_bytes": 9_999_999, "dtype": "bfloat16"}),
]


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    names = sorted({name for name, _ in SETTINGS})
    folder = tmp_path_factory.mktemp("planned")
    return {name: write_checkpoint(folder / name, CASES[name]) for name in names}


@pytest.mark.parametrize(("name", "options"), SETTINGS)
def test_the_engine_takes_and_says_what_was_planned(
    directories: dict[str, Path],
    name: str,
    options: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = str(directories[name])
    plan = make_plan(find_facts(directory), PlanRequest(engine="pagoda", **options))
    given = EngineOptions(model=directory, **options)
    with caplog.at_level("INFO", logger="pagoda"):
        engine = connect(load_model(given), given)
    storage = engine._runner._executor.storage
    assert plan.is_exact
    assert plan.high is not None
    assert plan.high.size_bytes == sum(part.nbytes for part in storage._contents)
    assert plan.high.num_blocks == storage.num_blocks
    assert list(plan.high.lines) == caplog.messages[1:3]


@pytest.mark.parametrize(
    "options", [{}, {"kv_retention": "streaming:sinks=4,window=60", "max_model_len": 200_000}]
)
def test_tables_of_angles_are_counted_by_plan_and_engine(
    directories: dict[str, Path], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory is what is left over: as much as the engine takes of what is free."""
    directory = str(directories["qwen2-window"])
    request = PlanRequest(engine="pagoda", memory=2**30, gpu_memory_utilization=0.1, **options)
    plan = make_plan(find_facts(directory), request)
    given = EngineOptions(model=directory, gpu_memory_utilization=0.1, **options)
    model = load_model(given)
    ropes = {layer.attention.rope for layer in model.spec.layers}
    tables = [RotaryTables.of(rope, model.max_model_len) for rope in ropes]
    angles = sum(table.cosines.nbytes + table.sines.nbytes for table in tables)
    assert model.spec.angle_bytes(model.max_model_len) == angles
    weights, runtime, cache = plan.memory
    assert (runtime.name, runtime.low - PROCESS.low) == ("runtime", angles)
    free = 2**30 - weights.low - PROCESS.low
    monkeypatch.setattr(cpu_backend, "free_memory_bytes", lambda: free)
    capacity = model.loaded.size(given, model.max_model_len).capacity
    assert plan.high is not None
    assert capacity.size_bytes == plan.high.size_bytes == cache.high
    assert capacity.available_bytes == plan.high.available_bytes


@pytest.mark.parametrize("option", ["kv_retention", "request_kv_retention"])
def test_vllm_is_not_planned_with_what_is_pagodas_own(option: str) -> None:
    asked: dict[str, Any] = {option: "streaming" if option == "kv_retention" else True}
    with pytest.raises(InvalidOptionError, match="is Pagoda's own") as refusal:
        PlanRequest(gpu="H100", **asked)
    assert refusal.value.field == option


def test_a_retention_bounds_what_is_read_and_how_long_a_request_may_be() -> None:
    facts = find_facts("HuggingFaceTB/SmolLM2-135M-Instruct")
    machine: dict[str, Any] = {"engine": "pagoda", "gpu": "DESKTOP-DDR5", "users": 1}
    whole = make_plan(facts, PlanRequest(**machine, max_model_len=8192))
    kept = make_plan(facts, PlanRequest(**machine, max_model_len=10**6, kv_retention="streaming"))
    assert whole.speed is not None
    assert kept.speed is not None
    assert kept.speed.cache_read_bytes * 8 == whole.speed.cache_read_bytes
    assert [(group.window, group.sinks) for group in kept.groups] == [(1020, 4)]
    asked = PlanRequest(**machine, kv_retention="streaming", max_model_len=4096)
    assert longest_requests(facts, asked).certain == MOST_POSITIONS


@pytest.mark.parametrize("name", ["mistral-window", "qwen2-window"])
def test_concurrency_of_windows_is_what_vllm_prints(
    directories: dict[str, Path], name: str
) -> None:
    """With as many tokens under way: vLLM schedules a second batch ahead on a GPU."""
    facts = find_facts(str(directories[name]))
    asked = {"kv_cache_memory_bytes": 9_999_999, "block_size": 16, "dtype": "bfloat16"}
    ours = make_plan(facts, PlanRequest(engine="pagoda", max_num_batched_tokens=128, **asked))
    theirs = make_plan(
        facts, PlanRequest(engine="vllm", max_num_batched_tokens=64, memory=2**33, **asked)
    )
    assert ours.high is not None
    assert theirs.high is not None
    assert ours.high.num_blocks == theirs.high.num_blocks
    assert ours.high.concurrency == theirs.high.concurrency


def test_the_refusal_is_the_engines_own(directories: dict[str, Path]) -> None:
    directory = str(directories["llama-gqa"])
    options: dict[str, Any] = {"kv_cache_memory_bytes": 100_000}
    given = EngineOptions(model=directory, **options)
    model = load_model(given)
    with pytest.raises(CapacityError) as by_engine:
        connect(model, given)
    with pytest.raises(CapacityError) as by_plan:
        make_plan(find_facts(directory), PlanRequest(engine="pagoda", **options))
    assert str(by_plan.value) == str(by_engine.value)


@pytest.mark.parametrize(
    "options",
    [{}, {"kv_cache_dtype": "int8_per_token_head", "kv_cache_dtype_skip_layers": [0]}],
    ids=["plain", "a layer left out"],
)
def test_blocks_that_a_cpu_could_not_hold_are_refused_by_both_before_weights_are_read(
    directories: dict[str, Path], options: dict[str, Any]
) -> None:
    directory = str(directories["llama-gqa"])
    stated = {"dtype": "bfloat16", "block_size": 7, "num_gpu_blocks_override": 300, **options}
    with pytest.raises(InvalidOptionError) as by_plan:
        make_plan(find_facts(directory), PlanRequest(engine="pagoda", **stated))
    with pytest.raises(InvalidOptionError) as by_engine:
        load_model(EngineOptions(model=directory, **stated))
    assert str(by_plan.value) == str(by_engine.value)
    limit = "a CPU keeps bfloat16 in groups: take a multiple of 2"
    refusal = by_plan.value
    assert (refusal.field, refusal.value, refusal.limit) == ("block_size", 7, limit)


@pytest.mark.parametrize(
    "options", [{"dtype": "float32"}, {"kv_cache_dtype": "int8_per_token_head"}]
)
def test_blocks_of_odd_size_are_taken_where_none_of_their_numbers_lie_in_groups(
    directories: dict[str, Path], options: dict[str, Any]
) -> None:
    directory = str(directories["llama-gqa"])
    stated = {"dtype": "bfloat16", "block_size": 7, "num_gpu_blocks_override": 300, **options}
    plan = make_plan(find_facts(directory), PlanRequest(engine="pagoda", **stated))
    given = EngineOptions(model=directory, **stated)
    engine = connect(load_model(given), given)
    assert plan.high is not None
    assert plan.high.size_bytes == engine._runner._executor.storage.size_bytes


def test_activations_of_bytes_are_planned_where_the_engine_takes_them() -> None:
    machine = {"engine": "pagoda", "memory": 2**35, "max_model_len": 2048}
    plain = find_facts("meta-llama/Llama-3.1-8B-Instruct")
    own = PlanRequest(**machine, quantization="q8_0")
    asked = PlanRequest(**machine, quantization="q8_0", activation_dtype="int8")
    assert make_plan(plain, asked).low == make_plan(plain, own).low
    for options in (
        machine,
        machine | {"quantization": "none"},
        {"engine": "pagoda", "gpu": "H100", "max_model_len": 2048},
    ):
        request = PlanRequest(**options, activation_dtype="int8")
        with pytest.raises(InvalidOptionError, match="here none do; they are held as") as refused:
            make_plan(plain, request)
        assert refused.value.field == "activation_dtype"
    with pytest.raises(InvalidOptionError, match="is for Pagoda"):
        PlanRequest(memory=2**35, activation_dtype="int8")
    with pytest.raises(InvalidOptionError, match="one of auto, int8"):
        PlanRequest(**machine, activation_dtype="int4")
