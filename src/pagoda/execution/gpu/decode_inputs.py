"""What a step of one token a sequence reads, at addresses that stay: so it can be a CUDA graph.

A batch is padded to the next of a few sizes. A row that pads has token 0 at position 0, writes to
no slot and has an empty context; its results are never read.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch

from pagoda.execution.batch import Batch
from pagoda.execution.gpu.group_inputs import Sight, arrays_of, taken
from pagoda.execution.gpu.inputs import StepInputs, drawn_rows, whole_lines
from pagoda.execution.gpu.upload import InputUpload, Integers, lay_out
from pagoda.sizing.alignment import ALIGNMENT

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_NUM_FIXED = 5
"""Token ids, whether and where they were drawn, positions and contexts: int32, and first in every
upload."""
_NO_SLOT = -1


class DecodeInputs:
    """Inputs for batches of up to `sizes[-1]` sequences, whose tables have up to `max_blocks`.

    `sizes` are ascending. Tables go over as long as the longest of a batch, and are spread on the
    device into rows of `max_blocks`: few sequences are ever as long as they may be.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        max_blocks: int,
        sights: Sequence[Sight],
        device: torch.device,
    ) -> None:
        """`sights` of all groups."""
        self.sizes = tuple(sizes)
        self._sights = tuple(sights)
        most, max_blocks = max(self.sizes, default=0), whole_lines(max_blocks)
        forms = self._forms(1)
        row_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in forms)
        row_bytes += 4 * max_blocks * len(self._sights)  # its tables
        self._upload = InputUpload(most * row_bytes + (len(forms) + 1) * ALIGNMENT, device)
        self._tables = torch.zeros(
            (len(self._sights), most, max_blocks), dtype=torch.int32, device=device
        )
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
        sent = map(self._upload.at, lay_out(self._forms(size)))
        token_ids, takes_drawn, drawn_places, positions, contexts = islice(sent, _NUM_FIXED)
        counting = self._counting
        return StepInputs(
            token_ids=token_ids,
            takes_drawn=takes_drawn,
            drawn_places=drawn_places,
            positions=positions,
            query_starts=counting[: size + 1],
            context_lens=contexts,
            groups=tuple(
                taken(sent, tables[:size], sight)
                for tables, sight in zip(self._tables, self._sights, strict=True)
            ),
            decode_rows=counting[:size],
            decode_sequences=counting[:size],
            prefill={},
            logit_rows=None,
        )

    def clear(self, size: int) -> None:
        """Nothing but rows that pad where `inputs(size)` reads."""
        for place in lay_out(self._forms(size)):
            self._upload.at(place).zero_()
        for group in self.inputs(size).groups:
            group.slot_mapping.fill_(_NO_SLOT)

    def fill(self, batch: Batch, size: int) -> None:
        """Put the batch, padded to `size`, where `inputs(size)` reads."""
        count = len(batch.context_lens)
        arrays: list[Integers] = [
            _padded(batch.token_ids.astype(np.int32), size),
            *drawn_rows(batch, size),
            _padded(batch.positions, size),
            _padded(batch.context_lens, size),
        ]
        for number, sight in enumerate(self._sights):
            slots, *others = arrays_of(batch, number, sight)
            arrays += [_padded(slots, size, _NO_SLOT), *(_padded(each, size) for each in others)]
        places = self._upload.send([*arrays, _stacked(batch)])
        tables = self._upload.at(places[-1])
        self._tables[:, :count, : tables.shape[2]].copy_(tables)

    def _forms(self, size: int) -> list[tuple[np.dtype, tuple[int, ...]]]:
        """Dtypes and shapes of what is sent for `size` rows, but for tables."""
        forms: list[tuple[np.dtype, tuple[int, ...]]] = [(_INT32, (size,))] * _NUM_FIXED
        for sight in self._sights:
            forms.append((_INT64, (size,)))
            if sight.has_window:
                forms.append((_INT32, (size, 2)))
            if sight.has_sinks:
                forms.append((_INT32, (size,)))
        return forms


def _padded(values: Integers, size: int, filler: int = 0) -> Integers:
    padded = np.full((size, *values.shape[1:]), filler, values.dtype)
    padded[: len(values)] = values
    return padded


def _stacked(batch: Batch) -> Integers:
    """[groups, sequences, blocks] int32: all tables."""
    tables = [pages.block_tables for pages in batch.groups]
    return tables[0][None] if len(tables) == 1 else np.stack(tables)
