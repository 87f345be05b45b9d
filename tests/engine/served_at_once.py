"""Requests that a scheduler serves by itself, without a model."""

from __future__ import annotations

from itertools import count

from pagoda.cache import CacheManager
from pagoda.request import Request, SamplingParams
from pagoda.scheduling import Scheduler, judge


def most_running(
    cache: CacheManager, scheduler: Scheduler, num_requests: int, prompt_tokens: int, answered: int
) -> int:
    """Serve so many requests of different prompts to their ends: how many ran together at most.

    The cache is checked now and then, and at the end.
    """
    for number in range(num_requests):
        prompt = tuple([number] * prompt_tokens)
        scheduler.add(Request(str(number), prompt, SamplingParams(max_tokens=answered)))
    most = 0
    for step in count():
        if not scheduler.has_unfinished:
            break
        for scheduled in scheduler.schedule().sequences:
            sequence = scheduler.update(scheduled, 1 if scheduled.samples else None)
            ending = judge(sequence) if sequence is not None else None
            if sequence is not None and ending is not None:
                scheduler.finish(sequence, ending)
        most = max(most, scheduler.stats().num_running)
        if step % 64 == 0:
            cache.check_integrity()
    cache.check_integrity()
    return most
