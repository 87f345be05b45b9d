"""How fast a cache of one method is filled and read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.engine.timing import time_run
from pagoda.lab.method import Method
from pagoda.lab.subject import Subject
from pagoda.roofline import WorkItem

NUM_SEQUENCES = 4
"""That are computed at once."""
_NUM_NEW = 33
"""Tokens of each; the time of all but the first counts."""
_WARM_UP = 32


@dataclass(frozen=True, slots=True)
class Speed:
    """In tokens a second, of several sequences together."""

    prefill: float
    decode: float

    def as_json(self) -> dict[str, float]:
        """Tokens a second."""
        return {
            "prefill_tokens_per_second": round(self.prefill, 1),
            "decode_tokens_per_second": round(self.decode, 1),
        }


def measure_speed(subject: Subject, method: Method, prompts: Sequence[Sequence[int]]) -> Speed:
    """The prompts once, for the prefill, and again, for tokens that follow what is now cached."""
    longest = max(map(len, prompts)) + _NUM_NEW
    margin = subject.options.block_size
    engine, _ = subject.open(method, longest=longest, num_tokens=len(prompts) * (longest + margin))
    time_run(engine, [WorkItem(tuple(prompts[0][:_WARM_UP]), 2)])
    engine.reset_prefix_cache()
    filling = time_run(engine, [WorkItem(tuple(prompt), 1) for prompt in prompts])
    reading = time_run(engine, [WorkItem(tuple(prompt), _NUM_NEW) for prompt in prompts])
    per_token_s = reading.time_per_output_token_s
    assert per_token_s is not None, "all have more than one token"
    return Speed(sum(map(len, prompts)) / filling.duration_s, len(prompts) / per_token_s)
