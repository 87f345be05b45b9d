"""Threads that work out the masks of many grammars side by side."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagoda.engine.devices.cores import num_usable_cores
from pagoda.engine.failures import INTERRUPTS
from pagoda.engine.grammar import Matcher

if TYPE_CHECKING:
    import llguidance

logger = logging.getLogger("pagoda")


class MaskWorkers:
    """A thread for each core, from the first mask on; the interpreter's lock is free meanwhile.

    A mask takes up to some 10 ms, and each of a request's choices has one of its own.
    """

    def __init__(self) -> None:
        self._executor: llguidance.LLExecutor | None = None
        self._have_failed = False

    def work_out(self, matchers: Sequence[Matcher]) -> None:
        """Give each its mask, for `Matcher.follow` to return.

        Where that fails they are left without one, and `follow` works it out for each alone.
        """
        if len(matchers) < 2 or self._have_failed:
            return
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

        masks = allocate_token_bitmask(len(matchers), matchers[0].num_tokens)
        numbered = [(matcher.state, row) for row, matcher in enumerate(matchers)]
        try:
            fill_next_token_bitmask_par(self._started(), numbered, masks)
        except INTERRUPTS:
            raise
        except BaseException:  # a panic of the library is no `Exception`
            logger.exception("masks are worked out one by one from now on")
            self._have_failed = True
            return
        for matcher, mask in zip(matchers, masks, strict=True):
            matcher.take(mask)

    def _started(self) -> llguidance.LLExecutor:
        if self._executor is None:
            import llguidance

            self._executor = llguidance.LLExecutor(num_threads=num_usable_cores())
        return self._executor
