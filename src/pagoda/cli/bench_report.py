"""What `pagoda bench` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from pagoda import __version__
from pagoda.roofline import MachineLimits
from pagoda.sizing.held_weights import HeldWeights

if TYPE_CHECKING:
    from pagoda.engine.timing import RunTimes


@dataclass(frozen=True, slots=True)
class BenchedEngine:
    """Cache and scheduler of the engine that ran; `pagoda replay --step-cost` plans by them."""

    num_blocks: int
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One workload's figures; those of a run are the best run's."""

    workload: str
    seed: int
    num_prompt_tokens: int
    runs: tuple[RunTimes, ...]
    ready_s: float
    """From the start of loading to the end of a first short request."""
    roofline_s: float
    limits: MachineLimits
    weights: HeldWeights
    activation_dtype: str
    """As `EngineOptions`'."""
    kv_cache_dtype: str
    """Likewise."""
    engine: BenchedEngine

    @property
    def best(self) -> RunTimes:
        return min(self.runs, key=lambda run: run.duration_s)

    @property
    def share(self) -> float:
        """How much of the machine's limit was reached."""
        return self.roofline_s / self.best.duration_s

    def as_json(self) -> dict[str, Any]:
        """Seconds, tokens, bytes a second and operations a second."""
        best = self.best
        per_token_s = best.time_per_output_token_s
        return {
            "engine": "pagoda",
            "version": __version__,
            "workload": self.workload,
            "seed": self.seed,
            "prompt_tokens": self.num_prompt_tokens,
            "output_tokens": best.num_output_tokens,
            "cached_tokens": best.num_cached_tokens,
            "seconds": [round(run.duration_s, 3) for run in self.runs],
            "best_seconds": round(best.duration_s, 3),
            "ready_seconds": round(self.ready_s, 1),
            "time_to_first_token": round(best.time_to_first_token_s, 4),
            "time_per_output_token": None if per_token_s is None else round(per_token_s, 5),
            "roofline_seconds": round(self.roofline_s, 3),
            "share": round(self.share, 3),
            "read_bandwidth": round(self.limits.read_bandwidth),
            "product_rate": round(self.limits.product_rate),
            "weight_read_bytes": self.weights.read_bytes,
            "quantization": self.weights.stored_as,
            "activation_dtype": self.activation_dtype,
            "kv_cache_dtype": self.kv_cache_dtype,
            **asdict(self.engine),
        }


def table(rows: Sequence[BenchRow]) -> Table:
    """A line for each workload, within 80 columns."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("workload", no_wrap=True)
    for heading in (
        "best\nseconds",
        "output\ntokens/s",
        "all\ntokens/s",
        "first\ntoken ms",
        "next\nms",
        "cached\ntokens",
        "roofline\nseconds",
        "share",
    ):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        best = row.best
        num_tokens = row.num_prompt_tokens + best.num_output_tokens
        shown.add_row(
            row.workload,
            f"{best.duration_s:.2f}",
            f"{best.num_output_tokens / best.duration_s:,.0f}",
            f"{num_tokens / best.duration_s:,.0f}",
            _milliseconds(best.time_to_first_token_s),
            _milliseconds(best.time_per_output_token_s),
            f"{best.num_cached_tokens:,}",
            f"{row.roofline_s:.2f}",
            f"{row.share:.0%}",
        )
    return shown


def limits_line(limits: MachineLimits, activation_dtype: str = "auto") -> str:
    """The limits that the roofline was computed from."""
    products = "matrix products" if activation_dtype == "auto" else f"{activation_dtype} products"
    return (
        f"memory reads {limits.read_bandwidth / 1e9:.1f} GB/s, "
        f"{products} {limits.product_rate / 1e12:.2f} TFLOP/s"
    )


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:,.1f}"
