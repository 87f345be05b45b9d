"""Runs any decoder for a batch on the CPU: a run of equal layers is one compiled function."""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
import torch

from pagoda.errors import InvalidOptionError
from pagoda.execution.batch import Batch, GroupPages
from pagoda.execution.cpu.attention_tiler import AttentionTiler
from pagoda.execution.cpu.expert_table import experts_memory
from pagoda.execution.cpu.latent_segment import LatentSegment
from pagoda.execution.cpu.layer_table import adds_later
from pagoda.execution.cpu.panel_weights import PanelWeights
from pagoda.execution.cpu.segment import Segment, segments
from pagoda.execution.cpu.workspace import Workspace
from pagoda.execution.rope import RotaryTables
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.attention_tiling import GroupTilings
from pagoda.kernels.cpu.decoder import Step, memory_bytes
from pagoda.kernels.cpu.ends import Ends, embed, project
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.int8_rows import record_bytes
from pagoda.kernels.cpu.team import PHASE_BYTES, first_phase, phases
from pagoda.models.decoder import DecoderSpec, ExpertsSpec
from pagoda.storage.cpu_storage import CPUStorage

OnLayer = Callable[[int, Array], None]

_FLOAT, _BYTE = np.dtype(np.float32), np.dtype(np.uint8)
_EMBED_PHASES, _PROJECT_PHASES = 1, 3
_MOST_KEPT_ROWS = 256
"""Rows of logits whose memory is used again."""


class CPUExecutor:
    """A decoder, its weights and the storage of its cache, ready to run batches.

    What products read is in the weights' dtype (float32 or bfloat16), all else, the residual stream
    and the logits in float32. `max_model_len` is the longest sequence, in tokens;
    `num_threads` work on a step (None: one per core; no more than Numba has). With `rounds_rows`
    what weights of quantised types are multiplied with is rounded to eight bits. Raises
    InvalidOptionError for no thread.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: PanelWeights,
        storage: CPUStorage,
        max_model_len: int,
        num_threads: int | None = None,
        *,
        rounds_rows: bool = False,
    ) -> None:
        self.spec = spec
        self.storage = storage
        self.max_model_len = max_model_len
        if num_threads is not None and num_threads < 1:
            raise InvalidOptionError("threads", num_threads, "must be at least 1")
        most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        self._num_threads = most if num_threads is None else min(num_threads, most)
        self._weights = weights
        self._rounds_rows = rounds_rows
        ropes = {layer.attention.rope for layer in spec.layers}
        made_for = spec.max_position_embeddings
        tables = {rope: RotaryTables.of(rope, max_model_len, made_for) for rope in ropes}
        self._segments = segments(spec, weights, storage, tables)
        self._dtype = np.dtype(np.uint16 if weights.dtype == torch.bfloat16 else np.float32)
        self._final_norm = (weights.final_norm.float() + spec.norm.weight_offset).numpy()
        self._logit_bias = np.zeros(spec.vocab_size, np.float32)
        if weights.logit_bias is not None:
            self._logit_bias[:] = weights.logit_bias.float().numpy()
        self._eps = _one(spec.norm.eps)
        self._embedding_scale = _one(spec.embedding_scale)
        adjusts = spec.logit_cap is not None or spec.logit_scale != 1.0
        self._logit_scale = _one(spec.logit_scale) if adjusts else None
        self._logit_cap = None if spec.logit_cap is None else _one(spec.logit_cap)
        self._ends = self._fixed_ends()
        self._adds_later = any(map(adds_later, spec.layers))
        parts = {layer.mlp for layer in spec.layers}
        self._experts = [part for part in parts if isinstance(part, ExpertsSpec)]
        self._workspace = Workspace()
        of_layers = sum(segment.num_phases * len(segment.table) for segment in self._segments)
        self._counters = phases(_EMBED_PHASES + of_layers + _PROJECT_PHASES, self._num_threads)
        self._tilers: dict[HeadShape, dict[int, AttentionTiler]] = {}
        decoding = {each.shape for each in self._segments if each.heads.unpack_values != 0}
        for segment in self._segments:
            shape, tilers = segment.shape, self._tilers.setdefault(segment.shape, {})
            for group in segment.groups:
                tiler = AttentionTiler(
                    shape, group, decodes=shape in decoding, num_threads=self._num_threads
                )
                tilers.setdefault(group, tiler)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Copy blocks, run the batch's tokens through all layers and store their K and V.

        Returns the logits of batch.logit_rows: [num_logit_rows, vocab_size] float32. They are in
        memory that the next call may use again.
        """
        return self._run(batch, None)

    def observe(self, batch: Batch, on_layer: OnLayer) -> None:
        """`forward` layer by layer, for what each makes of the rows.

        `on_layer` gets the layer's number and its queries, keys and values, rotated:
        [num_tokens, (num_heads + 2 num_kv_heads) * head_dim] float32, good for the call alone. The
        cache must hold plain numbers, since codecs turn them.
        """
        assert not any(self.storage.codecs)
        self._run(batch, on_layer)

    def _run(self, batch: Batch, on_layer: OnLayer | None) -> torch.Tensor:
        numba.set_num_threads(self._num_threads)  # of this thread: Numba keeps it for each
        self.storage.copy_blocks(batch.copy_sources, batch.copy_targets)
        logits = self._new_logits(len(batch.logit_rows))
        ends = self._ends._replace(
            token_ids=batch.token_ids.ctypes.data,
            logits=logits.ctypes.data,
            logit_rows=batch.logit_rows.ctypes.data,
            num_logit_rows=len(logits),
        )
        self._counters[:] = 0  # no phase is begun
        places = self._counters.ctypes.data
        counter = first_phase(places, self._num_threads)
        numbers = np.arange(batch.num_tokens)
        tilings = {
            shape: GroupTilings({group: tiler.tile(batch) for group, tiler in tilers.items()})
            for shape, tilers in self._tilers.items()
        }
        experts, num_done = self._experts_memory(batch.num_tokens), 0
        for number, segment in enumerate(self._segments):
            shape = segment.shape
            step = self._step(batch, numbers, segment, tilings[shape], experts, places)
            if number == 0:
                beginning = step._replace(counters=counter)
                embed(beginning, ends, segment.widths, segment.routines)
                counter += _EMBED_PHASES * PHASE_BYTES
            at_once = len(segment.table) if on_layer is None else 1
            for first in range(0, len(segment.table), at_once):
                segment.run(
                    first,
                    at_once,
                    self._read_next(number),
                    step._replace(counters=counter),
                    self._workspace,
                )
                counter += segment.num_phases * at_once * PHASE_BYTES
                if on_layer is not None:
                    width = segment.widths.qkv
                    rows = self._workspace.array("qkv", batch.num_tokens, width, _FLOAT)
                    on_layer(num_done + first, rows)
            num_done += len(segment.table)
        if len(logits):
            last = step._replace(counters=counter)
            project(last, ends, segment.widths, segment.routines, segment.panels)
        return torch.from_numpy(logits)

    def warm_up(self) -> None:
        """Compile every kernel that this model needs, or load it from disk. Touches no block.

        Takes seconds the first time on a machine, milliseconds later.
        """
        block_size, num_groups = self.storage.block_size, len(self.storage.spec.groups)
        size = num_groups * block_size
        executor = CPUExecutor(
            self.spec,
            self._weights,
            CPUStorage(self.storage.spec, num_groups, self.storage.codecs),
            1,
            self._num_threads,
            rounds_rows=self._rounds_rows,
        )
        executor.forward(
            Batch(
                token_ids=np.zeros(1, np.int64),
                positions=np.zeros(1, np.int32),
                query_starts=np.array((0, 1), np.int32),
                context_lens=np.ones(1, np.int32),
                groups=tuple(
                    GroupPages.seeing_all(np.full((1, 1), number, np.int32), np.full(1, slot))
                    for number, slot in enumerate(range(block_size - 1, size, block_size))
                ),
                logit_rows=np.zeros(1, np.int64),
                copy_sources=np.empty(0, np.int64),
                copy_targets=np.empty(0, np.int64),
            )
        )

    def _experts_memory(self, num_rows: int) -> Array | None:
        """None where no layer has experts."""
        if not self._experts:
            return None
        return experts_memory(
            self._workspace,
            self._experts,
            self.spec.hidden_size,
            num_rows,
            self._dtype,
            rounds_rows=self._rounds_rows,
        )

    def _step(
        self,
        batch: Batch,
        rows: Array,
        segment: Segment | LatentSegment,
        tilings: GroupTilings,
        experts: Array | None,
        places: int,
    ) -> Step:
        count, widths = batch.num_tokens, segment.widths
        size = memory_bytes(tilings.most_rows, segment.shape, segment.heads)
        memory = self._workspace.address("memory", self._num_threads, size, _BYTE)

        def address(name: str, width: int, dtype: np.dtype[np.generic]) -> int:
            return self._workspace.address(name, count, width, dtype)

        return Step(
            num_rows=count,
            num_threads=self._num_threads,
            places=places,
            counters=0,
            memory=memory,
            memory_bytes=size,
            tilings=tilings.addresses.ctypes.data,
            most_rows=tilings.most_rows,
            rows=rows.ctypes.data,
            stream=address("stream", widths.hidden, _FLOAT),
            delta=address("delta", widths.hidden, _FLOAT) if self._adds_later else 0,
            hidden=address("hidden", widths.hidden, self._dtype),
            qkv=address("qkv", widths.qkv, _FLOAT),
            sink_queries=address("sinks", segment.query_width, _FLOAT) if tilings.has_sinks else 0,
            attended=address("attended", widths.attended, self._dtype),
            gated=address("gated", widths.inner, self._dtype),
            records=self._records(count, segment.widest),
            eps=self._eps.ctypes.data,
            experts=0 if experts is None else experts.ctypes.data,
        )

    def _records(self, num_rows: int, widest: int) -> int:
        """Address of memory for rows that are rounded; 0: none are."""
        if not self._rounds_rows:
            return 0
        return self._workspace.address("records", num_rows, record_bytes(widest), _BYTE)

    def _new_logits(self, num_rows: int) -> Array:
        """[num_rows, vocab_size]; what a prompt's log-probabilities take is not kept for good."""
        if num_rows > _MOST_KEPT_ROWS:
            return np.empty((num_rows, self.spec.vocab_size), np.float32)
        return self._workspace.array("logits", num_rows, self.spec.vocab_size, _FLOAT)

    def _read_next(self, number: int) -> int:
        """Address of what is read after segment `number`."""
        if number + 1 < len(self._segments):
            return int(self._segments[number + 1].table[0, 0])
        return self._weights.lm_head.address

    def _fixed_ends(self) -> Ends:
        """What of them is the same in every step."""
        return Ends(
            token_ids=0,
            embedding=self._weights.embedding.address,
            lm_head=self._weights.lm_head.address,
            bias=self._logit_bias.ctypes.data,
            norm=self._final_norm.ctypes.data,
            embedding_scale=self._embedding_scale.ctypes.data,
            logit_scale=_address(self._logit_scale),
            logit_cap=_address(self._logit_cap),
            vocab_size=self.spec.vocab_size,
            logits=0,
            logit_rows=0,
            num_logit_rows=0,
        )


def _one(number: float) -> Array:
    return np.array([number], np.float32)


def _address(values: Array | None) -> int:
    """0 for none."""
    return 0 if values is None else int(values.ctypes.data)
