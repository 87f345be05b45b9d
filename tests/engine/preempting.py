"""Engines that preempt, as they do where blocks run out."""

from __future__ import annotations

from itertools import count
from typing import Any

from pagoda.engine.llm import LLM


def preempt_every_fourth(llm: LLM) -> None:
    """Let blocks seem short at every fourth question for some, while others run."""
    scheduler = llm.engine.scheduler
    reserve, asked = scheduler.cache.reserve, count(1)

    def reserve_or_not(*args: Any) -> Any:
        if next(asked) % 4 == 0 and len(scheduler._running) > 1:
            return None
        return reserve(*args)

    scheduler.cache.reserve = reserve_or_not  # type: ignore[method-assign]
