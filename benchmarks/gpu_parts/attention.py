"""Attention kernels at telling sizes, against the device's limits and what else is installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gpu_parts.attention_peers import Lay, decode_peers, prefill_peers
from gpu_parts.coded_inputs import EIGHT_BITS, CodedInputs
from gpu_parts.latent_inputs import LatentInputs
from gpu_parts.paged_inputs import Heads, PagedInputs, Span
from gpu_parts.results import Job
from gpu_parts.setting import Limits, Setting

LLAMA_8B = Heads(32, 8, 128)
QWEN3_14B = Heads(40, 8, 128)
QWEN3_06B = Heads(16, 8, 128)
_TINY = Heads(4, 2, 16)
_CHECKED_ROWS = 64
"""Queries of the first two sequences that are compared with float64."""


@dataclass(frozen=True, slots=True)
class Case:
    """So many sequences alike."""

    heads_name: str
    heads: Heads
    num_sequences: int
    context: int

    @property
    def name(self) -> str:
        return f"{self.num_sequences} x {self.context:,}, {self.heads_name}"

    def inputs(self, setting: Setting, num_queries: int) -> PagedInputs:
        """Random ones, the same in every run."""
        like = torch.empty(0, dtype=setting.dtype, device=setting.device)
        spans = [Span(self.context, num_queries)] * self.num_sequences
        return PagedInputs(self.heads, spans, like, setting.generator(0))

    def bytes(self, dtype: torch.dtype) -> int:
        """Keys and values, about."""
        numbers = 2 * self.heads.num_kv_heads * self.heads.head_dim
        return self.num_sequences * self.context * numbers * dtype.itemsize


@dataclass(frozen=True, slots=True)
class LatentCase(Case):
    """The same, of latents of so many numbers, and shared keys behind them."""

    rank: int

    def inputs(self, setting: Setting, num_queries: int) -> LatentInputs:
        """Random ones, the same in every run."""
        like = torch.empty(0, dtype=setting.dtype, device=setting.device)
        spans = [Span(self.context, num_queries)] * self.num_sequences
        return LatentInputs(self.heads, self.rank, spans, like, setting.generator(0))


DECODE = (
    Case("Llama-3-8B", LLAMA_8B, 64, 4096),
    Case("Llama-3-8B", LLAMA_8B, 1, 32768),
    Case("Llama-3-8B", LLAMA_8B, 256, 1024),
    Case("Qwen3-14B", QWEN3_14B, 64, 4096),
    Case("Qwen3-0.6B", QWEN3_06B, 64, 4096),
    Case("Llama-3-8B", LLAMA_8B, 1, 4096),
)
PREFILL = (
    Case("Llama-3-8B", LLAMA_8B, 1, 8192),
    Case("Llama-3-8B", LLAMA_8B, 8, 2048),
    Case("Qwen3-0.6B", QWEN3_06B, 1, 8192),
)
HIT = (
    Case("Llama-3-8B", LLAMA_8B, 1, 8192),
    Case("Llama-3-8B", LLAMA_8B, 16, 8192),
)
_NEW_TOKENS = 20
"""New tokens of a prompt whose beginning was cached."""
LATENTS = (
    LatentCase("DeepSeek-V2-Lite", Heads(16, 1, 576), 64, 4096, 512),
    LatentCase("DeepSeek-V2-Lite", Heads(16, 1, 576), 1, 32768, 512),
    LatentCase("DeepSeek-V3", Heads(128, 1, 576), 64, 4096, 512),
    LatentCase("MiniCPM3", Heads(40, 1, 288), 64, 4096, 256),
)
LATENT_PROMPTS = (
    LatentCase("DeepSeek-V2-Lite", Heads(16, 1, 576), 1, 8192, 512),
    LatentCase("DeepSeek-V3", Heads(128, 1, 576), 1, 8192, 512),
)
TINY_LATENTS = (LatentCase("tiny", Heads(4, 1, 24), 1, 32, 16),)
TINY_DECODE = (Case("tiny", _TINY, 2, 32),)
TINY_PREFILL = (Case("tiny", _TINY, 1, 32),)


def measure_decode(setting: Setting, job: Job, limits: Limits) -> None:
    """Decode attention, of plain caches and of codes: share of the copy bandwidth."""
    peers = decode_peers(tiny=setting.tiny)
    for number, case in enumerate(TINY_DECODE if setting.tiny else DECODE):
        with job.attempt(f"decode attention {case.name}"):
            if not _fits(setting, job, case):
                continue
            inputs = case.inputs(setting, 1)
            bench = _Bench(setting, job, case, inputs, "decode attention", limits)
            bench.own(inputs.decode())
            bench.peers(_chosen(setting, peers, number))
            for name in EIGHT_BITS:
                _measure_codes(setting, job, case, CodedInputs(inputs, name), name, limits)
    for case in TINY_LATENTS if setting.tiny else LATENTS:
        _measure_latents(setting, job, case, 1, limits)


def _measure_latents(
    setting: Setting, job: Job, case: LatentCase, num_queries: int, limits: Limits
) -> None:
    """Attention to latents, in decode or of whole prompts: nothing else here does it."""
    kernel = "decode attention, latents" if num_queries == 1 else "prefill attention, latents"
    with job.attempt(f"{kernel} {case.name}"):
        if not _fits(setting, job, case):
            return
        inputs = case.inputs(setting, num_queries)
        run = inputs.decode() if num_queries == 1 else inputs.prefill()
        _Bench(setting, job, case, inputs, kernel, limits).own(run)


def _measure_codes(
    setting: Setting, job: Job, case: Case, inputs: CodedInputs, name: str, limits: Limits
) -> None:
    """Decode attention of a cache of codes: their bytes are what is read."""
    kernel = f"decode attention, {name}"
    with job.attempt(f"{kernel} {case.name}"):
        _Bench(setting, job, case, inputs, kernel, limits).own(inputs.decode())


def measure_prefill(setting: Setting, job: Job, limits: Limits) -> None:
    """Prefill attention of whole prompts: share of the rate of products; and of hits."""
    peers = prefill_peers(tiny=setting.tiny)
    for number, case in enumerate(TINY_PREFILL if setting.tiny else PREFILL):
        with job.attempt(f"prefill attention {case.name}"):
            if not _fits(setting, job, case):
                continue
            inputs = case.inputs(setting, case.context)
            bench = _Bench(setting, job, case, inputs, "prefill attention", limits)
            bench.own(inputs.prefill())
            bench.peers(_chosen(setting, peers, number))
    for case in TINY_LATENTS if setting.tiny else LATENT_PROMPTS:
        _measure_latents(setting, job, case, case.context, limits)
    _measure_hits(setting, job, limits)


def _measure_hits(setting: Setting, job: Job, limits: Limits) -> None:
    """Prefill attention of a few new tokens after a long cached prefix: share of copy bandwidth."""
    for case in TINY_PREFILL if setting.tiny else HIT:
        with job.attempt(f"attention of a hit {case.name}"):
            if not _fits(setting, job, case):
                continue
            inputs = case.inputs(setting, _NEW_TOKENS)
            bench = _Bench(setting, job, case, inputs, "attention of a hit", limits)
            bench.own(inputs.prefill())


def _fits(setting: Setting, job: Job, case: Case) -> bool:
    """The blocks, and twice as much for the layouts of others."""
    wanted = 4 * case.bytes(setting.dtype) + 2**28
    if wanted < setting.free_bytes():
        return True
    job.left_out(case.name, f"it takes about {wanted / 2**30:.0f} GiB")
    return False


def _chosen(setting: Setting, peers: dict[str, Lay], number: int) -> dict[str, Lay]:
    """FlexAttention is compiled for each shape, which takes long: the first alone, when quick."""
    if setting.quick and number:
        return {name: lay for name, lay in peers.items() if name != "FlexAttention"}
    return peers


class _Bench:
    """One case: our kernel, then the others on the same numbers."""

    def __init__(
        self, setting: Setting, job: Job, case: Case, inputs: PagedInputs, kernel: str,
        limits: Limits,
    ) -> None:  # fmt: skip
        self._setting, self._job, self._case = setting, job, case
        self._inputs, self._kernel, self._limits = inputs, kernel, limits

    def own(self, run: Callable[[], None]) -> None:
        """The kernel of this project."""
        run()
        self._add("pagoda", "", run, self._inputs.out)

    def peers(self, peers: dict[str, Lay]) -> None:
        """Every way in which every peer can do it."""
        for name, lay in peers.items():
            what = f"{self._kernel} {self._case.name}, {name}"
            with self._job.attempt(what):
                reason, num_found = "", 0
                for attempt in lay(self._inputs):
                    try:
                        found = attempt.rows(attempt.run())
                    except RuntimeError as error:  # as SDPA says that a backend has no kernel
                        reason = str(error).strip().splitlines()[0]
                        continue
                    self._add(attempt.peer, attempt.way, attempt.run, found)
                    num_found += 1
                if not num_found:
                    self._job.left_out(what, reason)

    def _add(self, name: str, way: str, run: Callable[[], object], found: torch.Tensor) -> None:
        error = self._inputs.error(found, sequences=2, last=_CHECKED_ROWS)
        timing = self._setting.clock.time(run)
        moved, operations = self._inputs.moved_bytes, self._inputs.operations
        is_prefill = self._kernel.startswith("prefill")
        limit = self._limits.product_rate if is_prefill else self._limits.copy_bandwidth
        amount = operations if is_prefill else moved
        share = amount / timing.median / limit
        label = f"{name} ({way})" if way else name
        self._job.add(
            f"{self._kernel} {self._case.name}: {label} {timing.median * 1e6:,.0f} us, "
            f"{share:.0%} of the limit, error {error:.1e}",
            kernel=self._kernel,
            case=self._case.name,
            engine=name,
            way=way,
            bytes=moved,
            operations=operations,
            bound="product" if is_prefill else "copy",
            best_seconds=timing.best,
            median_seconds=timing.median,
            share=share,
            relative_error=error,
        )
