"""A step in the making."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagoda.cache import BlockCopy
from pagoda.scheduling.sequence import Sequence
from pagoda.scheduling.step import ScheduledSequence, StepPlan


@dataclass(slots=True)
class StepBuilder:
    """Who has been given what of the step, in the order of giving."""

    budget: int
    """Tokens left to give."""
    scheduled: dict[Sequence, ScheduledSequence] = field(default_factory=dict)
    copies: dict[Sequence, tuple[BlockCopy, ...]] = field(default_factory=dict)
    """For the sequences that need any."""
    num_prompt_rows: int = 0
    """Rows of logits given for prompts' log-probabilities."""
    awaits_pool: bool = False
    """The pool is short: somebody was preempted for it, or waits for it. What is free goes to
    whoever runs, and to those whose floors give it to them."""

    def give(
        self, sequence: Sequence, start: int, stop: int, copies: tuple[BlockCopy, ...]
    ) -> None:
        """The sequence computes positions `start` to `stop - 1`, whose blocks are reserved."""
        samples = stop == sequence.num_tokens
        num_logit_rows = 1 if samples else 0
        if sequence.wants_prompt_rows(start):
            num_logit_rows = stop - start
            self.num_prompt_rows += num_logit_rows
        self.scheduled[sequence] = ScheduledSequence(
            sequence.sequence_id,
            sequence.stay,
            start,
            stop,
            tuple(sequence.token_ids[start:stop]),
            sequence.table.snapshot(),
            sequence.table.windows,
            num_logit_rows,
            samples,
        )
        if copies:
            self.copies[sequence] = copies
        self.budget -= stop - start

    def take_back(self, sequence: Sequence) -> None:
        """The sequence is preempted: whatever it was given goes back."""
        scheduled = self.scheduled.pop(sequence, None)
        if scheduled is not None:
            self.budget += scheduled.stop - scheduled.start
            if sequence.wants_prompt_rows(scheduled.start):
                self.num_prompt_rows -= scheduled.num_logit_rows
            self.copies.pop(sequence, None)

    def plan(self, block_size: int) -> StepPlan:
        """The step, decided."""
        return StepPlan(
            sequences=tuple(self.scheduled.values()),
            copies=tuple(copy for copies in self.copies.values() for copy in copies),
            block_size=block_size,
        )
