"""One step, decided: a complete, frozen plan that the runner only has to carry out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pagoda.cache import BlockCopy

PENDING = -1
"""In the place of a token that the step before draws, which has not been read yet."""


class ScheduledSequence(NamedTuple):
    """What one sequence does in a step: write and attend `token_ids` from position `start` on.

    |<------- in the cache ------->|<--- token_ids --->|   not yet scheduled
    0                            start               stop
                                         |<------------|   rows whose logits are wanted
    """

    sequence_id: int
    start: int
    """Tokens already in the cache (`num_computed_tokens`), the position of the first new one."""
    token_ids: tuple[int, ...]
    """The last one may be `PENDING`."""
    block_ids: NDArray[np.int32]
    """The block table, covering positions 0 to stop - 1. Read-only, and the very array of the
    sequence's last step where the table has not changed since."""
    num_logit_rows: int
    """How many of the last rows need logits: 0, 1, or all of a prompt's whose log-probabilities
    are asked for."""
    samples: bool
    """Whether a token is to be drawn from the last row."""

    @property
    def num_scheduled_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def stop(self) -> int:
        """Tokens in the cache after this step."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything one forward pass does."""

    sequences: tuple[ScheduledSequence, ...]
    copies: tuple[BlockCopy, ...]
    """Carried out before anything is written; every source is read before a target is written."""
    block_size: int

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(len(scheduled.token_ids) for scheduled in self.sequences)
