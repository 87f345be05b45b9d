"""Nobody waits, or makes way, for what does not come of it."""

from __future__ import annotations

from fake_model import FakeModel, request

from pagoda.cache import CacheManager
from pagoda.cache.quota import Quota
from pagoda.scheduling import Scheduler, Sequence, Status


class Traffic:
    """Requests to a scheduler whose model computes nothing."""

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int = 4,
        quotas: dict[str, Quota] | None = None,
        **limits: object,
    ) -> None:
        self.cache = CacheManager(num_blocks, block_size, quotas=quotas or {})
        sizes = {"max_num_batched_tokens": 64, "max_num_seqs": 16, "max_model_len": 60}
        self.scheduler = Scheduler(self.cache, **(sizes | limits))  # type: ignore[arg-type]
        self._model = FakeModel(self.scheduler, num_blocks)
        self._number = 0

    def ask(self, tenant: str, num_prompt: int, num_answer: int) -> Sequence:
        """A prompt that begins as no other one does."""
        self._number += 1
        number = self._number
        prompt = [number % 5, number // 5 % 5, number // 25 % 5, *[1] * (num_prompt - 3)]
        return self.add(prompt, tenant=tenant, max_tokens=num_answer)

    def add(self, prompt: list[int], **options: object) -> Sequence:
        self._number += 1
        name = f"request {self._number}"
        options |= {"arrival_time": self._number}
        (sequence,) = self.scheduler.add(request(name, prompt, **options))  # type: ignore[arg-type]
        return sequence

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self._model.step()
            self.cache.check_integrity()


def test_the_most_urgent_waits_for_no_block_of_one_that_has_no_turn() -> None:
    """Medium prompts fill every step, so the least urgent one, which announced blocks that the most
    urgent wants too, is never gone on with."""
    traffic = Traffic(400, max_num_batched_tokens=16, max_model_len=200, policy="priority")
    shared = [1, 2, 3, 4] * 20
    traffic.add(shared, priority=2, max_tokens=1)
    traffic.step()
    urgent = traffic.add([*shared, 2], priority=0, max_tokens=1)
    for number in range(20):
        prompt = [number % 5, number // 5, *[0] * 14]
        traffic.add(prompt, priority=1, max_tokens=1)
        traffic.step()
    assert urgent.status is Status.FINISHED


def test_whoever_lacked_room_once_is_looked_at_again_when_blocks_come_back() -> None:
    """A tenant of a large weight refills each seat that comes free."""
    traffic = Traffic(40, max_num_seqs=3, tenant_weights={"a": 1000.0})
    traffic.ask("a", 5, 8)
    traffic.step()
    first = traffic.ask("b", 50, 1)
    while first.status is not Status.FINISHED:
        traffic.step()
    traffic.ask("a", 48, 12)
    traffic.ask("a", 48, 12)
    traffic.step()
    late = traffic.ask("b", 45, 2)
    small: list[Sequence] = []
    for _ in range(60):
        while sum(each.status is Status.WAITING for each in small) < 3:
            small.append(traffic.ask("a", 5, 4))
        traffic.step()
    assert late.status is Status.FINISHED


def test_no_seat_is_kept_for_those_behind_one_that_does_not_fit() -> None:
    traffic = Traffic(400, max_num_seqs=8, quotas={"b": Quota(cap=15)})
    crowd = [traffic.ask("a", 5, 50) for _ in range(12)]
    traffic.ask("b", 32, 28)
    traffic.step(4)
    for size in (40, 4, 4):  # the first of them is more than is left of the cap
        traffic.ask("b", size, 2)
    traffic.step(3)
    assert sum(each.status is Status.RUNNING for each in crowd) == 7


def test_nobody_is_preempted_where_cap_and_pool_are_used_up_at_once() -> None:
    traffic = Traffic(20, max_model_len=40, quotas={"a": Quota(cap=10)}, tenant_weights={"b": 0.5})
    for number in range(2):
        traffic.add([number, 1, 2, 3] * 4, tenant="a", max_tokens=20)
    traffic.step(3)
    other = traffic.add([0, 4, 2, 3] * 9, tenant="b", max_tokens=4)
    traffic.step(3)
    assert (other.status, other.stay) == (Status.RUNNING, 0)


def test_what_others_will_want_is_not_taken_off_a_floor() -> None:
    """Half of the pool is one tenant's floor, and the streams that fill the rest go on."""
    traffic = Traffic(
        40,
        block_size=16,
        max_num_batched_tokens=512,
        max_num_seqs=64,
        max_model_len=320,
        quotas={"b": Quota(floor=20)},
    )
    for _ in range(18):
        traffic.ask("a", 3, 200)
    traffic.step(20)
    late = traffic.add([1, 2, 3, 4] * 64, tenant="b", max_tokens=4)
    traffic.step()
    assert late.num_output_tokens == 1
