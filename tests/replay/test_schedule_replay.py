"""A replayed scheduler beside one that serves tokens, and the model of time."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pagoda.cache import CacheManager
from pagoda.cache.prefix import BlockHash, block_key
from pagoda.cache.quota import Quota
from pagoda.cache_hint import CacheHint
from pagoda.replay.clock import Clock
from pagoda.replay.formats.pagoda_rows import header_line, row_line
from pagoda.replay.recorded import RecordedQuota, RecordedSetting
from pagoda.replay.schedule_replay import ScheduleReplay
from pagoda.replay.schedule_what_if import SchedulerSetting, ServerSetting, replay_servers
from pagoda.replay.step_cost import USUAL_COST, LinearCost, StepWork, parse_linear_cost
from pagoda.replay.trace import TracedRequest
from pagoda.replay.trace_file import TraceFile
from pagoda.replay.what_if import CacheSetting
from pagoda.request import Request
from pagoda.scheduling import Scheduler
from replay.traces import UNIT, ListedTrace, asked, prefixes
from scheduling.fake_model import FakeModel, request

QUOTAS = (RecordedQuota("b", 8, 20, 2.0), RecordedQuota("c", 6))
SECOND = LinearCost(step=1.0, token=0.0)


def replayed(requests: list[TracedRequest], *, num_blocks: int = 64, **options: object):  # type: ignore[no-untyped-def]
    clock = Clock()
    cache = CacheManager(num_blocks, UNIT, clock=clock.read)
    scheduler = Scheduler(cache, max_num_batched_tokens=64, max_num_seqs=4, max_model_len=500)
    replay = ScheduleReplay(scheduler, SECOND, max_model_len=500, clock=clock, **options)  # type: ignore[arg-type]
    outcome = replay.run(requests)
    scheduler.cache.check_integrity()
    assert not scheduler.has_unfinished
    return outcome


@dataclass
class Served:
    """A request that a scheduler serves with its tokens, and what is recorded of it."""

    asked: Request
    step: int
    tokens: list[int]
    ended_at: int | None = None


def serve(setting: RecordedSetting, seed: int) -> tuple[Scheduler, list[Served]]:
    """A busy hour with real tokens: shared beginnings, turns, salts, some that give up."""
    source = random.Random(seed)
    cache = CacheManager(
        setting.num_blocks,
        setting.block_size,
        enable_prefix_caching=setting.enable_prefix_caching,
        quotas={each.tenant: Quota(each.floor, each.cap) for each in setting.tenant_quotas},
    )
    scheduler = Scheduler(
        cache,
        tenant_weights={each.tenant: each.weight for each in setting.tenant_quotas},
        max_num_batched_tokens=setting.max_num_batched_tokens,
        max_num_seqs=setting.max_num_seqs,
        max_model_len=setting.max_model_len,
        long_prefill_token_threshold=setting.long_prefill_token_threshold,
    )
    model = FakeModel(scheduler, setting.num_blocks, num_ahead=setting.steps_ahead)
    served: list[Served] = []
    num_turns = 0
    while len(served) < 60 or scheduler.has_unfinished or model.ahead:
        if len(served) < 60 and (source.random() < 0.4 or not scheduler.has_unfinished):
            served.append(_arrive(scheduler, source, served, num_turns, setting))
        for each in served:
            sequences = scheduler._register.of(each.asked.request_id)
            if sequences and source.random() < 0.005:
                each.ended_at = num_turns
                scheduler.abort(each.asked.request_id)
        concludes = bool(model.ahead)
        num_turns += bool(model.step().sequences) or concludes
    return scheduler, served


def _arrive(
    scheduler: Scheduler, source: random.Random, before: list[Served], step: int,
    setting: RecordedSetting,
) -> Served:  # fmt: skip
    prompt = [source.randrange(5) for _ in range(source.randint(1, 20))]
    if before and source.random() < 0.6:
        prompt = source.choice(before).tokens[: source.randint(1, 30)] + prompt
    room = setting.max_model_len - len(prompt)
    asked_for = request(
        str(len(before)),
        prompt,
        max_tokens=source.randint(1, min(20, room)),
        cache_salt=source.choice(["", "", "salt"]),
        cache_hint=source.choice([None, None, *CacheHint]),
        tenant=source.choice(["", *(each.tenant for each in setting.tenant_quotas)]),
        arrival_time=step / 10,
        stop_token_ids=(3,) if source.random() < 0.3 else (),
    )
    [sequence] = scheduler.add(asked_for)
    assert isinstance(sequence.token_ids, list)
    return Served(asked_for, step, sequence.token_ids)


def write(
    path: Path, setting: RecordedSetting, served: list[Served], *, turns_before: int = 0
) -> None:
    """`turns_before`: of the server, in an older file."""
    for each in served:
        each.step += turns_before
        each.ended_at = None if each.ended_at is None else each.ended_at + turns_before
    rows = [_row(number, each, setting.block_size) for number, each in enumerate(served)]
    random.Random(5).shuffle(rows)
    path.write_text(header_line(setting) + "".join(rows), "utf-8")


def _row(number: int, each: Served, block_size: int) -> str:
    options, prompt = each.asked.options, len(each.asked.prompt_token_ids)
    hashes, parent = [], BlockHash(f"{options.tenant}|{options.cache_salt}".encode())
    for start in range(0, len(each.tokens) - block_size + 1, block_size):
        parent = block_key(parent, each.tokens[start : start + block_size]).hash
        hashes.append(parent[:8])
    stopped = len(each.tokens) - prompt < (each.asked.sampling.max_tokens or 0)
    traced = TracedRequest(
        arrival_s=each.asked.arrival_time,
        num_prompt_tokens=prompt,
        num_output_tokens=len(each.tokens) - prompt,
        unit_ids=[],
        unit_size=block_size,
        num_known_tokens=0,
        tenant=options.tenant,
        cache_salt=options.cache_salt,
        cache_hint=options.cache_hint,
        arrival_step=each.step,
        end_step=each.ended_at,
    )
    return row_line(number, traced, hashes, "stop" if stopped else "length")


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("seed", range(12))
def test_a_recorded_day_is_the_same_again(tmp_path: Path, seed: int, steps_ahead: int) -> None:
    setting = RecordedSetting(
        num_blocks=20 if seed % 2 else 40,
        block_size=4,
        eviction_policy="lru",
        enable_prefix_caching=seed != 3,
        max_num_batched_tokens=16,
        max_num_seqs=6,
        max_model_len=72,
        long_prefill_token_threshold=8 if seed == 2 else 0,
        steps_ahead=steps_ahead,
        tenant_quotas=QUOTAS if seed == 4 else (),
    )
    scheduler, served = serve(setting, seed)
    turns_before = 50_000 if seed in (1, 5) else 0
    write(tmp_path / "day.jsonl", setting, served, turns_before=turns_before)
    trace = TraceFile(tmp_path / "day.jsonl")
    server = ServerSetting(
        CacheSetting(setting.num_blocks, 4, "lru", setting.enable_prefix_caching),
        SchedulerSetting(
            max_num_batched_tokens=16,
            max_num_seqs=6,
            max_model_len=72,
            long_prefill_token_threshold=setting.long_prefill_token_threshold,
            steps_ahead=steps_ahead,
            tenant_quotas=setting.tenant_quotas,
            quota_num_blocks=setting.num_blocks,
        ),
    )
    [answer] = replay_servers(trace, [server], lambda _: USUAL_COST)
    assert trace.faults.examples == []
    assert answer.by_steps
    cache, stats, again = scheduler.cache.stats(), scheduler.stats(), answer.outcome
    assert (again.num_requests, again.num_refused) == (60, 0)
    assert (again.num_prompt_tokens, again.num_hit_tokens) == (
        cache.prefix_queries,
        cache.prefix_hits,
    )
    assert again.num_evictions == cache.evictions
    assert again.num_preemptions == stats.num_preemptions
    assert again.num_computed_tokens == stats.num_computed_tokens
    if seed == 1:
        assert stats.num_preemptions > 0
        assert cache.evictions > 0


def test_times_are_the_models() -> None:
    # A prompt of 8 and 3 tokens: 3 steps of a second. The second one comes while the first runs.
    outcome = replayed(
        [asked([1, 2], output=3, at=10.0), asked([3], output=1, at=11.5, tenant="b")]
    )
    assert outcome.num_steps == 3
    assert outcome.span_s == pytest.approx(3.0)
    assert outcome.time_to_first_token.p50 == pytest.approx((1.0 + 1.5) / 2)
    assert outcome.end_to_end.p50 == pytest.approx((3.0 + 1.5) / 2)
    assert outcome.tokens_per_s == pytest.approx(4 / 3)
    # Two blocks for a second, three for two; one of b's for the last second.
    assert outcome.block_seconds == {"": pytest.approx(2 + 3 * 2), "b": pytest.approx(1.0)}


def test_time_goes_on_to_whoever_comes_next() -> None:
    outcome = replayed([asked([1], output=1), asked([1], output=1, at=100.0)])
    assert outcome.span_s == pytest.approx(101.0)
    assert outcome.num_hit_tokens == 3
    assert outcome.time_to_first_token.p99 == pytest.approx(1.0)


def test_requests_that_are_too_long_are_counted() -> None:
    requests = [asked([1, 2, 3], output=100), asked(range(150), output=1), asked([5], output=0)]
    outcome = replayed(requests, num_blocks=30)
    assert (outcome.num_requests, outcome.num_refused) == (2, 1)
    assert outcome.num_output_tokens == 101
    assert replayed([]).num_requests == 0


def test_a_step_ahead_gives_the_same_tokens() -> None:
    requests = [
        asked(walk, output=1 + at % 7, at=at * 0.7) for at, walk in enumerate(prefixes(3, 80))
    ]
    alone, ahead = replayed(requests, num_blocks=14), replayed(requests, steps_ahead=1)
    assert alone.num_output_tokens == ahead.num_output_tokens
    assert alone.num_evictions > 0


def test_a_cost_adds_up() -> None:
    cost = LinearCost(step=1, token=10, context=100, pair=1000, draw=1e5)
    work = StepWork(
        num_sequences=2, num_tokens=3, num_sampled=2, num_context_tokens=9, num_pairs=13
    )
    assert cost.seconds(work) == 1 + 30 + 900 + 13_000 + 2e5


def test_costs_are_read_from_words_and_files(tmp_path: Path) -> None:
    assert parse_linear_cost("step=0.5, token=1e-3") == LinearCost(0.5, 0.001)
    (tmp_path / "cost.json").write_text('{"step": 1, "pair": 0.5}')
    assert parse_linear_cost(str(tmp_path / "cost.json")) == LinearCost(1, 0.0, 0.0, 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step", "cannot be read: No such file"),
        ("step=x", "step_cost='step=x': seconds as step=…,token=…,context=…,pair=…,draw=…"),
        ("walk=1", "step_cost='walk=1': seconds as"),
        ("step=-1", "step_cost step=-1.0: must be at least 0 seconds"),
        ("step=nan", "step_cost step=nan"),
        ("context=1", "a step of one token must take some time"),
    ],
)
def test_costs_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_linear_cost(text)


def test_other_settings_go_by_the_clock() -> None:
    trace = ListedTrace([asked(walk, output=5) for walk in prefixes(1, 40)])
    caches = [CacheSetting(16, UNIT, "lru"), CacheSetting(40, 2 * UNIT, "slru")]
    servers = [
        ServerSetting(cache, SchedulerSetting(max_num_batched_tokens=budget))
        for cache in caches
        for budget in (8, 64)
    ]
    answers = list(replay_servers(trace, servers, lambda _: SECOND))
    assert [answer.setting for answer in answers] == servers
    assert answers[0].outcome.num_steps > answers[1].outcome.num_steps
    told = answers[0].as_json()
    assert told["by_steps"] is False
    assert told["hit_rate"] <= told["unbounded_hit_rate"]
    assert told["time_to_first_token_s"]["p50"] > 0


def test_a_day_with_tiers_goes_by_the_clock() -> None:
    trace = ListedTrace([asked(walk, output=5) for walk in prefixes(1, 40)])
    server = ServerSetting(CacheSetting(16, UNIT, "lru"), SchedulerSetting())
    for has_tiers in (False, True):
        trace.recorded = replace(server.as_recorded, has_tiers=has_tiers)
        [answer] = replay_servers(trace, [server], lambda _: SECOND)
        assert answer.by_steps is not has_tiers


def test_quotas_are_the_same_shares_of_another_pool() -> None:
    scheduler = SchedulerSetting(max_model_len=72, tenant_quotas=QUOTAS, quota_num_blocks=40)
    server = ServerSetting(CacheSetting(100, 4, "lru"), scheduler)
    assert server.quotas == {"b": Quota(20, 50), "c": Quota(15)}
    small = ServerSetting(CacheSetting(26, 4, "lru"), scheduler)
    assert small.quotas == {"b": Quota(5, 18), "c": Quota(3)}, "18 blocks are one longest request"
    small.made()
