"""The sampler for logits in main memory: compiled loops, which never sort the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagoda.engine.outputs import Logprob
from pagoda.engine.sampling.logits import change_logits
from pagoda.engine.sampling.logprobs import token_logprobs
from pagoda.engine.sampling.row import SamplingRow
from pagoda.engine.sampling.sampler import SampledToken
from pagoda.engine.sampling.tiles import as_slice, tiles
from pagoda.engine.sampling.uniforms import uniforms
from pagoda.kernels.cpu.choose import choose, choose_largest
from pagoda.request import SamplingParams

_TILE_ELEMENTS = 2**20
"""Changed logits are held this many at a time: a few megabytes."""


class ChosenTokens:
    """See `Draws`. They are here already."""

    def __init__(self, token_ids: Tensor, tokens: list[SampledToken | None]) -> None:
        self.token_ids = token_ids
        self._tokens = tokens

    def wait(self) -> list[SampledToken | None]:
        return self._tokens


class CPUSampler:
    """Chooses tokens from logits in main memory; see `Sampler`."""

    def begin(
        self, logits: Tensor, rows: Sequence[SamplingRow], positions: Sequence[int]
    ) -> ChosenTokens:
        values = np.ascontiguousarray(logits.numpy())
        changing = [index for index, row in enumerate(rows) if row.changes_logits]
        ids, sound = _choose(values, rows, positions, undrawn=frozenset(changing))
        for own in tiles(len(changing), values.shape[1], _TILE_ELEMENTS):
            tile = changing[own]
            tile_values, tile_rows = values[tile], [rows[index] for index in tile]
            change_logits(tile_values, tile_rows)
            ids[tile], _ = _choose(tile_values, tile_rows, [positions[index] for index in tile])
        ids[~sound] = 0
        token_ids = ids.tolist()
        found = zip(token_ids, _wanted_logprobs(logits, rows, token_ids), sound, strict=True)
        tokens = [SampledToken(*token) if is_sound else None for *token, is_sound in found]
        return ChosenTokens(torch.from_numpy(ids), tokens)

    def token_logprobs(
        self, logits: Tensor, target_ids: Sequence[int], num_top: int
    ) -> list[dict[int, Logprob]]:
        return token_logprobs(logits, target_ids, num_top)


def warm_up(temperature: float = 0.0) -> None:
    """Compile the loops for greedy rows, or for drawn ones if `temperature` is above 0.

    Where they are on disk they are loaded. The first time on a machine drawn rows take 10 s, which
    a program that asks for none need not wait for.
    """
    row = SamplingRow(SamplingParams(temperature=temperature), 0, (), (), frozenset())
    _choose(np.zeros((1, 1), np.float32), [row], [0])


def _choose(
    logits: NDArray[np.float32],
    rows: Sequence[SamplingRow],
    positions: Sequence[int],
    undrawn: frozenset[int] = frozenset(),
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Token ids [rows], and which rows are sound [rows]; `undrawn` ones get their largest."""
    ids, sound = np.empty(len(rows), np.int64), np.empty(len(rows), np.bool_)
    drawn = [not row.is_greedy and index not in undrawn for index, row in enumerate(rows)]
    if not any(drawn):
        choose_largest(ids, sound, logits)
        return ids, sound
    params = [row.params for row in rows]
    temperatures = [p.temperature if draws else 0.0 for p, draws in zip(params, drawn, strict=True)]
    choose(
        ids,
        sound,
        logits,
        np.array(temperatures, np.float32),
        np.array([max(p.top_k, 0) for p in params], np.int64),
        np.array([p.top_p for p in params], np.float64),
        np.array([p.min_p for p in params], np.float32),
        uniforms([row.seed for row in rows], positions),
    )
    return ids, sound


def _wanted_logprobs(
    logits: Tensor, rows: Sequence[SamplingRow], token_ids: Sequence[int]
) -> list[dict[int, Logprob] | None]:
    found: list[dict[int, Logprob] | None] = [None] * len(rows)
    groups: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        if row.params.logprobs is not None:
            groups.setdefault(row.params.logprobs, []).append(index)
    for num_top, group in groups.items():
        chosen = [token_ids[index] for index in group]
        neighbours = as_slice(group)
        own = logits[group if neighbours is None else neighbours]
        for index, entry in zip(group, token_logprobs(own, chosen, num_top), strict=True):
            found[index] = entry
    return found
