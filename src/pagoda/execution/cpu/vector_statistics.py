"""What a text's queries, keys and values are like in every layer, for codecs to be fitted to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from pagoda.cache.slots import num_blocks_for
from pagoda.cache.window import AttentionWindow
from pagoda.codecs.calibrate import Observed
from pagoda.execution.batch import Batch, GroupPages
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.execution.cpu.panel_weights import PanelWeights
from pagoda.kernels.array import Array
from pagoda.models.decoder import AttentionSpec, DecoderSpec

_SAMPLES = 2048
"""Tokens whose vectors are kept."""
_SAMPLES_EACH = 256
"""Of one sequence, at most."""


class VectorStatistics:
    """Sums over all tokens that were read, and vectors of some of them."""

    def __init__(self, spec: DecoderSpec, weights: PanelWeights, num_sequences: int) -> None:
        """`num_sequences` will be read."""
        self._spec, self._weights = spec, weights
        self._samples = min(_SAMPLES_EACH, -(-_SAMPLES // num_sequences))
        self._num_tokens = 0
        attentions = map(self._attention, range(len(spec.layers)))
        shapes = [(each.num_kv_heads, each.head_dim) for each in attentions]
        self._sums = [np.zeros((3, heads, size, size)) for heads, size in shapes]
        """Of each layer, Σ x xᵀ over queries, keys and values."""
        self._kept: list[list[tuple[Array, Array]]] = [[] for _ in shapes]

    def read(self, executor: CPUExecutor, token_ids: Sequence[int]) -> None:
        """Add the tokens of a sequence. Writes to the first blocks."""
        self._num_tokens += len(token_ids)
        spec = executor.storage.spec
        executor.observe(whole_sequence(token_ids, spec.windows, spec.block_size), self._add)

    def of_layers(self) -> Iterator[tuple[Observed, Observed]]:
        """What is known of each layer's keys and values."""
        for number, sums in enumerate(self._sums):
            queries, keys, values = sums / self._num_tokens
            metric = output_metric(self._weights, number, self._attention(number))
            key_samples, value_samples = zip(*self._kept[number], strict=True)
            yield (
                Observed(queries, keys, np.concatenate(key_samples, 1)),
                Observed(metric, values, np.concatenate(value_samples, 1)),
            )

    def _attention(self, layer: int) -> AttentionSpec:
        attention = self._spec.layers[layer].attention
        assert isinstance(attention, AttentionSpec)  # latents are not coded
        return attention

    def _add(self, layer: int, rows: Array) -> None:
        attention = self._attention(layer)
        heads, size = attention.num_kv_heads, attention.head_dim
        parts = np.split(
            rows, [attention.num_heads * size, (attention.num_heads + heads) * size], 1
        )
        groups = [part.reshape(len(rows), heads, -1, size) for part in parts]
        for total, group in zip(self._sums[layer], groups, strict=True):
            vectors = group.transpose(1, 0, 2, 3).reshape(heads, -1, size)
            total += vectors.swapaxes(1, 2) @ vectors
        step = -(-len(rows) // self._samples)
        keys, values = (part[::step, :, 0].swapaxes(0, 1).copy() for part in groups[1:])
        self._kept[layer].append((keys, values))


def output_metric(weights: PanelWeights, layer: int, attention: AttentionSpec) -> Array:
    """Σ Wᵀ W over the heads of each group, W being what the output projection takes of one:
    [num_kv_heads, head_size, head_size] float64."""
    paired = weights.dtype == torch.bfloat16
    weight = weights.layers[layer].o.numbers(paired=paired)
    heads, size = attention.num_kv_heads, attention.head_dim
    columns = weight.reshape(len(weight), heads, -1, size).swapaxes(0, 1)
    of_group = columns.reshape(heads, -1, size).astype(np.float64)
    return of_group.swapaxes(1, 2) @ of_group


def _pages(number: int, count: int, window: AttentionWindow, block_size: int) -> GroupPages:
    """Those of group `number`: blocks behind those of the groups before it."""
    num_blocks = num_blocks_for(count, block_size)
    tables = np.arange(number * num_blocks, (number + 1) * num_blocks, dtype=np.int32)[None]
    slots = np.arange(count) + number * num_blocks * block_size
    return GroupPages(tables, slots, np.array([(window.window, window.sinks)], np.int32))


def whole_sequence(
    token_ids: Sequence[int], windows: Sequence[AttentionWindow], block_size: int
) -> Batch:
    """One sequence from its beginning to its end, in the first blocks."""
    count = len(token_ids)
    nothing = np.empty(0, np.int64)
    return Batch(
        token_ids=np.array(token_ids, np.int64),
        positions=np.arange(count, dtype=np.int32),
        query_starts=np.array((0, count), np.int32),
        context_lens=np.array([count], np.int32),
        groups=tuple(
            _pages(number, count, window, block_size) for number, window in enumerate(windows)
        ),
        logit_rows=nothing,
        copy_sources=nothing,
        copy_targets=nothing,
    )
