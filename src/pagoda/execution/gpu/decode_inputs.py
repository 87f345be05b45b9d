"""What a step of one token a sequence reads, at addresses that stay: so it can be a CUDA graph.

A batch is padded to the next of a few sizes. A row that pads has token 0 at position 0, writes to
no slot and has an empty context; its results are never read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import torch

from pagoda.execution.batch import Batch
from pagoda.execution.gpu.inputs import StepInputs, drawn_rows, whole_lines
from pagoda.execution.gpu.upload import (
    InputUpload,
    Integers,
    Place,
    lay_out,
)
from pagoda.sizing.alignment import ALIGNMENT

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_FIXED_DTYPES = (_INT32, _INT32, _INT32, _INT32, _INT64, _INT32)
"""Dtypes of token ids, whether and where they were drawn, positions, slots and contexts, which come
first in every upload."""
_NO_SLOT = -1


class DecodeInputs:
    """Inputs for batches of up to `sizes[-1]` sequences, whose tables have up to `max_blocks`.

    `sizes` are ascending. Tables go over as long as the longest of a batch, and are spread on the
    device into rows of `max_blocks`: few sequences are ever as long as they may be.
    """

    def __init__(self, sizes: Sequence[int], max_blocks: int, device: torch.device) -> None:
        self.sizes = tuple(sizes)
        most, max_blocks = max(self.sizes, default=0), whole_lines(max_blocks)
        row_bytes = sum(dtype.itemsize for dtype in _FIXED_DTYPES)
        row_bytes += 4 * max_blocks  # its table
        self._upload = InputUpload(most * row_bytes + (len(_FIXED_DTYPES) + 1) * ALIGNMENT, device)
        self._tables = torch.zeros((most, max_blocks), dtype=torch.int32, device=device)
        self._counting = torch.arange(most + 1, dtype=torch.int32, device=device)

    def size_for(self, batch: Batch) -> int | None:
        """The size that the batch is padded to; None if it is not for here.

        Here are batches of a token a sequence, each with its row of logits.
        """
        count = len(batch.context_lens)
        if len(batch.logit_rows) != count:
            return None
        if not self.sizes or not 0 < count <= self.sizes[-1] or batch.num_tokens != count:
            return None
        if (batch.query_starts != np.arange(count + 1)).any():
            return None
        return self.sizes[bisect_left(self.sizes, count)]

    def inputs(self, size: int) -> StepInputs:
        """What a step of `size` sequences reads; the same memory in every call."""
        token_ids, takes_drawn, drawn_places, positions, slots, contexts = (
            self._upload.at(place) for place in _fixed_places(size)
        )
        counting = self._counting
        return StepInputs(
            token_ids=token_ids,
            takes_drawn=takes_drawn,
            drawn_places=drawn_places,
            positions=positions,
            slot_mapping=slots,
            query_starts=counting[: size + 1],
            context_lens=contexts,
            block_tables=self._tables[:size],
            decode_rows=counting[:size],
            decode_sequences=counting[:size],
            prefill={},
            logit_rows=None,
        )

    def clear(self, size: int) -> None:
        """Nothing but rows that pad where `inputs(size)` reads."""
        inputs = self.inputs(size)
        for values in (
            inputs.token_ids,
            inputs.takes_drawn,
            inputs.drawn_places,
            inputs.positions,
            inputs.context_lens,
        ):
            values.zero_()
        inputs.slot_mapping.fill_(_NO_SLOT)

    def fill(self, batch: Batch, size: int) -> None:
        """Put the batch, padded to `size`, where `inputs(size)` reads."""
        count = len(batch.context_lens)
        arrays: list[Integers] = [
            _padded(batch.token_ids, size, np.int32),
            *drawn_rows(batch, size),
            _padded(batch.positions, size, np.int32),
            _padded(batch.pages.slot_mapping, size, np.int64, _NO_SLOT),
            _padded(batch.context_lens, size, np.int32),
            batch.pages.block_tables,
        ]
        places = self._upload.send(arrays)
        tables = self._upload.at(places[-1])
        self._tables[:count, : tables.shape[1]].copy_(tables)


def _fixed_places(size: int) -> list[Place]:
    return lay_out([(dtype, (size,)) for dtype in _FIXED_DTYPES])


def _padded(values: Integers, size: int, dtype: type[np.integer], filler: int = 0) -> Integers:
    padded = np.full(size, filler, dtype)
    padded[: len(values)] = values
    return padded
