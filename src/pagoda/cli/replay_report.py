"""Replays as people read them in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pagoda.cache.miss import Cause
from pagoda.replay.schedule_what_if import ScheduleAnswer
from pagoda.replay.what_if import CacheAnswer, CacheSetting

_UNKNOWN = "–"
_MOST_TENANTS = 10


def tables(answers: Sequence[CacheAnswer | ScheduleAnswer]) -> RenderableType:
    """What was found by each setting, and when, where there was a scheduler."""
    scheduled = [answer for answer in answers if isinstance(answer, ScheduleAnswer)]
    if not scheduled:
        return _found(answers)
    return Group(_found(answers), "", _times(scheduled), *_held(scheduled))


def _found(answers: Sequence[CacheAnswer | ScheduleAnswer]) -> Table:
    table = _table(
        *_SETTING,
        "hit\nrate",
        "at best,\nknowing all",
        "without\nend",
        "lost to\neviction",
        "\nevictions",
        "\nrequests",
        "\nrefused",
        "\nseconds",
    )
    for answer in answers:
        outcome, optimum = answer.outcome, answer.optimum
        table.add_row(
            *_setting(answer),
            _share(outcome.hit_rate),
            _share(None if optimum is None else optimum.hit_rate),
            _share(None if optimum is None else optimum.unbounded_hit_rate),
            _share(answer.missed[Cause.EVICTED] / (outcome.num_prompt_tokens or 1)),
            f"{outcome.num_evictions:,}",
            f"{outcome.num_requests:,}",
            f"{outcome.num_refused:,}",
            f"{answer.duration_s:.1f}",
        )
    return table


def _times(answers: Sequence[ScheduleAnswer]) -> Table:
    table = _table(
        *_SETTING,
        "tokens\na step",
        "\nseats",
        "first token\np50 s",
        "\np90 s",
        "\np99 s",
        "output\ntokens/s",
        "pre-\nemptions",
        "\nsteps",
    )
    for answer in answers:
        outcome, scheduler = answer.outcome, answer.setting.scheduler
        first = outcome.time_to_first_token
        table.add_row(
            *_setting(answer),
            f"{scheduler.max_num_batched_tokens:,}",
            f"{scheduler.max_num_seqs:,}",
            *(_seconds(each) for each in (first.p50, first.p90, first.p99)),
            f"{outcome.tokens_per_s:,.0f}",
            f"{outcome.num_preemptions:,}",
            f"{outcome.num_steps:,}",
        )
    return table


def _held(answers: Sequence[ScheduleAnswer]) -> list[RenderableType]:
    """Block-seconds by tenant, where there are several and one setting."""
    if len(answers) != 1 or len(answers[0].outcome.block_seconds) < 2:
        return []
    held = answers[0].outcome.block_seconds
    most = sorted(held.items(), key=lambda item: -item[1])[:_MOST_TENANTS]
    table = _table("tenant", "block-\nseconds", "\nshare")
    for tenant, seconds in most:
        part = seconds / (sum(held.values()) or 1)
        table.add_row(tenant or _UNKNOWN, f"{seconds:,.0f}", _share(part))
    more = len(held) - len(most)
    return ["", table, *([Text(f"and {more:,} tenants more", style="dim")] if more else [])]


_SETTING = ("policy", "block\nsize", "\nblocks")


def _setting(answer: CacheAnswer | ScheduleAnswer) -> tuple[str, str, str]:
    cache = cache_of(answer)
    name = name_of(cache)
    return name, f"{cache.block_size:,}", f"{cache.num_blocks:,}"


def name_of(cache: CacheSetting) -> str:
    """Its policy, and how it stores where several formats are tried."""
    return ", ".join(filter(None, (cache.eviction_policy, cache.kv_cache_dtype)))


def cache_of(answer: CacheAnswer | ScheduleAnswer) -> CacheSetting:
    """The cache that was tried."""
    return answer.setting.cache if isinstance(answer, ScheduleAnswer) else answer.setting


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.1%}"


def _seconds(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def _table(first: str, *headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(f"\n{first}", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
