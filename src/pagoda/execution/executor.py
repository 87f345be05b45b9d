"""Runs any decoder for a batch on the CPU: PyTorch multiplies, compiled loops do the rest."""

from __future__ import annotations

import numba
import numpy as np
import torch

from pagoda.errors import InvalidOptionError, UnsupportedModelError
from pagoda.execution.batch import Batch
from pagoda.execution.layer import Layer
from pagoda.execution.rope import RotaryTables
from pagoda.execution.workspace import Workspace
from pagoda.kernels.cpu.norm import rms_norm
from pagoda.kernels.cpu.project import project
from pagoda.models.decoder import DecoderSpec
from pagoda.models.weights import DecoderWeights
from pagoda.storage.kv_storage import KVStorage, as_array


class Executor:
    """A decoder, its weights and the storage of its cache, ready to run batches.

    Matrix products are in the weights' dtype (float32 or bfloat16), all else, the residual stream
    and the logits in float32. `max_model_len` is the longest sequence, in tokens;
    `num_threads` work on a step (None: one per core). Raises InvalidOptionError for another dtype
    and UnsupportedModelError for an activation without a kernel.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights,
        storage: KVStorage,
        max_model_len: int,
        num_threads: int | None = None,
    ) -> None:
        self.spec = spec
        self.weights = weights
        self.storage = storage
        self.max_model_len = max_model_len
        most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        self._num_threads = most if num_threads is None else min(num_threads, most)
        self._dtype = weights.embedding.dtype
        if self._dtype not in (torch.float32, torch.bfloat16):
            raise InvalidOptionError("dtype", str(self._dtype), "float32 or bfloat16 on a CPU")
        for layer in spec.layers:
            if layer.mlp.activation != "silu":
                raise UnsupportedModelError("activation", layer.mlp.activation, "silu is covered")
        ropes = {layer.attention.rope for layer in spec.layers}
        tables = {rope: RotaryTables.of(rope, max_model_len) for rope in ropes}
        self._layers = tuple(
            Layer.of(*parts, tables[parts[0].attention.rope], spec.norm_eps)
            for parts in zip(spec.layers, weights.layers, storage.layers, strict=True)
        )
        self._final_norm = as_array(weights.final_norm)
        self._lm_head = as_array(weights.lm_head)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        """Copy blocks, run the batch's tokens through all layers and store their K and V.

        Returns the logits of batch.logit_rows: [num_logit_rows, vocab_size] float32.
        """
        numba.set_num_threads(self._num_threads)  # of this thread: Numba keeps it for each
        self.storage.copy_blocks(batch.copy_sources, batch.copy_targets)
        stream = self.weights.embedding[torch.from_numpy(batch.token_ids)].float()
        work = Workspace(batch, stream, self._dtype, self.storage.block_size)
        for layer in self._layers:
            layer.run(work)
        return self._logits(work)

    def warm_up(self) -> None:
        """Compile every kernel that this model needs, or load it from disk. Touches no block.

        Takes seconds the first time on a machine, milliseconds later.
        """
        num_rows = min(16, self.max_model_len)
        num_blocks = self.storage.spec.num_blocks(num_rows)
        scratch = KVStorage(self.storage.spec, num_blocks)
        executor = Executor(self.spec, self.weights, scratch, num_rows, self._num_threads)
        for first, last in ((0, num_rows - 1), (num_rows - 1, num_rows)):
            if first == last:
                continue
            slots = np.arange(first, last)
            batch = Batch(
                token_ids=np.zeros(last - first, np.int64),
                positions=slots.astype(np.int32),
                slot_mapping=slots,
                query_starts=np.array((0, last - first), np.int32),
                context_lens=np.array((last,), np.int32),
                block_tables=np.arange(num_blocks, dtype=np.int32)[None],
                logit_rows=np.array((last - first - 1,)),
                copy_sources=np.empty(0, np.int64),
                copy_targets=np.empty(0, np.int64),
            )
            executor.forward(batch)

    def _logits(self, work: Workspace) -> torch.Tensor:
        rows = torch.from_numpy(work.batch.logit_rows)
        if len(rows) == 0:
            return torch.empty(0, self.spec.vocab_size)
        stream = work.stream[rows] + work.delta.tensor[rows]
        hidden = np.empty((len(rows), self.spec.hidden_size), np.float32)
        rms_norm(hidden, stream.numpy(), self._final_norm, np.float32(self.spec.norm_eps))
        logits = torch.empty(len(rows), self.spec.vocab_size)
        project(logits.numpy(), hidden, self._lm_head)
        return logits
