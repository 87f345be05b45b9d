"""What steps were measured to take: from what `pagoda bench` prints to a cost of steps.

    seconds of a workload = step × steps + token × tokens + draw × drawn + context × … + pair × …

What each workload does is known, by planning it again with the measured engine's settings; what it
took was measured. The costs are those, none below 0, that come nearest to all of it at once, each
time by its own length.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pagoda.cache import CacheManager
from pagoda.errors import InvalidOptionError
from pagoda.replay.step_cost import LinearCost, StepWork, parse_linear_cost
from pagoda.request import Request, SamplingParams
from pagoda.roofline import draw
from pagoda.scheduling import Scheduler, judge

_NAMES = tuple(each.name for each in fields(LinearCost))
_ALONE = ("single", "long")
"""Workloads of one request: the time to their first token is that of the prompt."""
_NEEDED = ("seed", "num_blocks", "block_size", "max_num_batched_tokens", "max_num_seqs")


@dataclass(frozen=True, slots=True)
class _Measured:
    """Steps that took so long together."""

    work: NDArray[np.float64]
    """How often each cost is paid, [5], in the order of their names."""
    seconds: float


def read_cost(text: str) -> LinearCost:
    """A cost in words, in a file of JSON, or measured: a file of what `pagoda bench --json` prints.

    Raises `InvalidOptionError`.
    """
    rows = [] if "=" in text else _bench_rows(Path(text))
    return fitted(rows) if rows else parse_linear_cost(text)


def fitted(rows: Sequence[Mapping[str, Any]]) -> LinearCost:
    """The cost that comes nearest to rows of `pagoda bench`.

    Raises `InvalidOptionError` for rows that lack the engine's settings, and where none tells what
    it took.
    """
    measured = [each for row in rows for each in _measured(row)]
    if not measured:
        limit = "no row of `pagoda bench` tells a time above 0"
        raise InvalidOptionError("step_cost", [dict(row) for row in rows], limit)
    seconds = np.array([each.seconds for each in measured])
    work = np.array([each.work for each in measured]) / seconds[:, None]
    best: tuple[float, dict[str, float]] = (np.inf, {})
    for count in range(1, len(_NAMES) + 1):
        for chosen in combinations(range(len(_NAMES)), count):
            costs, *_ = np.linalg.lstsq(work[:, chosen], np.ones(len(measured)), rcond=None)
            if (costs < 0).any() or chosen[0] > 1:  # every step takes some time
                continue
            error = float(np.sum((work[:, chosen] @ costs - 1) ** 2))
            if error < best[0] - 1e-12:
                names = (_NAMES[each] for each in chosen)
                best = error, dict(zip(names, costs.tolist(), strict=True))
    return LinearCost(**{**dict.fromkeys(_NAMES, 0.0), **best[1]})


def _bench_rows(path: Path) -> list[Mapping[str, Any]]:
    """Lines that are rows of `pagoda bench`; none where the file is another."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []  # whoever reads it next says so
    rows: list[Mapping[str, Any]] = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the table
        if isinstance(row, dict) and "workload" in row:
            rows.append(row)
    return rows


def _measured(row: Mapping[str, Any]) -> Iterable[_Measured]:
    try:
        seed, num_blocks, block_size, budget, seats = (int(row[name]) for name in _NEEDED)
        took_s, first_s = float(row["best_seconds"]), float(row["time_to_first_token"])
    except (KeyError, TypeError, ValueError):
        limit = f"a row of `pagoda bench` must have {', '.join(_NEEDED)} and its times"
        raise InvalidOptionError("step_cost", dict(row), limit) from None
    cache = CacheManager(num_blocks, block_size)
    scheduler = Scheduler(
        cache,
        max_num_batched_tokens=budget,
        max_num_seqs=seats,
        max_model_len=num_blocks * block_size,
    )
    for number, item in enumerate(draw(row["workload"], seed)):
        sampling = SamplingParams(max_tokens=item.num_output_tokens, ignore_eos=True)
        scheduler.add(Request(str(number), item.prompt_token_ids, sampling, arrival_time=0.0))
    steps, num_first = _run(scheduler)
    if 0 < took_s < math.inf:
        yield _Measured(np.sum(steps, axis=0), took_s)
    if row["workload"] in _ALONE and 0 < first_s < math.inf:
        yield _Measured(np.sum(steps[:num_first], axis=0), first_s)


def _run(scheduler: Scheduler) -> tuple[list[NDArray[np.float64]], int]:
    """What each step does, and how many there are up to the first token."""
    steps: list[NDArray[np.float64]] = []
    num_first = 0
    while scheduler.has_unfinished:
        plan = scheduler.schedule()
        if not plan.sequences:
            limit = "too few blocks for the workload of its row of `pagoda bench`"
            raise InvalidOptionError("num_blocks", scheduler.cache.stats().num_blocks, limit)
        work = StepWork.of(plan)
        tokens, drawn = work.num_tokens, work.num_sampled
        done = [1.0, tokens, work.num_context_tokens, work.num_pairs, drawn]
        steps.append(np.array(done, np.float64))
        for one in plan.sequences:
            sequence = scheduler.update(one, 0 if one.samples else None)
            if sequence is None:
                continue
            num_first = num_first or len(steps)
            ending = judge(sequence)
            if ending is not None:
                scheduler.finish(sequence, ending)
    return steps, num_first
