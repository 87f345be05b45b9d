"""The figures that a diagnosis rests on, from a window; None where the engine does not tell."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pagoda.doctor.distribution import Distribution
from pagoda.doctor.kept import Kept, kept_of
from pagoda.doctor.other_sizes import METRIC, OtherSizes, other_sizes_of
from pagoda.doctor.step_cost import PromptTime, fitted_prompt_time
from pagoda.doctor.window import Gauge, Window
from pagoda.sizing.measured_cost import NARROWER

_IDLE = 0.02
_MOST_DIGITS = 12
_MOST_TEXT = 10_000
_FEW = 4
"""Intervals with finished requests that a spread of prompt lengths needs."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was asked and done. Tokens and seconds of the window, all engines together."""

    duration_s: float
    num_requests: float
    """Requests that ended well."""
    num_started: float
    """Requests that got their first token."""
    computed_tokens: float
    """Tokens of prompts that went through the model."""
    generated_tokens: float
    steps: Distribution | None
    """Tokens of each step."""
    prompts: Distribution | None
    """Tokens of each prompt whose request ended."""
    prompt_spread: float | None
    """Standard deviation of prompt lengths over their mean, from those of short times."""
    answers: Distribution | None
    """Tokens of each answer."""
    prefill_s: float
    """Seconds from first step to first token, summed over requests that ended."""
    decode_s: float
    """Seconds from first token to last, summed over the same."""
    prompt_time: PromptTime | None
    """What times and tokens of steps say about prompts, fitted."""
    running: Gauge
    waiting: Gauge
    waiting_share: float
    """Share of scrapes that saw a request wait."""
    progress_share: float
    """Share of the times between scrapes that had a step."""
    running_share: float
    """Share of scrapes that saw a request run."""

    @property
    def mean_running(self) -> float:
        """Requests in work at a time.

        A gauge that is set after each step misses those that need few; Little's law misses those
        that have not ended. It also credits all the life of those that ended, part of which may
        lie before the window: no more were there than the gauge saw at most.
        """
        return max(self.running.mean, min(self._in_work, max(self.running.most, 1.0)))

    @property
    def busy_share(self) -> float:
        """Share of the time in which the engine worked.

        Requests in work at a time are a share of it only where the gauge saw none of them.
        """
        seen = self.running_share if self.running.most > 0 else min(self._in_work, 1.0)
        return min(self.progress_share, seen)

    @property
    def busy_s(self) -> float:
        return self.busy_share * self.duration_s

    @property
    def _in_work(self) -> float:
        """Requests at a time by Little's law, of those that ended."""
        return (self.prefill_s + self.decode_s) / self.duration_s if self.duration_s else 0.0

    @property
    def is_stalled(self) -> bool:
        """Something ran or waited at every scrape, and nothing was done."""
        did_nothing = self.computed_tokens + self.generated_tokens == 0
        return did_nothing and self.running.least + self.waiting.least > 0

    @property
    def is_idle(self) -> bool:
        """Nothing was done, or next to nothing of what could have been."""
        did_nothing = self.computed_tokens + self.generated_tokens == 0
        return did_nothing or self.duration_s <= 0 or self.busy_share < _IDLE


@dataclass(frozen=True, slots=True)
class Narrower:
    """A format of K and V in fewer bytes."""

    dtype: str
    """As the engine calls it."""
    times: float
    """As many tokens as now fit into the same memory."""


@dataclass(frozen=True, slots=True)
class Cache:
    """What the KV cache did in the window."""

    block_size: int | None
    num_blocks: int | None
    """Blocks of all replicas together."""
    num_tokens: int | None
    """Tokens' worth of room in all of them."""
    fitting_tokens: int | None
    """What fits in requests of the longest length, as the log says: more, where a part stays."""
    max_model_len: int | None
    """Tokens of the longest request, for which each replica needs room."""
    num_replicas: int
    dtype: str | None
    """As the engine calls it; `auto` is that of the weights."""
    weights_dtype: str | None
    """That of weights and activations, where the engine tells."""
    skipped_layers: tuple[int, ...]
    """Those that keep the dtype of the activations all the same."""
    narrower: Narrower | None
    """What it could be stored as instead, where the engine tells."""
    kept: Kept | None
    """What stays of each sequence; None: the engine does not tell."""
    overridden: bool
    """The number of blocks was given, and no memory."""
    utilization: float | None
    """Share of the accelerator's memory that the engine was given."""
    prefix_caching: bool | None
    usage: Gauge | None
    """Share of blocks that requests hold."""
    queries: float | None
    """Tokens of prompts that were looked up."""
    hits: float | None
    """Tokens of those that were found, here or in a cache beyond the engine's own."""
    preemptions: float | None
    recomputed_tokens: float | None
    """Computed a second time, where steps tell."""
    lifetime: Distribution | None
    """Seconds from a block's allocation to its eviction."""
    idle_before_evict: Distribution | None
    reuse_gap: Distribution | None
    """Seconds from one use of a block to the next."""
    other_sizes: OtherSizes | None = None
    """What more or less memory would find, where the engine tells."""

    @property
    def most_of_sequence(self) -> float:
        """Tokens' worth of room that a sequence holds at most, however long it is.

        What stays need not begin or end with a block, and a block more is kept where it can be.
        """
        if self.kept is None or self.kept.num_tokens is None:
            return math.inf
        return self.kept.num_tokens + 3 * (self.block_size or 0)

    @property
    def hit_rate(self) -> float | None:
        """Share of lookups that hit, in the window and not since the start."""
        return self.hits / self.queries if self.queries and self.hits is not None else None


def traffic_of(window: Window) -> Traffic:
    """What was asked of the engine and done."""
    prompts = window.distribution("request_prompt_tokens")
    return Traffic(
        duration_s=window.duration_s,
        num_requests=(window.increase("request_success_total") or 0.0)
        - (window.increase("request_success_total", finished_reason="abort") or 0.0),
        num_started=window.increase("time_to_first_token_seconds_count") or 0.0,
        computed_tokens=_computed(window),
        generated_tokens=window.increase("generation_tokens_total") or 0.0,
        steps=window.distribution("iteration_tokens_total"),
        prompts=prompts,
        prompt_spread=_spread(window),
        answers=window.distribution("request_generation_tokens"),
        prefill_s=window.increase("request_prefill_time_seconds_sum") or 0.0,
        decode_s=window.increase("request_decode_time_seconds_sum") or 0.0,
        prompt_time=fitted_prompt_time(window),
        running=window.gauge("num_requests_running") or Gauge(0.0, 0.0, 0.0),
        waiting=window.gauge("num_requests_waiting") or Gauge(0.0, 0.0, 0.0),
        waiting_share=window.share_of_time("num_requests_waiting") or 0.0,
        progress_share=_progress(window),
        running_share=window.share_of_time("num_requests_running") or 0.0,
    )


def cache_of(window: Window) -> Cache:
    """What the engine's cache is and did."""
    facts = window.info("cache_config_info")
    first = dict(facts[0]) if facts else {}
    block_size, num_blocks = _whole(first, "block_size"), _together(facts, "num_gpu_blocks")
    in_blocks = None if block_size is None or num_blocks is None else block_size * num_blocks
    # Where layers differ, blocks do not tell how many tokens fit, and the engine says so itself.
    told = _together(facts, "kv_cache_size_tokens")
    fitting = in_blocks if told is None else told
    kept = kept_of(first.get("kv_retention", ""))
    keeps_all = kept is None or kept.num_tokens is None
    on = first.get("enable_prefix_caching")
    return Cache(
        block_size=block_size,
        num_blocks=num_blocks,
        num_tokens=fitting if keeps_all else in_blocks,
        fitting_tokens=fitting,
        max_model_len=_whole(first, "max_model_len"),
        num_replicas=max(len(window.engines), 1),
        dtype=first.get("cache_dtype"),
        weights_dtype=first.get("dtype"),
        skipped_layers=_layers(first.get("kv_cache_dtype_skip_layers", "")),
        narrower=_narrower(first),
        kept=kept,
        overridden=first.get("num_gpu_blocks_override", "None") != "None",
        utilization=_number(first.get("gpu_memory_utilization")),
        prefix_caching=None if on is None else on == "True",
        usage=window.gauge("kv_cache_usage_perc", averaged=True),
        queries=window.increase("prefix_cache_queries_total"),
        hits=_hits(window),
        preemptions=window.increase("num_preemptions_total"),
        recomputed_tokens=_recomputed(window),
        lifetime=window.distribution("kv_block_lifetime_seconds"),
        idle_before_evict=window.distribution("kv_block_idle_before_evict_seconds"),
        reuse_gap=window.distribution("kv_block_reuse_gap_seconds"),
        other_sizes=other_sizes_of(window.last(METRIC)),
    )


def _whole(facts: Mapping[str, str], name: str) -> int | None:
    text = facts.get(name, "")
    is_number = text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if is_number and int(text) > 0 else None


def _together(facts: Sequence[Mapping[str, str]], name: str) -> int | None:
    each = [_whole(one, name) for one in facts]
    return sum(number for number in each if number is not None) or None


def _hits(window: Window) -> float | None:
    own = window.increase("prefix_cache_hits_total")
    beyond = window.increase("external_prefix_cache_hits_total")
    return None if own is None else own + (beyond or 0.0)


def _layers(text: str) -> tuple[int, ...]:
    """Numbers of layers; what is no number, as kinds of layers in vLLM, is left out."""
    found = re.findall(r"(?<![\w.-])\d{1,4}(?![\w.])", text[:_MOST_TEXT])
    return tuple(sorted({int(number) for number in found}))


def _narrower(facts: Mapping[str, str]) -> Narrower | None:
    dtype = facts.get("narrower_cache_dtype")
    now, then = (_number(facts.get(f"{name}bytes_per_token")) for name in ("", "narrower_"))
    is_known = dtype in NARROWER  # and no text that a stranger wants to be printed
    if dtype is None or not is_known or not now or not then or not 0 < then < now < math.inf:
        return None
    return Narrower(dtype, now / then)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _computed(window: Window) -> float:
    computed = window.increase("prompt_tokens_by_source_total", source="local_compute")
    if computed is not None:
        return computed
    # Releases before that counter: all that came, less what was found.
    came = window.increase("prompt_tokens_total") or 0.0
    return max(came - (window.increase("prefix_cache_hits_total") or 0.0), 0.0)


def _recomputed(window: Window) -> float | None:
    """Pagoda's steps count all tokens that were computed, vLLM's each token once."""
    steps = window.increase("iteration_tokens_total_sum")
    if window.engine != "pagoda" or steps is None:
        return None
    if not window.increase("num_preemptions_total"):
        return 0.0  # what is left over then are prompts half done when the window begins and ends
    once = _computed(window) + (window.increase("generation_tokens_total") or 0.0)
    return max(steps - once, 0.0)


def _progress(window: Window) -> float:
    name = "iteration_tokens_total_count"
    moves = window.increases(name if window.has(name) else "generation_tokens_total")
    return sum(move > 0 for move in moves) / len(moves)


def _spread(window: Window) -> float | None:
    """Means of n lengths vary √n times less than the lengths do."""
    counts = window.increases("request_prompt_tokens_count")
    totals = window.increases("request_prompt_tokens_sum")
    means = [(n, total / n) for n, total in zip(counts, totals, strict=True) if n >= 1]
    if len(means) < _FEW:
        return None
    mean = sum(n * m for n, m in means) / sum(n for n, _ in means)
    variance = (
        fmean([n * (m - mean) * (m - mean) for n, m in means]) * len(means) / (len(means) - 1)
    )
    return variance**0.5 / mean if mean > 0 else None
