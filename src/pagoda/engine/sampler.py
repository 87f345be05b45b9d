"""The sampler: logits in, one token per row out. A pure function; sequences keep no state for it.

What happens to a row, in vLLM's order:

    logits ─┬─ log-probabilities (of the logits as the model gave them)
            └─ bias, mask of stop tokens, penalties ── temperature ── min_p, top_k, top_p ── draw

A draw is counter-based: its one random number depends on the row's seed and on how many tokens the
sequence has, so a sequence gets the same tokens whatever it is batched with, and again after it was
preempted. Rows are grouped by how much of the vocabulary has to be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pagoda.engine.draw import (
    Filters,
    draw_ids,
    draw_ranks,
    id_among_equals,
    id_at_rank,
    largest_ids,
    sort_descending,
    uniforms,
)
from pagoda.engine.logits import SamplingRow, changed_logits
from pagoda.engine.logprobs import token_logprobs
from pagoda.engine.outputs import Logprob
from pagoda.errors import EngineError
from pagoda.request import SamplingParams

__all__ = ["LogitsError", "SampledToken", "SamplingRow", "sample", "token_logprobs"]

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: dividing by it would overflow float32."""

NUM_CANDIDATES = 128
"""Filters are first applied to this many of the most likely tokens; whole rows are sorted only
where what they keep does not fit."""

_TILE_ELEMENTS = 2**20
"""Logits looked at together: temporaries stay within the CPU's caches."""


Chooser = Callable[[Tensor, Sequence[SamplingParams], Tensor], list[int]]
"""Token ids from changed logits [rows, vocab], parameters and uniform numbers [rows]."""


class SampledToken(NamedTuple):
    """The token chosen for one row."""

    token_id: int
    logprobs: dict[int, Logprob] | None
    """The chosen token first, then the most likely ones; None unless the row asked for them."""


class LogitsError(EngineError):
    """The model gave NaN, plus infinity or nothing finite."""


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
    """Choose a token for each row of `logits` [rows, vocab] float32, which is not changed.

    Raises `LogitsError` before anything else if a row has NaN or plus infinity, or nothing finite.
    """
    if not rows:
        return []
    _refuse_broken(logits)
    token_ids = [0] * len(rows)
    uniform = uniforms([row.seed for row in rows], [len(row.output_token_ids) for row in rows])
    for choose, group in _grouped(rows).items():
        for tile in _tiles(group, logits.shape[1]):
            tile_rows = [rows[index] for index in tile]
            tile_logits = changed_logits(_take(logits, tile), tile_rows)
            tile_uniform = torch.from_numpy(uniform[tile]).to(logits.device)
            chosen = choose(tile_logits, [row.params for row in tile_rows], tile_uniform)
            for index, token_id in zip(tile, chosen, strict=True):
                token_ids[index] = token_id
    logprobs = _wanted_logprobs(logits, rows, token_ids)
    return [SampledToken(*pair) for pair in zip(token_ids, logprobs, strict=True)]


def _refuse_broken(logits: Tensor) -> None:
    sound = logits.amax(1).isfinite()
    if not sound.all():
        rows = (~sound).nonzero()[:, 0].tolist()
        raise LogitsError(f"the model's logits are not finite in rows {rows}")


def _grouped(rows: Sequence[SamplingRow]) -> dict[Chooser, list[int]]:
    groups: dict[Chooser, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(_chooser(row.params), []).append(index)
    return groups


def _chooser(params: SamplingParams) -> Chooser:
    """The cheapest way to choose. Depends on the row alone, as every result must."""
    if params.temperature < GREEDY_BELOW:
        return _most_likely
    if params.top_k > NUM_CANDIDATES:
        return _from_sorted
    if params.top_k > 0:
        return _from_top
    if params.top_p < 1.0 or params.min_p > 0.0:
        return _from_nucleus
    return _from_all


def _tiles(indices: list[int], vocab_size: int) -> Iterator[list[int]]:
    num_rows = max(1, _TILE_ELEMENTS // vocab_size)
    for first in range(0, len(indices), num_rows):
        yield indices[first : first + num_rows]


def _take(logits: Tensor, indices: list[int]) -> Tensor:
    """Those rows; a view where they are neighbours."""
    first, last = indices[0], indices[-1]
    return logits[first : last + 1] if last - first + 1 == len(indices) else logits[indices]


# ---- choosers: tokens for rows that need the same; see the type Chooser ----------------------


def _most_likely(logits: Tensor, params: Sequence[SamplingParams], uniform: Tensor) -> list[int]:
    return largest_ids(logits).tolist()


def _from_all(logits: Tensor, params: Sequence[SamplingParams], uniform: Tensor) -> list[int]:
    """Temperature alone: no order among the tokens is needed."""
    return draw_ids(torch.softmax(_scaled(logits, params), 1), uniform).tolist()


def _from_top(logits: Tensor, params: Sequence[SamplingParams], uniform: Tensor) -> list[int]:
    """A top_k within the candidates."""
    width = min(max(p.top_k for p in params), logits.shape[1])
    top = logits.topk(width, 1)
    drawn = draw_ranks(top.values, _filters(params, logits), uniform)
    return _ids_at(logits, top.values, top.indices, drawn.rank)


def _from_nucleus(logits: Tensor, params: Sequence[SamplingParams], uniform: Tensor) -> list[int]:
    """top_p or min_p without top_k: the candidates first, then whole rows where they fall short."""
    width = min(NUM_CANDIDATES, logits.shape[1])
    top = logits.topk(width, 1)
    total = None if width == logits.shape[1] else _total_weight(logits, params)
    drawn = draw_ranks(top.values, _filters(params, logits), uniform, total)
    token_ids = _ids_at(logits, top.values, top.indices, drawn.rank)
    wide = (~drawn.resolved).nonzero()[:, 0]
    if len(wide):
        positions = wide.tolist()
        again = _from_sorted(logits[wide], [params[p] for p in positions], uniform[wide])
        for position, token_id in zip(positions, again, strict=True):
            token_ids[position] = token_id
    return token_ids


def _from_sorted(logits: Tensor, params: Sequence[SamplingParams], uniform: Tensor) -> list[int]:
    """Filters that may keep any number of tokens."""
    values = sort_descending(logits)
    rank = draw_ranks(values, _filters(params, logits), uniform).rank[:, None]
    value = values.gather(1, rank)
    position = rank - torch.searchsorted(values.neg_(), value.neg())
    return [
        id_among_equals(row, row_value, row_position)
        for row, row_value, row_position in zip(
            logits, value[:, 0].tolist(), position[:, 0].tolist(), strict=True
        )
    ]


def _filters(params: Sequence[SamplingParams], logits: Tensor) -> Filters:
    vocab_size, device = logits.shape[1], logits.device
    return Filters(
        temperature=_temperatures(params, logits),
        top_k=torch.tensor(
            [min(p.top_k, vocab_size) if p.top_k > 0 else vocab_size for p in params], device=device
        ),
        top_p=torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device),
        min_p=torch.tensor([p.min_p for p in params], dtype=torch.float32, device=device),
    )


def _temperatures(params: Sequence[SamplingParams], logits: Tensor) -> Tensor:
    return torch.tensor([p.temperature for p in params], dtype=torch.float32, device=logits.device)


def _scaled(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    if all(p.temperature == 1.0 for p in params):
        return logits
    return logits / _temperatures(params, logits)[:, None]


def _total_weight(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """float64 [rows]: sum of exp((logit - largest) / temperature); only read where min_p is off."""
    if all(p.min_p > 0.0 for p in params):
        return torch.zeros(len(params), dtype=torch.float64, device=logits.device)
    largest_probability = torch.softmax(_scaled(logits, params), 1).amax(1)
    return largest_probability.double().reciprocal()


def _ids_at(logits: Tensor, values: Tensor, ids: Tensor, ranks: Tensor) -> list[int]:
    """Token ids at `ranks` [rows], given each row's largest `values` and their `ids`."""
    return [
        id_at_rank(*row)
        for row in zip(logits, values.tolist(), ids.tolist(), ranks.tolist(), strict=True)
    ]


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
        for index, entry in zip(
            group, token_logprobs(_take(logits, group), chosen, num_top), strict=True
        ):
            found[index] = entry
    return found
