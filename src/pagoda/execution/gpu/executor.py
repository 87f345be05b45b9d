"""Runs any decoder for a batch on a GPU.

One function launches a step, whatever the batch. A step of one token a sequence is padded to one of
a few sizes, and replayed as a CUDA graph where graphs were captured: the launches are the same with
and without. On a CPU the kernels run in Triton's interpreter, which is for tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pagoda.execution.batch import Batch, GroupPages
from pagoda.execution.gpu.decode_inputs import DecodeInputs
from pagoda.execution.gpu.decoder import Decoder
from pagoda.execution.gpu.graphs import Capture, Launches
from pagoda.execution.gpu.group_inputs import sights
from pagoda.execution.gpu.inputs import BatchInputs
from pagoda.execution.gpu.trial import largest_batch
from pagoda.execution.gpu.workspace import Workspace, model_shape
from pagoda.kernels.gpu.prefill_tiling import SPLIT_FROM
from pagoda.models.decoder import DecoderSpec
from pagoda.models.weights import DecoderWeights
from pagoda.sizing.gpu_step import LargestStep, WorkspaceSize
from pagoda.sizing.step_limits import StepLimits
from pagoda.storage.gpu_storage import GPUStorage


class GPUExecutor:
    """A decoder, its weights and the storage of its cache on one device, ready to run batches.

    Products are in the weights' dtype, the residual stream and the logits in float32.
    `max_model_len` is the longest sequence, in tokens. Batches of one token a sequence are padded
    to the next of `graph_sizes`; `capture` makes graphs of them in `warm_up`, without it they are
    launched kernel by kernel. Memory is kept for steps of `max_num_tokens` of `max_num_seqs`
    sequences, with the logits of a row each and `max_prompt_logit_rows` more; a larger one takes
    its own. `narrowed`: requests may see less than the cache's layers do. Raises
    UnsupportedModelError for layers without a kernel.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights[torch.Tensor],
        storage: GPUStorage,
        max_model_len: int,
        graph_sizes: Sequence[int] = (),
        *,
        capture: Capture | None = None,
        max_num_tokens: int = 1,
        max_num_seqs: int = 1,
        max_prompt_logit_rows: int = 0,
        narrowed: bool = False,
    ) -> None:
        self.spec = spec
        self.storage = storage
        self.max_model_len = max_model_len
        self._weights = weights
        own_sights = sights(storage.spec.windows, narrowed=narrowed)
        self._decoder = Decoder(spec, weights, storage, max_model_len, own_sights)
        device = weights.embedding.device
        sizes = sorted(set(graph_sizes))
        max_blocks = -(-max_model_len // storage.block_size)
        self._decode_inputs = DecodeInputs(sizes, max_blocks, own_sights, device)
        most = max((*sizes, max_num_seqs))
        largest = LargestStep.of(StepLimits(max_num_tokens, most), max_prompt_logit_rows)
        self._batch_inputs = BatchInputs(
            self._decoder.kinds,
            own_sights,
            device,
            max_num_tokens=largest.num_tokens,
            max_num_seqs=most,
            max_blocks=max_blocks,
        )
        self._shape = model_shape(spec, weights.dtype, self._decoder.shapes)
        self._workspace = self._new_workspace(largest)
        self._drawn = torch.zeros(most, dtype=torch.int64, device=device)
        self._capture = capture
        self._graphs: dict[int, Launches] = {}

    @property
    def captured_sizes(self) -> tuple[int, ...]:
        """Batches that there is a graph for, ascending."""
        return tuple(sorted(self._graphs))

    def forward(self, batch: Batch) -> torch.Tensor:
        """Copy blocks, run the batch's tokens through all layers and store their K and V.

        Returns the logits of batch.logit_rows: [num_logit_rows, vocab_size] float32 on the device,
        in memory that the next call uses again. It may return before the device is done.
        """
        if len(batch.copy_sources):
            self.storage.copy_blocks(batch.copy_sources, batch.copy_targets)
        if not batch.num_tokens:
            return self._workspace.logits(0)
        size = self._decode_inputs.size_for(batch)
        return self._run_as_it_is(batch) if size is None else self._run_padded(batch, size)

    def keep_drawn(self, token_ids: torch.Tensor) -> None:
        """What was drawn from the last logits, for the next batch's `drawn`.

        token_ids: [num_drawn] int64 on the device, perhaps still to be computed there.
        """
        self._drawn[: len(token_ids)].copy_(token_ids)

    def require_device(self) -> None:
        """Raises RuntimeError if the device has failed: in this process it computes no more."""
        if self._drawn.is_cuda:
            torch.cuda.synchronize(self._drawn.device)

    def warm_up(self) -> None:
        """Compile every kernel that this model needs, or load it from disk, and capture graphs.

        No block changes. The largest graph comes first, so that smaller ones find room in the
        memory that they share.
        """
        self.storage.copy_blocks([0], [0])
        num_groups = len(self.storage.spec.groups)
        self._run_as_it_is(_idle_batch(self.max_model_len, self.storage.block_size, num_groups))
        if many := self._rows_of_many:
            block_size, most = self.storage.block_size, self._workspace.num_sequences
            self._run_as_it_is(
                largest_batch(many, most, self.max_model_len, block_size, 0, num_groups)
            )
        for size in reversed(self._decode_inputs.sizes):
            self._decode_inputs.clear(size)
            launches = self._launches(size)
            if self._capture is None:
                launches()
            else:
                self._graphs[size] = self._capture(launches)

    @property
    def _rows_of_many(self) -> int:
        """Rows that go through all experts in large tiles, if a step has so many; 0: no experts."""
        experts = [layer.experts for layer in self._shape.layers if layer.experts is not None]
        rows = max((each.rows_of_many for each in experts), default=0)
        return min(rows, self._workspace.num_tokens)

    def _run_padded(self, batch: Batch, size: int) -> torch.Tensor:
        self._decode_inputs.fill(batch, size)
        launches = self._graphs.get(size) or self._launches(size)
        launches()
        return self._workspace.logits(len(batch.context_lens))

    def _launches(self, size: int) -> Launches:
        """What runs a padded step of `size` sequences, on memory that it keeps."""
        inputs, workspace = self._decode_inputs.inputs(size), self._workspace
        drawn, logits = self._drawn, workspace.logits(size)
        return lambda: self._decoder.run(inputs, drawn, workspace, logits)

    def _run_as_it_is(self, batch: Batch) -> torch.Tensor:
        inputs = self._batch_inputs.of(batch)
        workspace = self._workspace_for(batch)
        logits = workspace.logits(len(batch.logit_rows))
        self._decoder.run(inputs, self._drawn, workspace, logits)
        return logits

    def _workspace_for(self, batch: Batch) -> Workspace:
        """The one that is kept, unless the batch is larger than was foreseen."""
        tokens, sequences, rows = batch.num_tokens, len(batch.context_lens), len(batch.logit_rows)
        kept = self._workspace
        is_foreseen = tokens <= kept.num_tokens and sequences <= kept.num_sequences
        if is_foreseen and rows <= kept.num_logit_rows:
            return kept
        return self._new_workspace(LargestStep(tokens, sequences, rows))

    def _new_workspace(self, largest: LargestStep) -> Workspace:
        size = WorkspaceSize(self._shape, largest)
        return Workspace(size, self._weights.dtype, self._weights.embedding.device)


def _idle_batch(max_model_len: int, block_size: int, num_groups: int) -> Batch:
    """A sequence with two tokens and one with one, which write nothing and read the first block.

    The context of the first, and the tables of both, are so long that what merges splits is
    launched as well, if there can be any.
    """
    context_len = max(2, min(max_model_len, SPLIT_FROM))
    max_blocks = -(-max(2, max_model_len) // block_size)
    tables, slots = np.zeros((2, max_blocks), np.int32), np.full(3, -1, np.int64)
    return Batch(
        token_ids=np.zeros(3, np.int64),
        positions=np.zeros(3, np.int32),
        query_starts=np.array((0, 2, 3), np.int32),
        context_lens=np.array((context_len, 1), np.int32),
        groups=(GroupPages.seeing_all(tables, slots),) * num_groups,
        logit_rows=np.array((1, 2), np.int64),
        copy_sources=np.empty(0, np.int64),
        copy_targets=np.empty(0, np.int64),
    )
