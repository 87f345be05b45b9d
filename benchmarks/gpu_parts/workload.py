"""The work that engines are compared on: token ids and forced numbers of output tokens."""

from __future__ import annotations

import random

from pagoda.roofline import WORKLOADS, Work, WorkItem, draw

NANO = "nano"
"""256 requests of 100 to 1,024 tokens in and as many out, as nano-vllm's benchmark has them."""
NAMES = (*WORKLOADS, NANO)
_FIRST_ID = 100
_NANO_REQUESTS = 256
_TINY_SHARE, _TINY_REQUESTS = 256, 2


def work_of(name: str, seed: int, vocab_size: int, *, tiny: bool = False) -> Work:
    """The same for the same seed; `tiny` keeps little of it."""
    count = _TINY_REQUESTS if tiny else _NANO_REQUESTS
    work = _nano(seed, vocab_size, count) if name == NANO else draw(name, seed, vocab_size)
    return [_shrunk(item) for item in work[:_TINY_REQUESTS]] if tiny else work


def prompts(count: int, length: int, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Random ones of one length."""
    source = random.Random(f"prompts/{seed}")
    return [[source.randrange(_FIRST_ID, vocab_size) for _ in range(length)] for _ in range(count)]


def _nano(seed: int, vocab_size: int, count: int) -> Work:
    source = random.Random(f"{NANO}/{seed}")

    def item() -> WorkItem:
        length = source.randint(100, 1024)
        ids = tuple(source.randrange(_FIRST_ID, vocab_size) for _ in range(length))
        return WorkItem(ids, source.randint(100, 1024))

    return [item() for _ in range(count)]


def _shrunk(item: WorkItem) -> WorkItem:
    ids = item.prompt_token_ids[: max(2, len(item.prompt_token_ids) // _TINY_SHARE)]
    return WorkItem(ids, max(2, item.num_output_tokens // _TINY_SHARE))
