"""Reads tokens with an engine, in chunks, and gives the logits of every position.

The lab stands where the sampler does: the scheduler decides each step, the runner computes it.

    chunk 0             chunk 1             chunk 2
    written, attended   written, attended   …
                        reads chunk 0       reads chunks 0 and 1, from the pool

With the lossy form of a tier, what a chunk has filled goes there and back before the next one: each
reads a prefix that was loaded.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pagoda.lab.method import Method
from pagoda.lab.subject import Subject
from pagoda.lab.tier_trip import TierTrip
from pagoda.request import SamplingParams
from pagoda.tiers.packing import Packing

_ID = "lab"
_EVERY_POSITION = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, prompt_alone=True)


class Reader:
    """An engine with a cache of one method, for one text at a time."""

    def __init__(
        self,
        subject: Subject,
        method: Method,
        *,
        longest: int,
        chunk: int,
        packing: Packing | None = None,
    ) -> None:
        """For up to `longest` tokens, `chunk` of which are read in a step. `packing`: of a method
        with a lossy form, see `Subject.packings`; None: blocks stay in the pool."""
        assert (packing is None) == (method.tier_form is None)
        self.method = method
        self._longest = longest
        self.chunk = chunk
        self._engine, running = subject.open(
            method,
            longest=longest + 1,
            num_tokens=longest + subject.options.block_size,
            enable_prefix_caching=False,
            max_num_batched_tokens=chunk,
            max_num_seqs=1,
            enforce_eager=True,
        )
        self._runner = running.runner
        self.storage = running.storage
        self._trip = None if packing is None else TierTrip(self.storage, packing)
        """None: blocks stay in the pool."""
        self.block_ids: NDArray[np.int32] = np.empty(0, np.int32)
        """The blocks that hold what was read so far; `HOLE` where none is kept."""

    @property
    def bytes_per_token(self) -> float:
        """Of blocks of all groups, as they are allocated, and of the longest text where not all is
        kept. On a tier: of the frames of what was read so far."""
        on_tier = None if self._trip is None else self._trip.bytes_per_token
        if on_tier is not None:
            return on_tier
        spec, longest = self.storage.spec, self._longest
        kept = (min(longest, each.window + each.sinks) / longest for each in spec.windows)
        return sum(kept) * spec.block_bytes / spec.block_size

    def read(self, token_ids: Sequence[int]) -> Generator[torch.Tensor]:
        """Logits after each chunk: float32 [tokens in the chunk, vocab], good until the next.

        A chunk is computed when it is asked for. Row i tells what may follow token i.
        """
        scheduler = self._engine.scheduler
        scheduler.add(self._engine.intake.request(_ID, token_ids, _EVERY_POSITION))
        try:
            num_read = 0
            while num_read < len(token_ids):
                plan = scheduler.schedule()
                (scheduled,) = plan.sequences
                self.block_ids = scheduled.block_ids
                yield self._runner.execute(plan)
                scheduler.update(scheduled, None)
                if self._trip is not None:
                    self._trip.take(self.block_ids, num_read, scheduled.stop)
                num_read = scheduled.stop
        finally:
            scheduler.abort(_ID)

    def read_by(self, num_rows: int, token_ids: Sequence[int]) -> Generator[torch.Tensor]:
        """The same logits, `num_rows` at a time whatever the chunk, and the rest at last."""
        held: list[torch.Tensor] = []
        for logits in self.read(token_ids):
            rows = torch.cat([*held, logits])
            while len(rows) >= num_rows:
                yield rows[:num_rows]
                rows = rows[num_rows:]
            held = [rows]
        if len(rows):
            yield rows
