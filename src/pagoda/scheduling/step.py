"""One step, decided: a complete, frozen plan that the runner only has to carry out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pagoda.cache import AttentionWindow, BlockCopy


class ScheduledSequence(NamedTuple):
    """What one sequence does in a step: write and attend `token_ids` from position `start` on.

    |<------- in the cache ------->|<- token_ids ->| ? |   not yet scheduled
    0                            start               stop
                                         |<------------|   rows whose logits are wanted

    ?  the token that the sequence drew last, if it is still outstanding
    """

    sequence_id: int
    stay: int
    """Which of its stays among the running sequences the step belongs to: preemption ends one."""
    start: int
    """Tokens already in the cache (`num_computed_tokens`), the position of the first new one."""
    stop: int
    """Tokens in the cache after this step."""
    token_ids: tuple[int, ...]
    """From `start` on, all that are known."""
    block_ids: NDArray[np.int32]
    """The block table, covering positions 0 to stop - 1, of all groups as `BlockTable` has them.
    Read-only, and the very array of the sequence's last step where the table has not changed."""
    windows: tuple[AttentionWindow, ...]
    """What rows see in the layers of each group."""
    num_logit_rows: int
    """How many of the last rows need logits: 0, 1, or all of a prompt's whose log-probabilities
    are asked for."""
    samples: bool
    """Whether a token is to be drawn from the last row."""

    @property
    def num_scheduled_tokens(self) -> int:
        return self.stop - self.start

    @property
    def takes_drawn(self) -> bool:
        """The last token is the one that the sequence drew last, and only the device knows it."""
        return len(self.token_ids) < self.stop - self.start


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything one forward pass does."""

    sequences: tuple[ScheduledSequence, ...]
    copies: tuple[BlockCopy, ...]
    """Carried out before anything is written; every source is read before a target is written."""
    block_size: int

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(scheduled.stop - scheduled.start for scheduled in self.sequences)
