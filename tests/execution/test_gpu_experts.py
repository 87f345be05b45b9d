"""The executor for GPUs runs layers whose rows go to experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from decoders import (
    Pager,
    decoder_spec,
    on_device,
    placed,
    random_weights,
    rope_spec,
    run,
    tokens,
)
from test_gpu_executor import Operations
from triton.runtime.interpreter import GridExecutor
from triton.runtime.jit import JITFunction

from checkpoints import CASES, Case, reference_model, write_checkpoint
from pagoda.execution.gpu.executor import GPUExecutor
from pagoda.execution.gpu.experts import stack
from pagoda.execution.reference import reference_logits
from pagoda.models.decoder import (
    SANDWICH_NORM,
    Activation,
    AttentionSpec,
    DecoderSpec,
    ExpertsSpec,
    MLPSpec,
)
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.weight_memory import GPUMemory
from pagoda.storage.gpu_storage import GPUStorage
from triton_device import DEVICE, HAS_GPU

pytestmark = pytest.mark.filterwarnings("ignore:overflow")  # exp of the interpreter

BLOCK_SIZE, NUM_BLOCKS = 8, 40
ATTENTION = AttentionSpec(4, 2, 16, 0.25, rope_spec(16))
SINKS = replace(ATTENTION, sliding_window=7, sink_logits=True, qkv_bias=True, output_bias=True)


def with_experts(spec: DecoderSpec, *experts: ExpertsSpec | MLPSpec, **changes: Any) -> DecoderSpec:
    pairs = zip(spec.layers, experts, strict=True)
    return replace(spec, layers=tuple(replace(layer, mlp=own, **changes) for layer, own in pairs))


def has_experts(case: Case) -> bool:
    return any("experts" in name for name in case.config)


KINDS = {
    "mixtral": with_experts(decoder_spec([ATTENTION] * 2), *[ExpertsSpec(4, 2, 80)] * 2),
    "gpt-oss": with_experts(
        decoder_spec([SINKS, replace(SINKS, sliding_window=None)]),
        *[
            ExpertsSpec(
                8, 4, 40, activation=Activation.CLAMPED_SWIGLU, bias=True, router_bias=True
            )
        ] * 2,
    ),
    "qwen2-moe": with_experts(
        decoder_spec([ATTENTION] * 2),
        *[ExpertsSpec(12, 4, 24, normalised=False, shared=MLPSpec(56), shared_gate=True)] * 2,
    ),
    "deepseek": with_experts(
        decoder_spec([ATTENTION] * 2),
        MLPSpec(96),
        ExpertsSpec(
            16, 4, 24, scoring="sigmoid", scale=2.5, correction_bias=True, num_groups=4,
            num_used_groups=2, group_top=2, shared=MLPSpec(48),
        ),
    ),
    "sandwich": with_experts(
        placed(decoder_spec([ATTENTION]), SANDWICH_NORM, residual_scale=0.4),
        ExpertsSpec(3, 1, 200, shared=MLPSpec(40, bias=True), shared_gate=True),
    ),
}  # fmt: skip


def make(
    spec: DecoderSpec, dtype: torch.dtype = torch.float32, graph_sizes: tuple[int, ...] = (),
    **limits: Any,
) -> tuple[GPUExecutor, Pager]:  # fmt: skip
    cache_spec = spec.cache_spec(BLOCK_SIZE, str(dtype).removeprefix("torch."))
    num_blocks = NUM_BLOCKS * len(cache_spec.groups)
    storage = GPUStorage(cache_spec, num_blocks, DEVICE)
    weights = on_device(random_weights(spec, dtype), DEVICE)
    executor = GPUExecutor(spec, weights, storage, 200, graph_sizes, **limits)
    return executor, Pager(BLOCK_SIZE, num_blocks, cache_spec.windows)


@cache
def truth(kind: str, count: int) -> torch.Tensor:
    spec = KINDS[kind]
    return reference_logits(spec, random_weights(spec), tokens(count), torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_reference(kind: str) -> None:
    """In chunks beside another, padded where each has a token; alone they are below."""
    chunks = [5, 1, 2, 1]
    count, spec = sum(chunks), KINDS[kind]
    logits = run(*make(spec, graph_sizes=(4,)), tokens(count), chunks, [tokens(12, 1)])
    expected = truth(kind, count)
    assert (logits - expected).abs().max() < 1e-4
    assert expected.std() > 0.05, "logits are no zeros"


def test_many_rows_are_as_few() -> None:
    """In large tiles, and among others in small ones."""
    kind, count = "sandwich", 110
    logits = run(*make(KINDS[kind]), tokens(count), [100, 10])
    assert KINDS[kind].layers[0].mlp == ExpertsSpec(
        3, 1, 200, shared=MLPSpec(40, bias=True), shared_gate=True
    )  # which has few up to 96
    assert (logits - truth(kind, count)).abs().max() < 1e-4


def test_16_bits_are_as_near_as_their_rounding_allows() -> None:
    spec = KINDS["gpt-oss"]
    logits = run(*make(spec, torch.float16), tokens(20), [20])
    exact = reference_logits(spec, random_weights(spec, torch.float16), tokens(20))
    error = (logits - exact).square().mean().sqrt()
    assert error < 0.01 * exact.square().mean().sqrt()


def test_not_a_bit_depends_on_whether_rows_beside_are_others_or_pad() -> None:
    outputs = []
    for count in (4, 2):
        executor, pager = make(KINDS["qwen2-moe"], graph_sizes=(4,))
        sequences = [pager.sequence(tokens(9 + seed, seed)) for seed in range(4)]
        for sequence in sequences[:count]:
            executor.forward(pager.batch([(sequence, 5)]))
        batch = pager.batch([(sequence, 1) for sequence in sequences[:count]])
        outputs.append(executor.forward(batch)[:2].cpu().clone())
    assert torch.equal(*outputs)


def test_warm_up_launches_tiles_of_both_heights(monkeypatch: pytest.MonkeyPatch) -> None:
    heights: set[int] = set()
    launcher, method = (JITFunction, "run") if HAS_GPU else (GridExecutor, "__call__")
    launch = getattr(launcher, method)

    def note(kernel: Any, *args: Any, **kwargs: Any) -> object:
        if kernel.fn.__name__ == "grouped_kernel":
            heights.add(kwargs["height"])
        return launch(kernel, *args, **kwargs)

    monkeypatch.setattr(launcher, method, note)
    for most, wanted in ((150, {16, 64}), (96, {16})):
        heights.clear()
        executor, _ = make(KINDS["sandwich"], max_num_tokens=most)
        executor.warm_up()
        assert heights == wanted


def test_launches_take_no_memory_and_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    noted, launches = Operations(), []
    spec = KINDS["qwen2-moe"]

    def keep(given: Callable[[], None]) -> Callable[[], None]:
        launches.append(given)
        return given

    make(spec, graph_sizes=(4,), capture=keep)[0].warm_up()
    launcher, method = (JITFunction, "run") if HAS_GPU else (GridExecutor, "__call__")
    monkeypatch.setattr(launcher, method, lambda *_, **__: None)
    with noted:
        launches[0]()
    views = {f"aten.{name}" for name in ("slice.Tensor", "view.dtype", "view.default", "t.default")}
    assert noted.names <= {*views, "aten.detach.default", "aten.mm.out", "aten.addmm.out"}


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if has_experts(case)])
def test_a_checkpoint_is_loaded_and_run_as_transformers_would(case: str, tmp_path: Path) -> None:
    own = Case(CASES[case].family, {**CASES[case].config, "num_hidden_layers": 2})
    write_checkpoint(tmp_path, own, tokenizer=False)
    files = locate(str(tmp_path))
    spec = load_spec(files, max_model_len=32)
    weights = load_weights(files, spec, "float32", lambda done, total: None, DEVICE)
    token_ids = tokens(12, vocab_size=spec.vocab_size)
    with torch.inference_mode():
        expected = reference_model(tmp_path)(torch.tensor([token_ids])).logits[0]
    cache_spec = spec.cache_spec(BLOCK_SIZE, "float32")
    num_blocks = NUM_BLOCKS * len(cache_spec.groups)
    executor = GPUExecutor(spec, weights, GPUStorage(cache_spec, num_blocks, DEVICE), 32)
    logits = run(executor, Pager(BLOCK_SIZE, num_blocks, cache_spec.windows), token_ids, [11, 1])
    assert (logits - expected).abs().max() < 1e-4


def test_experts_lie_one_behind_the_other_on_a_device() -> None:
    memory = GPUMemory(DEVICE)
    together = memory.together(3)
    matrices = []
    for number in range(3):
        matrix = together.tensor((2, 5), torch.float16).fill_(number)
        matrices.append(together.settle(matrix))
    assert torch.equal(stack(tuple(matrices)).cpu(), torch.stack(matrices).cpu())
    assert stack(tuple(matrices)).data_ptr() == matrices[0].data_ptr()
    with pytest.raises(AssertionError):
        stack(tuple(matrices[::-1]))
