"""Tenants share the steps and the seats by their weights, and nobody waits for another's queue."""

from __future__ import annotations

from collections import Counter

import pytest
from fake_model import FakeModel, expected_output, request
from hypothesis import given
from hypothesis import strategies as st

from pagoda.cache import CacheManager
from pagoda.errors import InvalidOptionError
from pagoda.scheduling import Scheduler, Sequence, Status
from pagoda.scheduling.service import Service

NUM_BLOCKS, BLOCK_SIZE = 2000, 4


def make(**options: object) -> tuple[Scheduler, FakeModel]:
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 16, "max_model_len": 400}
    cache = CacheManager(NUM_BLOCKS, BLOCK_SIZE)
    scheduler = Scheduler(cache, **(limits | options))  # type: ignore[arg-type]
    return scheduler, FakeModel(scheduler, NUM_BLOCKS)


def ask(
    scheduler: Scheduler, tenant: str, number: int, num_prompt: int = 3, max_tokens: int = 300
) -> Sequence:
    prompt = [(number + 2 * place) % 5 for place in range(num_prompt)]
    name = f"{tenant}{number}"
    options = {"tenant": tenant, "arrival_time": number, "max_tokens": max_tokens}
    (sequence,) = scheduler.add(request(name, prompt, **options))
    return sequence


def steps_until(model: FakeModel, sequence: Sequence, num_tokens: int = 1) -> int:
    for count in range(1, 1000):
        model.step()
        if sequence.num_output_tokens >= num_tokens or sequence.status is Status.FINISHED:
            return count
    raise AssertionError("it never got there")


def test_a_flood_delays_anothers_first_token_by_a_step() -> None:
    """24 answers of 80 tokens on 16 seats; a request for one token comes in their midst."""
    scheduler, model = make()
    flood = [ask(scheduler, "a", number, max_tokens=80) for number in range(24)]
    for _ in range(40):
        model.step()
    late = ask(scheduler, "b", 99, max_tokens=1)
    assert steps_until(model, late) == 1
    assert scheduler.stats().num_preemptions == 1
    while scheduler.has_unfinished:
        model.step()
    for sequence in flood:
        prompt = sequence.request.prompt_token_ids
        assert sequence.output_token_ids == expected_output(prompt, 80, 400)
    assert scheduler.stats().num_preemptions == 1


def test_a_prompt_goes_before_those_of_who_was_served_more() -> None:
    scheduler, model = make(max_num_seqs=64)
    for number in range(30):
        ask(scheduler, "a", number, num_prompt=300, max_tokens=2)
    for _ in range(10):
        model.step()
    late = ask(scheduler, "b", 99, num_prompt=120)
    assert steps_until(model, late) == 2


@pytest.mark.parametrize(("weights", "ratio"), [({}, 1.0), ({"a": 3.0}, 3.0)])
def test_whoever_always_asks_is_served_by_weight(weights: dict[str, float], ratio: float) -> None:
    scheduler, model = make(max_num_seqs=8, tenant_weights=weights)
    served: Counter[str] = Counter()
    for number in range(60):
        for tenant in ("a", "b"):
            ask(scheduler, tenant, number, num_prompt=20, max_tokens=40)
    tenant_of = {each.sequence_id: each.tenant for each in scheduler._register}
    for _ in range(300):
        for each in model.step().sequences:
            served[tenant_of[each.sequence_id]] += each.num_scheduled_tokens
    assert served["a"] / served["b"] == pytest.approx(ratio, rel=0.1)
    assert scheduler.stats().num_preemptions <= 8, "they take each other's seats again and again"


def test_one_seat_is_not_taken_from_whoever_has_it() -> None:
    """Nobody's share is a whole seat: turns change when an answer ends."""
    scheduler, model = make(max_num_seqs=1)
    for number in range(4):
        ask(scheduler, "a", number, max_tokens=20)
    model.step()
    late = ask(scheduler, "b", 9, max_tokens=20)
    assert steps_until(model, late) <= 21
    assert scheduler.stats().num_preemptions == 0


def test_priority_goes_before_fairness() -> None:
    scheduler, model = make(max_num_seqs=2, policy="priority")
    high = [ask(scheduler, "a", number, max_tokens=6 + number) for number in range(6)]
    model.step()
    low = scheduler.add(request("low", [1, 2], tenant="b", priority=7, max_tokens=3))[0]
    while any(sequence.status is not Status.FINISHED for sequence in high):
        assert low.status is Status.WAITING or not scheduler.stats().num_waiting
        model.step()


def test_many_who_come_one_after_the_other_begin_in_that_order() -> None:
    scheduler, model = make(max_num_seqs=64)
    for number in range(4):
        ask(scheduler, "a", number)
    for _ in range(200):
        model.step()
    late = []
    for number in range(20):
        late.append(ask(scheduler, f"t{number:02}", 100 + number, num_prompt=64, max_tokens=2))
        model.step()
    began = [sequence.num_output_tokens > 0 for sequence in late]
    assert began == sorted(began, reverse=True)
    for _ in range(25):
        model.step()
    assert all(sequence.status is Status.FINISHED for sequence in late)


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_nobody_makes_way_again_and_again(enable_prefix_caching: bool) -> None:
    """A short request of another every fourth step, beside four long answers on four seats."""
    cache = CacheManager(NUM_BLOCKS, BLOCK_SIZE, enable_prefix_caching=enable_prefix_caching)
    scheduler = Scheduler(cache, max_num_batched_tokens=64, max_num_seqs=4, max_model_len=400)
    model = FakeModel(scheduler, NUM_BLOCKS)
    long = [ask(scheduler, "a", number) for number in range(4)]
    for number in range(300):
        if number % 4 == 0:
            ask(scheduler, "b", 100 + number, max_tokens=1)
        model.step()
    assert min(sequence.num_output_tokens for sequence in long) > 100


def test_a_tenant_beside_many_has_a_seat() -> None:
    """More tenants than seats, and one of them was there first with all it could ask for."""
    scheduler, model = make()
    for number in range(24):
        ask(scheduler, "a", number)
    for _ in range(5):
        model.step()
    late = [ask(scheduler, f"t{number:02}", 100 + number, max_tokens=1) for number in range(16)]
    for _ in range(4):
        model.step()
    assert all(sequence.status is Status.FINISHED for sequence in late)


def test_seats_are_kept_for_nobody_who_cannot_run() -> None:
    """The second choice waits for its prompt, and a prompt that does not fit for blocks."""
    scheduler, model = make(max_num_batched_tokens=64)
    for number in range(40):
        ask(scheduler, "a", number)
    for _ in range(5):
        model.step()
    scheduler.add(request("two", [3] * 390, tenant="b", n=2, max_tokens=4, arrival_time=99))
    for _ in range(3):
        model.step()
        assert scheduler.stats().num_running == 16


def test_weights_are_positive_numbers() -> None:
    for weight in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidOptionError, match="tenant_weights"):
            make(tenant_weights={"a": weight})


def test_nobody_saves_up_service_by_staying_away() -> None:
    service = Service(burst=10)
    service.come(["a"])
    service.serve("a", 1000)
    service.settle()
    service.come(["b", "c"])
    assert service.turn_of("b")[0] == service.turn_of("c")[0] == 990
    service.serve("b", 200)
    service.go("b")
    service.come(["b"])
    assert service.turn_of("b")[0] == 1190


def test_a_light_tenant_that_asks_one_by_one_goes_on_from_where_it_left() -> None:
    service = Service({"light": 0.25}, burst=10)
    service.come(["flood"])
    service.serve("flood", 1000)
    service.settle()
    clocks = []
    for _ in range(3):
        service.come(["light"])
        clocks.append(service.turn_of("light")[0])
        service.serve("light", 2)
        service.go("light")
    assert clocks == [960, 968, 976]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["come", "go", "serve"])), max_size=40
    )
)
def test_shares_are_those_of_who_is_here(operations: list[tuple[str, str]]) -> None:
    service, here = Service({"b": 2.0}, burst=3), Counter[str]()
    for tenant, operation in operations:
        if operation == "come":
            service.come([tenant])
            here[tenant] += 1
        elif here[tenant] and operation == "go":
            service.go(tenant)
            here[tenant] -= 1
        elif here[tenant]:
            service.serve(tenant, 5)
        present = [name for name in here if here[name]]
        assert service.num_tenants == len(present)
        if present:
            assert sum(service.share_of(name, 12) for name in present) == pytest.approx(12)
