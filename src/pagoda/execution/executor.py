"""Runs any decoder for a batch on the CPU: a run of equal layers is one compiled function."""

from __future__ import annotations

import numba
import numpy as np
import torch

from pagoda.errors import UnsupportedModelError
from pagoda.execution.batch import Batch
from pagoda.execution.panel_weights import PanelWeights
from pagoda.execution.plan import plan_attention
from pagoda.execution.rope import RotaryTables
from pagoda.execution.segment import Segment, segments
from pagoda.execution.workspace import Workspace
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.attention import AttentionPlan
from pagoda.kernels.cpu.decoder import Step, embed, project, run_layers
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.product import panel_routines
from pagoda.models.decoder import DecoderSpec
from pagoda.storage.kv_storage import KVStorage, as_array

_FLOAT = np.dtype(np.float32)


class Executor:
    """A decoder, its weights and the storage of its cache, ready to run batches.

    What products read is in the weights' dtype (float32 or bfloat16), all else, the residual stream
    and the logits in float32. `max_model_len` is the longest sequence, in tokens;
    `num_threads` work on a step (None: one per core). Raises UnsupportedModelError for an
    activation without a kernel.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: PanelWeights,
        storage: KVStorage,
        max_model_len: int,
        num_threads: int | None = None,
    ) -> None:
        for layer in spec.layers:
            if layer.mlp.activation != "silu":
                raise UnsupportedModelError("activation", layer.mlp.activation, "silu is covered")
        self.spec = spec
        self.storage = storage
        self.max_model_len = max_model_len
        most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        self._num_threads = most if num_threads is None else min(num_threads, most)
        self._weights = weights
        ropes = {layer.attention.rope for layer in spec.layers}
        tables = {rope: RotaryTables.of(rope, max_model_len) for rope in ropes}
        self._segments = segments(spec, weights, storage, tables)
        self._final_norm = weights.final_norm.float().numpy()
        self._like = as_array(weights.embedding)[:0]
        self._eps = np.float32(spec.norm_eps)
        self._workspace = Workspace()

    def forward(self, batch: Batch) -> torch.Tensor:
        """Copy blocks, run the batch's tokens through all layers and store their K and V.

        Returns the logits of batch.logit_rows: [num_logit_rows, vocab_size] float32. They are in
        memory that the next call uses again.
        """
        numba.set_num_threads(self._num_threads)  # of this thread: Numba keeps it for each
        self.storage.copy_blocks(batch.copy_sources, batch.copy_targets)
        stream = self._array("stream", batch.num_tokens, self.spec.hidden_size, _FLOAT)
        embed(
            stream, batch.token_ids, self._weights.embedding.data_ptr(), self.spec.vocab_size,
            self._like, self._num_threads,
        )  # fmt: skip
        plans: dict[HeadShape, AttentionPlan] = {}
        for segment in self._segments:
            shape = segment.shape
            if shape not in plans:
                plans[shape] = plan_attention(batch, shape)
            step = self._step(batch, stream, segment)
            run_layers(
                step, plans[shape], segment.tables, segment.like, shape, segment.heads,
                segment.panels, self._eps, self._num_threads,
            )  # fmt: skip
        return torch.from_numpy(self._logits(batch, stream))

    def warm_up(self) -> None:
        """Compile every kernel that this model needs, or load it from disk. Touches no block.

        Takes seconds the first time on a machine, milliseconds later.
        """
        scratch = KVStorage(self.storage.spec, 1)
        executor = Executor(self.spec, self._weights, scratch, 1, self._num_threads)
        executor.forward(
            Batch(
                token_ids=np.zeros(1, np.int64),
                positions=np.zeros(1, np.int32),
                slot_mapping=np.zeros(1, np.int64),
                query_starts=np.array((0, 1), np.int32),
                context_lens=np.ones(1, np.int32),
                block_tables=np.zeros((1, 1), np.int32),
                logit_rows=np.zeros(1, np.int64),
                copy_sources=np.empty(0, np.int64),
                copy_targets=np.empty(0, np.int64),
            )
        )

    def _step(self, batch: Batch, stream: Array, segment: Segment) -> Step:
        rows, dtype = batch.num_tokens, self._like.dtype
        return Step(
            slot_mapping=batch.slot_mapping,
            stream=stream,
            rows=np.arange(rows),
            hidden=self._array("hidden", rows, self.spec.hidden_size, dtype),
            qkv=self._array("qkv", rows, segment.qkv_width, _FLOAT),
            attended=self._array("attended", rows, segment.attended_width, dtype),
            gated=self._array("gated", rows, segment.inner_width, dtype),
        )

    def _logits(self, batch: Batch, stream: Array) -> Array:
        rows = batch.logit_rows
        logits = self._array("logits", len(rows), self.spec.vocab_size, _FLOAT)
        if len(rows):
            hidden = self._array("hidden", len(rows), self.spec.hidden_size, self._like.dtype)
            lm_head = self._weights.lm_head
            project(
                logits, hidden, stream, rows, self._final_norm, self._eps, lm_head.data_ptr(),
                panel_routines(lm_head.dtype == torch.bfloat16), self._num_threads,
            )  # fmt: skip
        return logits

    def _array(self, name: str, rows: int, width: int, dtype: np.dtype[np.generic]) -> Array:
        return self._workspace.array(name, rows, width, dtype)
