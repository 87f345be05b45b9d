"""The five workloads that engines are compared on.

Token ids are uniform in [100, 48000) and outputs are forced to their length, so engines that are
given the same draw do the same work.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.errors import InvalidOptionError

WORKLOADS = ("single", "mixed", "shared", "long", "longbatch")

_FIRST_ID, _LAST_ID = 100, 47_999


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request of a workload."""

    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int


Work = Sequence[WorkItem]
"""Requests that are submitted at once."""


def draw(workload: str, seed: int, vocab_size: int = _LAST_ID + 1) -> Work:
    """The work of one workload, the same for the same seed.

    A model of fewer than 48,000 tokens gets ids of its own, and so another draw. Raises
    `InvalidOptionError` for a name that is not in `WORKLOADS`, or fewer than 101 tokens.
    """
    if workload not in WORKLOADS:
        raise InvalidOptionError("workload", workload, f"one of {', '.join(WORKLOADS)}")
    if vocab_size <= _FIRST_ID:
        limit = f"workloads need a vocabulary of more than {_FIRST_ID} tokens"
        raise InvalidOptionError("vocab_size", vocab_size, limit)
    source = random.Random(f"{workload}/{seed}")
    end = min(vocab_size, _LAST_ID + 1)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(source.randrange(_FIRST_ID, end) for _ in range(count))

    match workload:
        case "single":  # one stream: bound by reading the weights
            return [WorkItem(ids(128), 128)]
        case "mixed":  # different lengths at once: continuous batching
            return [
                WorkItem(ids(source.randint(64, 512)), source.randint(32, 128)) for _ in range(32)
            ]
        case "shared":  # behind one system prompt: sharing what another is just computing
            prefix = ids(1024)
            return [WorkItem(prefix + ids(64), 32) for _ in range(32)]
        case "long":  # one long prompt: bound by arithmetic
            return [WorkItem(ids(4096), 64)]
        case _:  # longbatch, long contexts: bound by reading K and V
            return [WorkItem(ids(2048), 64) for _ in range(8)]
