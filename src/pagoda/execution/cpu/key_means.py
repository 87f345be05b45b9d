"""What is left out of a layer's keys: half of what they have in common.

Keys turn with their positions, each pair of numbers at its own rate, so what they have in common is
what is left of their mean m when it is turned by all positions and averaged:

    common = m · average of exp(i · rate · position)

Of pairs that turn often nothing is left. Positions are those of contexts of the model's length, of
half of it and of a quarter, all alike. Half of it is left out: the first token, which much of the
attention goes to, has keys that are like no others, and keys far from the average of positions
would become longer by as much as others become shorter (docs/log.md has what other choices cost).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pagoda.codecs import SideCodec
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.execution.cpu.vector_statistics import whole_sequence
from pagoda.kernels.array import Array
from pagoda.models.decoder import AttentionSpec, DecoderSpec

FIRST_TOKENS = 4
"""Of a sequence, which are like no others: their keys do not count."""
_SHARE = 0.5
_CONTEXTS = (1, 2, 4)
"""What the model's length is divided by."""


class KeyMeans:
    """Sums over keys of all tokens that were read, their positions taken off."""

    def __init__(self, spec: DecoderSpec) -> None:
        self._longest = spec.max_position_embeddings
        self._attention = [
            each.attention if isinstance(each.attention, AttentionSpec) else None
            for each in spec.layers
        ]
        self._sums = [
            None if each is None else np.zeros((each.num_kv_heads, each.head_dim))
            for each in self._attention
        ]
        self._num_tokens = 0
        self._first: dict[int, Array] = {}
        """Of each layer, keys of the last sequence's first token."""

    def read(self, executor: CPUExecutor, token_ids: Sequence[int]) -> None:
        """Add the tokens of a sequence. Writes to the first blocks."""
        self._num_tokens += max(0, len(token_ids) - FIRST_TOKENS)
        spec = executor.storage.spec
        executor.observe(whole_sequence(token_ids, spec.windows, spec.block_size), self._add)

    def of_layers(self, form: SideCodec) -> Iterator[Array | None]:
        """[num_kv_heads, head_size] float32 each; None: the layer has no keys.

        Moved by less than a step of what keys are stored in, so that what is left of first tokens'
        keys is stored exactly, where the form reaches that far. What is not finite is 0.
        """
        for layer, (attention, total) in enumerate(zip(self._attention, self._sums, strict=True)):
            if attention is None or total is None:
                yield None
                continue
            mean = _SHARE * total / max(1, self._num_tokens)
            turn = _average_turn(_rates(attention), self._longest)
            left_out = _turned(mean, turn).astype(np.float32)
            left_out = np.where(np.isfinite(left_out), left_out, np.float32(0))
            yield _moved(left_out, self._first[layer], form)

    def _add(self, layer: int, rows: Array) -> None:
        attention, total = self._attention[layer], self._sums[layer]
        if attention is None or total is None:
            return
        start, width = attention.num_heads * attention.head_dim, total.size
        keys = rows[:, start : start + width].reshape(-1, *total.shape)
        self._first[layer] = keys[0].copy()
        positions = np.arange(FIRST_TOKENS, len(rows))
        turns = np.exp(-1j * np.outer(positions, _rates(attention)))
        total += _turned(keys[FIRST_TOKENS:], turns[:, None]).sum(0)


def _moved(left_out: Array, first: Array, form: SideCodec) -> Array:
    """So that `first` less it is a number of the form. Numbers that the form cuts off stay."""
    rest = first - left_out
    largest = form.recall(np.full_like(rest, np.finfo(np.float32).max))
    return np.where(np.abs(rest) <= largest, first - form.recall(rest), left_out)


def _rates(attention: AttentionSpec) -> Array:
    """Of pairs of numbers, in radians a position; there are none where nothing is rotated."""
    return np.array(() if attention.rope is None else attention.rope.inv_freq, np.float64)


def _turned(vectors: Array, turns: Array) -> Array:
    """Number i and number r + i as one complex number, times turn i of r; the others as they are.

    vectors: [..., head_size]. turns: [..., r].
    """
    count = turns.shape[-1]
    pairs = (vectors[..., :count] + 1j * vectors[..., count : 2 * count]) * turns
    return np.concatenate([pairs.real, pairs.imag, vectors[..., 2 * count :]], axis=-1)


def _average_turn(rates: Array, longest: int) -> Array:
    """[r] complex: of what positions of those contexts turn pairs by."""
    angles = np.outer(longest / np.array(_CONTEXTS), rates)
    return (np.sinc(angles / (2 * np.pi)) * np.exp(0.5j * angles)).mean(0)
