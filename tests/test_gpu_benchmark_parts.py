"""What the benchmark for GPUs is made of."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from gpu_parts.clock import Clock, Timing
from gpu_parts.engine_rig import check_lengths, engine, run
from gpu_parts.paged_inputs import Heads, PagedInputs, Span
from gpu_parts.promises import num_agreed
from gpu_parts.random_model import random_model
from gpu_parts.report import markdown
from gpu_parts.results import Results
from gpu_parts.setting import Setting
from gpu_parts.shapes import CONFIGS, TINY_CONFIGS, shape_of
from gpu_parts.transformers_peer import TransformersPeer, batches
from gpu_parts.workload import NANO, work_of

from pagoda.roofline import WorkItem
from triton_device import DEVICE

CPU = torch.device("cpu")


@pytest.fixture
def setting() -> Setting:
    return Setting(DEVICE, torch.float32, True, False, ("tiny-qwen3",), Clock(DEVICE, 1))


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_transformers_has_the_very_weights(name: str, setting: Setting, tmp_path: Path) -> None:
    """Both ways of transformers answer as Pagoda does, padded and cut into batches."""
    shape = shape_of(name)
    model = random_model(setting, shape, "float32", 64)
    work = [WorkItem(tuple(range(100, 100 + length)), 4) for length in (3, 17, 9)]
    job = Results.new(tmp_path / "results.json", {}).job("test")
    with engine(setting, job, model, num_gpu_blocks_override=32) as llm:
        expected = run(llm, work)
    paged = {"num_blocks": 16, "max_batch_tokens": 64}
    peer = TransformersPeer(shape.values, shape.spec, model.weights, paged)
    assert peer._model.model.embed_tokens.weight.data_ptr() == model.weights.embedding.data_ptr()
    assert peer.generate(work, most_tokens=50) == expected
    with peer.continuous_batching() as batching:
        assert batching.run(work) == expected
    assert len({tuple(output) for output in expected}) > 1


@pytest.mark.parametrize("num_queries", [1, 5])
@pytest.mark.parametrize("window", [None, 7])
def test_errors_of_attention_are_seen(num_queries: int, window: int | None) -> None:
    heads = Heads(4, 2, 16, block_size=4, window=window)
    spans = [Span(9, num_queries), Span(12, num_queries)]
    like = torch.empty(0, device=DEVICE)
    inputs = PagedInputs(heads, spans, like, torch.Generator(DEVICE).manual_seed(3))
    launch = inputs.decode() if num_queries == 1 else inputs.prefill()
    launch()
    assert inputs.error(inputs.out, sequences=2, last=64) < 1e-6
    wrong = inputs.out.clone()
    wrong[-1, 0] += 1
    assert inputs.error(wrong, sequences=2, last=64) > 1e-2
    wrong[-1, 0, 0] = float("nan")
    assert inputs.error(wrong, sequences=2, last=64) == float("inf")


def test_operations_are_those_under_the_causal_mask() -> None:
    heads = Heads(2, 1, 16)
    inputs = PagedInputs(heads, [Span(5, 3)], torch.empty(0), torch.Generator())
    assert inputs.operations == 4 * 2 * 16 * (3 + 4 + 5)
    assert inputs.kv_bytes == 5 * 2 * 16 * 4


def test_nano_is_256_requests_of_100_to_1024_tokens_in_and_out() -> None:
    work = work_of(NANO, 0, 128_256)
    assert len(work) == 256
    for counts in (
        [len(item.prompt_token_ids) for item in work],
        [item.num_output_tokens for item in work],
    ):
        assert min(counts) >= 100
        assert max(counts) <= 1024
        assert 500 < sum(counts) / 256 < 620
    assert work == work_of(NANO, 0, 128_256)
    assert work != work_of(NANO, 1, 128_256)


def test_static_batches_are_as_large_as_fits() -> None:
    work = [WorkItem((1,) * length, 10) for length in (5, 10, 30, 1)]
    found = [[len(item.prompt_token_ids) for item in batch] for batch in batches(work, 60)]
    assert found == [[5, 10], [30], [1]]


def test_tokens_after_the_first_that_differs_do_not_count() -> None:
    assert num_agreed([1, 2, 3], [1, 2, 3]) == 3
    assert num_agreed([1, 2, 3], [1, 9, 3]) == 1
    with pytest.raises(ValueError, match="shorter"):
        num_agreed([1, 2], [1])
    with pytest.raises(RuntimeError, match="1 tokens were made of 2"):
        check_lengths([[5]], [WorkItem((1,), 2)])


@pytest.mark.parametrize(
    ("name", "billions"), [("llama-3-8b", 8.03), ("qwen3-0.6b", 0.596), ("qwen3-14b", 14.77)]
)
def test_shapes_have_their_models_sizes(name: str, billions: float) -> None:
    assert set(CONFIGS) == {"llama-3-8b", "qwen3-0.6b", "qwen3-14b"}
    assert shape_of(name).num_weights / 1e9 == pytest.approx(billions, rel=2e-3)


def test_a_table_shows_the_fastest_way_of_each() -> None:
    def kernel(engine: str, way: str, seconds: float) -> dict[str, Any]:
        return {
            "kernel": "decode attention", "case": "2 x 4", "engine": engine, "way": way,
            "bytes": 4000, "bound": "copy", "best_seconds": seconds / 2,
            "median_seconds": seconds, "share": 0.5, "relative_error": 0.002,
        }  # fmt: skip

    def job(*found: dict[str, Any]) -> dict[str, Any]:
        return {"rows": list(found), "failures": [], "left_out": [], "seconds": 1.0}

    timed = {"kind": "workload", "model": "m", "workload": "long", "prompt_tokens": 9}
    timed |= {"output_tokens": 8, "tokens_per_second": 4.0, "roofline_seconds": 1.0, "share": 0.5}
    content = {
        "about": {"device": "A card", "dtype": "bfloat16", "versions": {"torch": "2.11"}},
        "limits": {"copy_bandwidth": 4e12, "product_rate": 7e14},
        "jobs": {
            "kernels:decode": job(
                kernel("pagoda", "", 1e-5), kernel("SDPA", "a", 4e-5), kernel("SDPA", "b", 2e-5)
            ),
            "engine:m": job(
                {**timed, "engine": "pagoda", "best_seconds": 2.0},
                {**timed, "engine": "other", "best_seconds": 4.0},
            ),
        },
    }
    text = markdown(content)
    assert "A card, bfloat16; torch 2.11. Memory copies at 4,000 GB/s" in text
    assert "| decode attention | 2 x 4 | SDPA, b | 20.0 | 10.0 | 0 GB/s | 50% | 2.0e-03 |" in text
    assert "SDPA, a" not in text
    assert "| m | long | other | 4.00 | 4 | 0.50 |" in text


def test_a_timing_has_the_best_and_the_middle() -> None:
    assert Timing.of([3.0, 1.0, 2.0]) == Timing(best=1.0, median=2.0)
    calls: list[None] = []
    Clock(CPU, 4).time(lambda: calls.append(None))
    assert len(calls) == 4


class FakeEvent:
    """As torch.cuda.Event; the clock's tensor counts as the only work of a device."""

    log: ClassVar[list[str]] = []

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.log.append("record")

    def elapsed_time(self, end: FakeEvent) -> float:
        return 2.0


def test_a_gpu_is_timed_by_events_after_its_cache_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FakeEvent.log
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.append("wait"))
    clock = Clock(torch.device("cuda", 0), 2)
    clock._read = SimpleNamespace(max=lambda: log.append("sweep"))  # type: ignore[assignment]
    assert clock.time(lambda: log.append("run")) == Timing(best=0.002, median=0.002)
    one = ["sweep", "record", "run", "record"]
    assert log == ["run"] * 3 + ["wait"] + one * 2 + ["wait"]
