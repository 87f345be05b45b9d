"""Streams step aside for one step, where a tenant begins that has been served less."""

from __future__ import annotations

from fake_model import FakeModel, request

from pagoda.cache import CacheManager
from pagoda.cache.quota import Quota
from pagoda.scheduling import Scheduler, Sequence

STREAMS = 8


def make(num_blocks: int = 2000, **options: object) -> tuple[Scheduler, FakeModel]:
    quotas = options.pop("quotas", None)
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 16, "max_model_len": 400}
    limits["streams_step_aside"] = True
    cache = CacheManager(num_blocks, 4, quotas=quotas)  # type: ignore[arg-type]
    scheduler = Scheduler(cache, **(limits | options))  # type: ignore[arg-type]
    return scheduler, FakeModel(scheduler, num_blocks)


def ask(scheduler: Scheduler, tenant: str, number: int, num_prompt: int = 3) -> Sequence:
    prompt = [(number + 2 * place) % 5 for place in range(num_prompt)]
    options = {"tenant": tenant, "arrival_time": number, "max_tokens": 100}
    (sequence,) = scheduler.add(request(f"{tenant}{number}", prompt, **options))
    return sequence


def streaming(tenant: str = "a", steps: int = 30, **options: object) -> tuple[Scheduler, FakeModel]:
    """`STREAMS` of a tenant, who has been served some tokens."""
    scheduler, model = make(**options)  # type: ignore[arg-type]
    for number in range(STREAMS):
        ask(scheduler, tenant, number)
    for _ in range(steps):
        model.step()
    return scheduler, model


def num_of(scheduler: Scheduler, tenants: dict[str, int]) -> dict[str, int]:
    """Sequences of each tenant in the next step."""
    plan = scheduler.schedule()
    found = dict.fromkeys(tenants, 0)
    for scheduled in plan.sequences:
        sequence = scheduler.sequence(scheduled.sequence_id)
        found[sequence.tenant] += 1
        scheduler.update(scheduled, 1 if scheduled.samples else None)
    return found


def test_a_prompt_of_who_was_served_less_has_a_step_to_itself_and_not_two() -> None:
    scheduler, _ = streaming()
    ask(scheduler, "b", 100, num_prompt=40)
    assert num_of(scheduler, {"a": 0, "b": 0}) == {"a": 0, "b": 1}
    ask(scheduler, "b", 101, num_prompt=40)
    assert num_of(scheduler, {"a": 0, "b": 0}) == {"a": STREAMS, "b": 2}
    ask(scheduler, "b", 102, num_prompt=40)
    assert num_of(scheduler, {"a": 0, "b": 0})["a"] == 0, "its turn has come again"


def test_what_was_found_of_a_prompt_needs_no_step() -> None:
    """A prompt of two steps' tokens, half of them cached."""
    scheduler, model = streaming()
    first = ask(scheduler, "b", 100, num_prompt=64)
    while not first.ending:
        model.step()
    for _ in range(40):
        model.step()
    scheduler.add(request("later", [*first.token_ids[:64], *[3] * 60], tenant="b"))
    assert num_of(scheduler, {"a": 0, "b": 0}) == {"a": 0, "b": 1}


def test_nobody_steps_aside() -> None:
    """For a prompt of several steps, of the same tenant, of one who would be ahead then, where
    streams do not."""
    for tenant, num_prompt, options, steps in (
        ("b", 65, {}, 30),
        ("b", 40, {"long_prefill_token_threshold": 39}, 30),
        ("a", 40, {}, 30),
        ("b", 60, {"tenant_weights": {"a": 10.0}}, 30),
        ("b", 40, {"streams_step_aside": False}, 30),
    ):
        scheduler, _ = streaming(steps=steps, **options)
        ask(scheduler, tenant, 100, num_prompt)
        assert num_of(scheduler, {"a": 0, "b": 0})["a"] >= STREAMS, (tenant, num_prompt, options)


def test_streams_go_on_where_the_prompt_cannot_begin() -> None:
    """Its tenant holds all blocks but a few that it may have."""
    scheduler, model = streaming(num_blocks=400, quotas={"b": Quota(cap=103)})
    first = ask(scheduler, "b", 100, num_prompt=330)
    while first.num_output_tokens < 40:
        model.step()
    late = ask(scheduler, "b", 101, num_prompt=60)
    assert num_of(scheduler, {"a": 0, "b": 0}) == {"a": STREAMS, "b": 1}
    assert late.lacks_room
