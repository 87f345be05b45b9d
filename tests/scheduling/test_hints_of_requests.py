"""A request's hint reaches its blocks when it ends, and not before."""

import pytest
from fake_model import FakeModel, request

from pagoda.cache import CacheManager
from pagoda.cache_hint import CacheHint
from pagoda.scheduling import Scheduler

NUM_BLOCKS, SIZE = 16, 2


def serve(hint: CacheHint | None, *, is_aborted: bool = False) -> int:
    """Tokens that a request finds of its prompt, which was served long ago with a hint."""
    cache = CacheManager(NUM_BLOCKS, SIZE)
    scheduler = Scheduler(cache, max_num_batched_tokens=32, max_num_seqs=2, max_model_len=30)
    model = FakeModel(scheduler, NUM_BLOCKS)
    first = request("first", [1, 2, 3, 4, 0, 0], max_tokens=2, cache_hint=hint)
    again = request("again", [1, 2, 3, 4, 0, 0], max_tokens=2)
    others = [request(f"other {number}", [number % 5] * 20, max_tokens=2) for number in range(2, 5)]
    found = 0
    for each in (first, *others, *others, again):
        [sequence] = scheduler.add(each)
        if is_aborted and each is first:
            model.step()
            scheduler.abort("first")
        while scheduler.has_unfinished:
            model.step()
        scheduler.cache.check_integrity()
        found = sequence.num_cached_tokens
    return found


@pytest.mark.parametrize("is_aborted", [False, True])
def test_a_finished_requests_hint_keeps_its_blocks(is_aborted: bool) -> None:
    assert serve(CacheHint.SESSION, is_aborted=is_aborted) > 0
    assert serve(None, is_aborted=is_aborted) == 0
