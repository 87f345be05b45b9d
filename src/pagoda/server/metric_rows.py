"""What `/metrics` tells: a row a metric. A new one is a row here, and what it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from pagoda.cache.curve import HitRateCurve
from pagoda.cache.miss import Cause
from pagoda.scheduling import FinishReason
from pagoda.server.admission import Admission
from pagoda.server.tier_metrics import by_reason, moved, of_tiers
from pagoda.server.traffic import Traffic
from pagoda.sizing import stored_cache

if TYPE_CHECKING:
    from pagoda.engine.block_lives import BlockLives
    from pagoda.engine.histogram import Histogram
    from pagoda.engine.stats import EngineStats
    from pagoda.engine.timeline import Timeline
    from pagoda.engine.transfers.transfer_stats import TransferStats
    from pagoda.engine.usage import Usage

LabelValues = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that metrics are read from, as of one scrape."""

    stats: EngineStats
    stored: stored_cache.StoredCache | None
    """How keys and values are stored; None: the engine does not tell."""
    timeline: Timeline
    curve: HitRateCurve | None
    """What other sizes of the cache would find; None: the engine does not tell."""
    block_lives: BlockLives
    admission: Admission
    traffic: Traffic
    transfers: TransferStats
    usage: Mapping[str, Usage]
    """By tenant."""
    step_age_s: float
    """Seconds since the running step began."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric: vLLM's name where it has one, without the prefix and a counter's `_total`."""

    kind: Literal["gauge", "counter", "histogram"]
    name: str
    help: str
    read: Callable[[Figures], float | Histogram | Mapping[LabelValues, float]]
    """A number; a histogram's counts; or, with `labels`, a number for each of their values."""
    labels: LabelValues = ()
    """Beside those that every metric carries."""


def _by_reason(figures: Figures) -> Mapping[LabelValues, float]:
    finished = figures.stats.num_finished
    return {(reason,): finished.get(reason, 0) for reason in get_args(FinishReason)}


def _of_hints(figures: Figures) -> Mapping[LabelValues, float]:
    hints = figures.stats.cache.hints
    return {
        ("set_apart",): hints.num_set_apart,
        ("found",): hints.num_found,
        ("given_up",): hints.num_given_up,
    }


def _by_source(figures: Figures) -> Mapping[LabelValues, float]:
    return {
        ("local_compute",): figures.stats.prompt_tokens_computed,
        ("local_cache_hit",): figures.stats.prompt_tokens_cached,
    }


def _by_cause(figures: Figures) -> Mapping[LabelValues, float]:
    missed = figures.stats.prefix_cache_miss_tokens
    return {(cause.value,): missed.get(cause, 0) for cause in Cause}


def _tenant_tokens(figures: Figures) -> Mapping[LabelValues, float]:
    return {
        (tenant, kind): getattr(usage.tokens, f"{kind}_tokens")
        for tenant, usage in figures.usage.items()
        for kind in ("prompt", "cached", "computed", "generated")
    }


def _of_tenants_blocks(figures: Figures, name: str) -> Mapping[LabelValues, float]:
    """`name`: of a field of `Holding`, with {} where the state stands."""
    return {
        (tenant, state): getattr(usage.blocks, name.format(state))
        for tenant, usage in figures.usage.items()
        for state in ("held", "cached")
    }


def _hit_rates(figures: Figures) -> Mapping[LabelValues, float]:
    points = () if figures.curve is None else figures.curve.points()
    return {
        (f"{point.multiple:g}", point.policy): point.hit_rate
        for point in points
        if point.hit_rate is not None
    }


def _cache_layout(figures: Figures) -> Mapping[LabelValues, float]:
    cache = figures.stats.cache
    layout = (cache.block_size, cache.num_blocks, cache.enable_prefix_caching)
    stored = figures.stored
    values = ("",) * len(stored_cache.LABELS) if stored is None else stored.label_values()
    return {(*map(str, layout), *values): 1}


def _http_requests(figures: Figures) -> Mapping[LabelValues, float]:
    return {
        (kind.route, kind.method, str(kind.status)): count
        for kind, count in figures.traffic.num_answered.items()
    }


def _rejections(figures: Figures) -> Mapping[LabelValues, float]:
    return {(code,): count for code, count in figures.admission.num_rejected.items()}


# fmt: off
METRIC_ROWS = (
    MetricRow("gauge", "num_requests_running", "Sequences in the running batch.",
              lambda figures: figures.stats.num_requests_running),
    MetricRow("gauge", "num_requests_waiting", "Sequences waiting to be scheduled.",
              lambda figures: figures.stats.num_requests_waiting),
    MetricRow("gauge", "kv_cache_usage_perc", "KV cache usage; 1 means 100 per cent.",
              lambda figures: figures.stats.kv_cache_usage),
    MetricRow("gauge", "step_age_seconds", "Seconds since the running step began; 0 while none is.",
              lambda figures: figures.step_age_s),
    MetricRow("counter", "num_preemptions", "Preemptions.",
              lambda figures: figures.stats.num_preemptions),
    MetricRow("counter", "prefix_cache_queries", "Tokens looked up in the prefix cache.",
              lambda figures: figures.stats.prefix_cache_queries),
    MetricRow("counter", "prefix_cache_hits", "Tokens found in the prefix cache.",
              lambda figures: figures.stats.prefix_cache_hits),
    MetricRow("counter", "prefix_cache_miss_tokens",
              "Prompt tokens that did not come from the cache when a sequence began, by cause.",
              _by_cause, labels=("cause",)),
    MetricRow("gauge", "prefix_cache_hit_rate_at",
              "Share of the tokens looked up lately that another size would find, by policy.",
              _hit_rates, labels=("multiple", "policy")),
    MetricRow("counter", "external_prefix_cache_queries",
              "Tokens that the prefix cache did not have and tiers were asked for.",
              lambda figures: figures.transfers.num_tokens_asked),
    MetricRow("counter", "external_prefix_cache_hits", "Tokens that came from tiers.",
              lambda figures: figures.transfers.num_tokens_loaded),
    MetricRow("gauge", "kv_tier_lossy_form",
              "1 for the lossy form that all blocks lie in on tiers, if they have one.",
              lambda figures: {(form,): 1 for form in [figures.transfers.lossy_form] if form},
              labels=("form",)),
    MetricRow("counter", "kv_tier_lookups",
              "Look-ups of prefixes in tiers, and what was loaded after them, by how they ended.",
              lambda figures: {(how,): number
                               for how, number in figures.transfers.endings.items()},
              labels=("ending",)),
    MetricRow("gauge", "kv_tier_up", "1 while a tier is asked for blocks, 0 while it is not.",
              lambda figures: of_tiers(figures.transfers, lambda tier: tier.is_open),
              labels=("tier",)),
    MetricRow("gauge", "kv_tier_round_trip_seconds",
              "What a question to a tier takes that moves no blocks, as measured of late.",
              lambda figures: of_tiers(figures.transfers, lambda tier: tier.round_trip_s),
              labels=("tier",)),
    MetricRow("gauge", "kv_tier_load_bytes_per_second",
              "Bytes of blocks a second that a tier gives, as measured of late.",
              lambda figures: of_tiers(figures.transfers, lambda tier: tier.bytes_per_s),
              labels=("tier",)),
    MetricRow("gauge", "kv_tier_used_bytes", "What a tier holds, as it told last.",
              lambda figures: of_tiers(figures.transfers, lambda tier: tier.used_bytes),
              labels=("tier",)),
    MetricRow("counter", "kv_tier_queries", "Blocks of prefixes that a tier was asked for.",
              lambda figures: of_tiers(figures.transfers, lambda tier: tier.counts.rows_asked),
              labels=("tier",)),
    MetricRow("counter", "kv_tier_hits", "Blocks of prefixes that a tier said it had.",
              lambda figures: of_tiers(figures.transfers, lambda tier: tier.counts.rows_found),
              labels=("tier",)),
    MetricRow("counter", "kv_tier_frames", "Frames that were loaded from a tier and stored there.",
              lambda figures: moved(figures.transfers, "frames"), labels=("tier", "way")),
    MetricRow("counter", "kv_tier_bytes", "Bytes of those.",
              lambda figures: moved(figures.transfers, "bytes"), labels=("tier", "way")),
    MetricRow("counter", "kv_tier_dropped_stores",
              "Blocks that were not stored, because too many waited to be.",
              lambda figures: of_tiers(figures.transfers, lambda tier: tier.counts.frames_dropped),
              labels=("tier",)),
    MetricRow("counter", "kv_tier_rejected_frames",
              "Frames that were missing or bad when they were loaded, by reason.",
              lambda figures: by_reason(figures.transfers, lambda tier: tier.counts.rejected),
              labels=("tier", "reason")),
    MetricRow("counter", "kv_tier_failures", "Calls that a tier could not do, by reason.",
              lambda figures: by_reason(figures.transfers, lambda tier: tier.counts.failures),
              labels=("tier", "reason")),
    MetricRow("counter", "kv_cache_evictions", "Cached blocks that were forgotten for new ones.",
              lambda figures: figures.stats.num_evicted_blocks),
    MetricRow("gauge", "kv_cache_hinted_blocks",
              "Cached blocks that the policy has given up and that a request's hint keeps.",
              lambda figures: figures.stats.cache.hints.num_kept),
    MetricRow("counter", "kv_cache_hinted",
              "Blocks that hints set apart when the policy gave them up, found thanks to that, "
              "and given up all the same.",
              _of_hints, labels=("what",)),
    MetricRow("counter", "tenant_tokens", "Tokens of each tenant, by what became of them.",
              _tenant_tokens, labels=("tenant", "kind")),
    MetricRow("gauge", "tenant_kv_blocks", "Blocks of each tenant, held or cached.",
              lambda figures: _of_tenants_blocks(figures, "num_{}"), labels=("tenant", "state")),
    MetricRow("counter", "tenant_kv_block_seconds",
              "Blocks that each tenant had, by the seconds that it had them.",
              lambda figures: _of_tenants_blocks(figures, "{}_block_seconds"),
              labels=("tenant", "state")),
    MetricRow("counter", "prompt_tokens", "Prompt tokens of all requests.",
              lambda figures: figures.stats.prompt_tokens),
    MetricRow("counter", "prompt_tokens_cached", "Prompt tokens that came from the cache.",
              lambda figures: figures.stats.prompt_tokens_cached),
    MetricRow("counter", "generation_tokens", "Tokens generated.",
              lambda figures: figures.stats.generation_tokens),
    MetricRow("counter", "prompt_tokens_by_source",
              "Tokens of prompts that are done, by where they came from.",
              _by_source, labels=("source",)),
    MetricRow("counter", "request_success", "Sequences that ended, by reason.",
              _by_reason, labels=("finished_reason",)),
    MetricRow("histogram", "time_to_first_token_seconds",
              "From a sequence's arrival to its first token.",
              lambda figures: figures.timeline.time_to_first_token_seconds),
    MetricRow("histogram", "inter_token_latency_seconds",
              "From each token of a sequence to its next.",
              lambda figures: figures.timeline.inter_token_latency_seconds),
    MetricRow("histogram", "request_time_per_output_token_seconds",
              "A sequence's mean time per token after its first.",
              lambda figures: figures.timeline.request_time_per_output_token_seconds),
    MetricRow("histogram", "e2e_request_latency_seconds",
              "From a sequence's arrival to its last token.",
              lambda figures: figures.timeline.e2e_request_latency_seconds),
    MetricRow("histogram", "request_queue_time_seconds",
              "From a sequence's arrival to its first step.",
              lambda figures: figures.timeline.request_queue_time_seconds),
    MetricRow("histogram", "request_prefill_time_seconds",
              "From a sequence's first step to its first token.",
              lambda figures: figures.timeline.request_prefill_time_seconds),
    MetricRow("histogram", "request_decode_time_seconds",
              "From a sequence's first token to its last.",
              lambda figures: figures.timeline.request_decode_time_seconds),
    MetricRow("histogram", "iteration_tokens_total", "Tokens in one step.",
              lambda figures: figures.timeline.iteration_tokens_total),
    MetricRow("histogram", "request_prompt_tokens", "Tokens of a request's prompt.",
              lambda figures: figures.timeline.request_prompt_tokens),
    MetricRow("histogram", "request_generation_tokens", "Tokens generated by a sequence.",
              lambda figures: figures.timeline.request_generation_tokens),
    MetricRow("histogram", "kv_block_lifetime_seconds",
              "From a block's publication to its eviction.",
              lambda figures: figures.block_lives.kv_block_lifetime_seconds),
    MetricRow("histogram", "kv_block_idle_before_evict_seconds",
              "How long nobody had held a block that was evicted.",
              lambda figures: figures.block_lives.kv_block_idle_before_evict_seconds),
    MetricRow("histogram", "kv_block_reuse_gap_seconds",
              "How long nobody had held a cached block that was used again.",
              lambda figures: figures.block_lives.kv_block_reuse_gap_seconds),
    MetricRow("gauge", "cache_config_info", "How the KV cache is laid out.",
              _cache_layout,
              labels=("block_size", "num_gpu_blocks", "enable_prefix_caching",
                      *stored_cache.LABELS)),
    MetricRow("counter", "http_requests",
              "HTTP requests that have ended, by route, method and status.",
              _http_requests, labels=("route", "method", "status")),
    MetricRow("counter", "requests_rejected",
              "Requests that were not let in, by the code that they were told.",
              _rejections, labels=("code",)),
)
# fmt: on
