"""A whole engine on the GPU's path, on a GPU that is made up."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_gpu import (
    CARD,
    GIB,
    GRAPH_BYTES,
    KERNEL_BYTES,
    PEAK_BYTES,
    Card,
    FakeMeter,
)

from checkpoints import Case, write_checkpoint
from pagoda import SamplingParams
from pagoda.engine import build
from pagoda.engine.build import Model, assemble, connect, load_model
from pagoda.engine.devices.cpu_backend import CPUBackend
from pagoda.engine.devices.gpu_backend import GPUBackend
from pagoda.engine.devices.gpu_steps import graph_sizes
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.errors import CapacityError, InvalidOptionError
from pagoda.roofline import MachineLimits
from pagoda.sizing.graph_sizes import default_sizes
from pagoda.sizing.step_limits import StepLimits
from triton_device import DEVICE

MAX_MODEL_LEN = 48
GREEDY = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
PROMPTS = ["the first of three", "the first of them all", "another"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Qwen3 of two small layers, tied, in float32."""
    config = {"num_hidden_layers": 2, "head_dim": 16, "tie_word_embeddings": True}
    return str(write_checkpoint(tmp_path_factory.mktemp("card"), Case("qwen3", config)))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()
    monkeypatch.setattr(build, "find_backend", lambda options: card.backend())
    return card


def options_for(directory: str, **more: object) -> EngineOptions:
    defaults: dict[str, object] = {
        "model": directory, "max_model_len": MAX_MODEL_LEN, "block_size": 4, "max_num_seqs": 4,
        "num_gpu_blocks_override": 64, "cudagraph_capture_sizes": (1, 4),
    }  # fmt: skip
    return EngineOptions(**(defaults | more))  # type: ignore[arg-type]


def answers(llm: LLM) -> list[tuple[int, ...]]:
    return tokens_of(llm, GREEDY)


@pytest.fixture(scope="module")
def expected(directory: str) -> list[tuple[int, ...]]:
    options = options_for(directory, device="cpu", cudagraph_capture_sizes=None)
    return answers(LLM.from_engine(connect(load_model(options), options)))


def test_greedy_answers_are_those_of_a_cpu(
    directory: str, card: Card, expected: list[tuple[int, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    options = options_for(directory, max_num_batched_tokens=16)
    with caplog.at_level(logging.INFO, logger="pagoda"):
        engine, running = assemble(load_model(options), options)
    assert not running.takes_all_cores
    assert list(running.chores) == []
    running.warm_up_draws()
    llm = LLM.from_engine(engine)
    assert answers(llm) == expected
    [counter] = card.counters
    assert counter.replays > 0
    before = llm.stats().prefix_cache_hits
    assert answers(llm) == expected, "hits are misses"
    assert llm.stats().prefix_cache_hits > before
    heads = [message.split(":")[0] for message in caplog.messages]
    assert heads[0].startswith("Model loading took ")
    assert heads[1:4] == ["weights", "Available KV cache memory", "GPU KV cache size"]
    assert heads[4] == "keys and values"
    assert heads[5].startswith("Graph capturing finished in ")
    assert re.search(r"took 0\.0\d+ GiB$", heads[5]), "the fake graphs take some MiB"


def test_hits_of_a_coded_cache_are_misses_and_those_of_a_cpu(directory: str, card: Card) -> None:
    """One layer is left out; all have codes where they let go, in the next test."""
    coded = {"kv_cache_dtype": "int4_per_token_head", "kv_cache_dtype_skip_layers": (1,)}
    expected = answers(on_cpu(directory, (None, None), **coded))
    options = options_for(directory, max_num_batched_tokens=16, **coded)
    engine, running = assemble(load_model(options), options)
    formats = [layer.dtype for layer in running.storage.spec.layers]
    assert formats == ["int4_per_token_head", "float32"]
    llm = LLM.from_engine(engine)
    assert answers(llm) == expected
    assert answers(llm) == expected, "hits are misses"
    assert llm.stats().prefix_cache_hits > 0
    [counter] = card.counters
    assert counter.replays > 0


@pytest.mark.parametrize(
    ("windows", "more"),
    [
        ((None, 9), {"kv_retention": "streaming:sinks=3,window=10"}),
        ((10, None), {"kv_retention": "streaming:sinks=5,window=12",
                      "kv_cache_dtype": "int8_per_token_head"}),
    ],
    ids=["plain", "coded"],
)  # fmt: skip
def test_layers_let_go_as_on_a_cpu(
    directory: str, card: Card, windows: tuple[int | None, int | None], more: dict[str, object]
) -> None:
    """In few blocks, which others soon have: steps that run ahead read none that was let go."""
    few = {"num_gpu_blocks_override": 36, "max_num_batched_tokens": 16, **more}
    greedy = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    expected = tokens_of(on_cpu(directory, windows, **few), greedy)
    options = options_for(directory, **few)
    llm = LLM.from_engine(connect(with_windows(load_model(options), windows), options))
    assert tokens_of(llm, greedy) == expected
    assert tokens_of(llm, greedy) == expected, "hits are misses"
    llm.engine.scheduler.cache.check_integrity()
    assert llm.stats().prefix_cache_hits > 0
    [counter] = card.counters
    assert counter.replays > 0


def test_requests_of_a_gpu_keep_what_they_ask_for(
    directory: str, card: Card, expected: list[tuple[int, ...]]
) -> None:
    asked = "streaming:sinks=2,window=8"
    narrow = tokens_of(on_cpu(directory, (None, None), kv_retention=asked), GREEDY)
    options = options_for(directory, request_kv_retention=True)
    llm = LLM.from_engine(connect(load_model(options), options))
    assert tokens_of(llm, GREEDY, kv_retention=asked) == narrow != expected
    assert tokens_of(llm, GREEDY) == expected


def tokens_of(llm: LLM, params: SamplingParams, **more: str) -> list[tuple[int, ...]]:
    outputs = llm.generate(PROMPTS, params, use_tqdm=False, **more)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


def on_cpu(directory: str, windows: tuple[int | None, ...], **more: object) -> LLM:
    options = options_for(directory, device="cpu", cudagraph_capture_sizes=None, **more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "find_backend", lambda options: CPUBackend())
        model = with_windows(load_model(options), windows)
    return LLM.from_engine(connect(model, options))


def with_windows(model: Model, windows: tuple[int | None, ...]) -> Model:
    """The same weights, where layers see but windows."""
    layers = tuple(
        replace(layer, attention=replace(layer.attention, sliding_window=window))
        for layer, window in zip(model.spec.layers, windows, strict=True)
    )
    spec = replace(model.spec, layers=layers)
    return replace(model, loaded=replace(model.loaded, spec=spec))  # type: ignore[type-var]


def test_heads_that_a_codec_cannot_cut_are_refused_before_weights_of_a_gpu_are_read(
    tmp_path: Path, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, Case("llama", {"head_dim": 24}))

    def read(*args: object, **options: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr("pagoda.engine.devices.gpu_backend.load_weights", read)
    with pytest.raises(InvalidOptionError, match=r"multiple of 16 numbers, and these have 24"):
        load_model(options_for(str(tmp_path), kv_cache_dtype="int8_per_token_head"))


def test_without_graphs_the_answers_are_the_same(
    directory: str, card: Card, expected: list[tuple[int, ...]]
) -> None:
    options = options_for(directory, enforce_eager=True)
    assert answers(LLM.from_engine(connect(load_model(options), options))) == expected
    assert card.counters == []


def test_sizes_of_graphs_that_no_batch_has_are_warned_of(
    directory: str, card: Card, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_model(options_for(directory))
    options = options_for(directory, cudagraph_capture_sizes=(8, 16))
    for harmless in (
        replace(options, enforce_eager=True), replace(options, cudagraph_capture_sizes=()),
        replace(options, cudagraph_capture_sizes=(1, 16)),
    ):  # fmt: skip
        connect(model, harmless)
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]
    connect(model, options)
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage() == (
        "no CUDA graph is captured: all of cudagraph_capture_sizes, 8, 16, exceed max_num_seqs, 4"
    )


def test_choices_fork_by_copying_blocks(directory: str, card: Card) -> None:
    options = options_for(directory, cudagraph_capture_sizes=(2,))
    llm = LLM.from_engine(connect(load_model(options), options))
    both = SamplingParams(temperature=0, max_tokens=4, n=2, ignore_eos=True)
    [output] = llm.generate([PROMPTS[0]], both, use_tqdm=False)
    first, second = output.outputs
    assert first.token_ids == second.token_ids


def test_memory_for_the_cache_is_what_the_largest_step_leaves(directory: str, card: Card) -> None:
    options = options_for(
        directory, num_gpu_blocks_override=None, max_num_batched_tokens=16, block_size=16
    )
    loaded = load_model(options).loaded
    available = loaded.size(options, MAX_MODEL_LEN).capacity.available_bytes
    requested = 0.92 * 16 * GIB
    taken = GIB + PEAK_BYTES + KERNEL_BYTES + 2 * GRAPH_BYTES
    assert requested - taken <= available < requested - taken + 1
    calls = card.meter.calls
    assert calls.index("start") > calls.index("settle")
    assert calls[-2:] == ["settle", "usage"], "what was tried is given back, then looked at"
    half = replace(options, gpu_memory_utilization=0.5, enforce_eager=True)
    other = GPUBackend(DEVICE, CARD, FakeMeter(), card._counter)
    held = other.hold(loaded.spec, loaded.weights, loaded.dtype)
    less = held.size(half, MAX_MODEL_LEN).capacity.available_bytes
    assert abs(less - (8 * GIB - (taken - 2 * GRAPH_BYTES))) <= 1


def test_the_cache_of_another_engine_is_no_weight_of_the_second(
    directory: str, card: Card, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_for(
        directory, num_gpu_blocks_override=None, max_num_batched_tokens=8, enforce_eager=True
    )
    loaded = load_model(options).loaded
    first = loaded.size(options, MAX_MODEL_LEN).capacity.available_bytes
    card.meter.caches = 3 * GIB
    with caplog.at_level(logging.INFO, logger="pagoda"):
        second = loaded.size(options, MAX_MODEL_LEN).capacity.available_bytes
    assert second == first - 3 * GIB, "both together are more than the share"
    assert re.search(
        r"weights 0\.00\d+ GiB, other tensors 4\.0 GiB, peak of the largest step 0\.19", caplog.text
    )


def test_a_cache_that_is_sized_needs_no_trial(directory: str, card: Card) -> None:
    options = options_for(directory, num_gpu_blocks_override=None, kv_cache_memory_bytes=10**6)
    loaded = load_model(options).loaded
    assert loaded.size(options, MAX_MODEL_LEN).capacity.available_bytes == 10**6
    blocks = replace(options, kv_cache_memory_bytes=None, num_gpu_blocks_override=17)
    capacity = loaded.size(blocks, MAX_MODEL_LEN).capacity
    assert capacity.available_bytes == 17 * capacity.spec.block_bytes
    assert "start" not in card.meter.calls


@pytest.fixture(scope="module")
def placed(directory: str) -> Model:
    """A model that one backend has loaded, for tests of what another refuses."""
    card = Card()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "find_backend", lambda options: card.backend())
        return load_model(options_for(directory))


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"threads": 2}, "threads"),
        ({"device": "cpu"}, "device"),
        ({"quantization": "q8_0"}, "quantization"),
        ({"kv_cache_dtype": "bfloat16"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "int3"}, "kv_cache_dtype"),
    ],
)
def test_what_a_gpu_cannot_follow_is_refused(
    placed: Model, directory: str, given: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidOptionError) as refusal:
        connect(placed, options_for(directory, **given))
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"device": "cuda"}, "device"),
        ({"cudagraph_capture_sizes": [1, 2]}, "cudagraph_capture_sizes"),
        ({"dtype": "float16"}, "dtype"),
        ({"quantization": "q8_0", "dtype": "float32"}, "quantization"),
    ],
)
def test_what_a_cpu_cannot_follow_is_refused(
    tiny_model: Model, given: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidOptionError) as refusal:
        connect(tiny_model, EngineOptions(**given))  # type: ignore[arg-type]
    assert refusal.value.field == field


def test_a_share_that_is_not_free_is_refused_before_the_model_is_loaded(card: Card) -> None:
    card.meter.others = 4 * GIB
    with pytest.raises(CapacityError) as refusal:
        load_model(EngineOptions(model="no/such/model"))
    assert refusal.value.field == "gpu_memory_utilization"


def test_more_cache_than_the_device_has_is_refused(placed: Model, directory: str) -> None:
    options = options_for(directory, num_gpu_blocks_override=None, kv_cache_memory_bytes=15 * GIB)
    with pytest.raises(CapacityError) as refusal:
        connect(placed, options)
    assert refusal.value.field == "kv_cache_memory_bytes"


def test_what_does_not_fit_is_refused_by_name(
    directory: str, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("pagoda.engine.devices.gpu_backend.load_weights", refuse)
        with pytest.raises(
            CapacityError, match=r"the weights in float32 are more than the 15\.0 GiB"
        ):
            load_model(options_for(directory))
    model = load_model(options_for(directory))
    for place, blamed in (
        ("gpu_backend.GPUStorage", "num_gpu_blocks_override"),
        ("gpu_steps.GPUExecutor", "max_num_batched_tokens"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"pagoda.engine.devices.{place}", refuse)
            with pytest.raises(CapacityError) as refusal:
                connect(model, options_for(directory))
            assert refusal.value.field == blamed


def test_limits_are_measured_once_and_their_memory_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once the cache is there, the device may be full."""
    meter, place = FakeMeter(), "pagoda.engine.devices.machine.measure_gpu_limits"
    backend = GPUBackend(DEVICE, CARD, meter, Card()._counter)

    def refuse(*_: object) -> MachineLimits:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(place, refuse)
        with pytest.raises(CapacityError, match="Test Card has not the 3 GiB free"):
            backend.measure_limits(torch.float16)
    with monkeypatch.context() as patch:
        patch.setattr(place, lambda dtype, device: MachineLimits(7.0, dtype.itemsize))
        assert backend.measure_limits(torch.float16) == MachineLimits(7.0, 2)
        assert meter.calls[-1] == "settle"
        assert backend.measure_limits(torch.float32) == MachineLimits(7.0, 4)
    monkeypatch.setattr(place, refuse)
    assert backend.measure_limits(torch.float16) == MachineLimits(7.0, 2)


def test_tied_weights_stay_tied(placed: Model) -> None:
    assert placed.weights.lm_head is placed.weights.embedding


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_weights_are_loaded_in_the_dtype_that_is_named(
    directory: str, card: Card, dtype: str
) -> None:
    model = load_model(options_for(directory, dtype=dtype))
    assert (model.dtype, model.weights.dtype) == (dtype, getattr(torch, dtype))


def test_the_largest_step_suits_the_device_where_nothing_is_said(
    placed: Model, directory: str
) -> None:
    unsaid = options_for(directory, max_num_seqs=None)
    assert placed.loaded.size(unsaid, MAX_MODEL_LEN).limits == CARD.default_limits
    given = options_for(directory, max_num_batched_tokens=64, max_num_seqs=2)
    assert placed.loaded.size(given, MAX_MODEL_LEN).limits == (64, 2)


def test_graphs_are_for_small_batches_and_every_eighth_up_to_the_most() -> None:
    assert default_sizes(1) == (1,)
    assert default_sizes(5) == (1, 2, 4, 5)
    assert default_sizes(20) == (1, 2, 4, 8, 16, 20)
    most = default_sizes(1024)
    assert most[:6] == (1, 2, 4, 8, 16, 24)
    assert (most[-1], len(most)) == (512, 67)
    limits = StepLimits(2048, 20)
    chosen = EngineOptions(cudagraph_capture_sizes=[16, 1, 64, 16])
    assert tuple(graph_sizes(chosen, limits)) == (1, 16)
    assert tuple(graph_sizes(EngineOptions(), limits)) == default_sizes(20)
