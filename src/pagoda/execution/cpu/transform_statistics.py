"""Statistics of a text's keys and values before rotation, which transforms are fitted to.

A key's error counts by what queries make of it, and these meet it rotated by how far they are from
it: their second moments are taken at such distances, near ones as often as far ones. What a score's
error costs is how much the values vary that it mixes, so both sides count in the output's units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pagoda.codecs.block_transform import Sides
from pagoda.codecs.rotary import Rotary
from pagoda.codecs.transform import Moments
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.execution.cpu.panel_weights import PanelWeights
from pagoda.execution.cpu.run_sums import RunSums
from pagoda.execution.cpu.vector_statistics import output_metric, whole_sequence
from pagoda.execution.rope import RotaryTables
from pagoda.kernels.array import Array
from pagoda.models.decoder import AttentionSpec, DecoderSpec

_SINKS = 4
"""First tokens of a sequence, which are like no others and are kept as they are."""
_DISTANCES = 48


class TransformStatistics:
    """Sums over all tokens that were read, and some blocks of them."""

    def __init__(
        self, spec: DecoderSpec, weights: PanelWeights, runs: Sequence[Sequence[int]], longest: int
    ) -> None:
        """`runs`: layers that are looked at together. `longest`: tokens of a sequence."""
        self._weights, self._longest = weights, longest
        self._attention = {
            layer_id: attention
            for layer_id, attention in enumerate(layer.attention for layer in spec.layers)
            if isinstance(attention, AttentionSpec)
        }
        self._num_tokens = 0
        ropes = {attention.rope for attention in self._attention.values()}
        tables = {rope: RotaryTables.of(rope, longest) for rope in ropes}
        self._rotary = {rope: Rotary(each.cosines, each.sines) for rope, each in tables.items()}
        self._runs = [RunSums(run, sum(map(self._numbers, run))) for run in runs]
        self._run_of = {layer_id: run for run in self._runs for layer_id in run.layer_ids}
        self._queries = {
            layer_id: np.zeros((each.num_kv_heads, each.head_dim, each.head_dim))
            for layer_id, each in self._attention.items()
        }

    def read(self, executor: CPUExecutor, token_ids: Sequence[int]) -> None:
        """Add the tokens of a sequence. Writes to the first blocks."""
        if len(token_ids) <= _SINKS:
            return
        self._num_tokens += len(token_ids) - _SINKS
        spec = executor.storage.spec
        executor.observe(whole_sequence(token_ids, spec.windows, spec.block_size), self._add)

    def of_runs(self) -> Iterator[tuple[Moments, Moments]]:
        """What is known of each run's keys and values."""
        count = max(1, self._num_tokens)
        for run in self._runs:
            keys, values = run.keys.moments(count), run.values.moments(count)
            scores, outputs, start = list[Array](), list[Array](), 0
            for layer_id in run.layer_ids:
                stop = start + self._numbers(layer_id)
                output = output_metric(self._weights, layer_id, self._attention[layer_id])
                scores.append(
                    self._score_metric(layer_id, output, values[1][start:stop, start:stop])
                )
                outputs.append(output)
                start = stop
            yield Moments(*keys, np.concatenate(scores)), Moments(*values, np.concatenate(outputs))

    def blocks(self) -> list[Sides]:
        """Some of what was read, as many tokens in each as a block has, of all runs."""
        return list(zip(*(run.samples for run in self._runs), strict=True))

    def _numbers(self, layer_id: int) -> int:
        """Of a token's keys, or values."""
        attention = self._attention[layer_id]
        return attention.num_kv_heads * attention.head_dim

    def _add(self, layer_id: int, rows: Array) -> None:
        attention = self._attention[layer_id]
        rotary = self._rotary[attention.rope]
        heads, size = attention.num_kv_heads, attention.head_dim
        bounds = [attention.num_heads * size, (attention.num_heads + heads) * size]
        queries, keys, values = (
            part.reshape(len(rows), -1, size) for part in np.split(rows, bounds, axis=1)
        )
        queries, keys = rotary.take_off(queries, 0), rotary.take_off(keys, 0)
        by_token = queries[_SINKS:].reshape(len(rows) - _SINKS, heads, -1, size)
        of_heads = by_token.transpose(1, 0, 2, 3).reshape(heads, -1, size)
        self._queries[layer_id] += of_heads.swapaxes(1, 2) @ of_heads
        flat = (len(rows), heads * size)
        keys, values = (each.reshape(flat)[_SINKS:].copy() for each in (keys, values))
        self._run_of[layer_id].add(layer_id, keys, values)

    def _score_metric(self, layer_id: int, output: Array, values: Array) -> Array:
        """What an error of a key costs at the output: [heads, size, size].

        output: the metric of values. values: their covariance.
        """
        attention = self._attention[layer_id]
        heads, size = attention.num_kv_heads, attention.head_dim
        parts = values.reshape(heads, size, heads, size)
        own = np.stack([parts[head, :, head] for head in range(heads)])
        varies = np.einsum("hij,hji->h", output, own)
        queries = self._queries[layer_id] / max(1, self._num_tokens)
        return varies[:, None, None] * attention.scale**2 * self._met(attention, queries)

    def _met(self, attention: AttentionSpec, moments: Array) -> Array:
        """Second moments of queries as keys meet them, [heads, size, size]."""
        rotary = self._rotary[attention.rope]
        axes = np.eye(moments.shape[-1], dtype=np.float32)[None]
        distances = np.unique(np.geomspace(1, max(1, self._longest - 1), _DISTANCES).astype(int))
        total = np.zeros_like(moments)
        for distance in distances.tolist():
            turns = rotary.put_on(axes, distance)[0]
            turns *= np.linalg.norm(turns, axis=1, keepdims=True)  # queries are as long as keys
            total += turns.T @ moments @ turns
        return total / len(distances)
