"""Which rows of a step's logits are drawn from, and which tell how likely a prompt was."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from pagoda.cache.window import FULL_ATTENTION
from pagoda.engine.drawing import begin_draws
from pagoda.engine.roster import Roster
from pagoda.request import Request, SamplingParams
from pagoda.scheduling import ScheduledSequence, StepPlan

VOCAB_SIZE = 3

WINDOWS = (FULL_ATTENTION,)


class RecordingSampler:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.begun: list[tuple[list[float], list[str], list[int]]] = []
        self.told: list[tuple[list[float], list[int], int]] = []
        self.logits: torch.Tensor | None = None

    def begin(self, logits: torch.Tensor, rows: Sequence[Any], positions: Sequence[int]) -> str:
        self.logits = logits
        self.begun.append((logits[:, 0].tolist(), [row.name for row in rows], list(positions)))
        return "draws"

    def token_logprobs(
        self, logits: torch.Tensor, target_ids: Sequence[int], num_top: int
    ) -> list[str]:
        self.told.append((logits[:, 0].tolist(), list(target_ids), num_top))
        return [f"token {target_id}" for target_id in target_ids]


class NotingAssembler:
    """Keeps the log-probabilities of a prompt."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.noted: list[tuple[int, list[str]]] = []

    def add_prompt_logprobs(self, start: int, logprobs: list[str]) -> None:
        self.noted.append((start, logprobs))


def roster_of(prompts: dict[int, tuple[int, ...]], changing: Sequence[int] = ()) -> Roster:
    """Sequence `i` is the only choice of request `str(i)`."""
    roster = Roster()
    for sequence_id, prompt in prompts.items():
        request = Request(str(sequence_id), prompt, SamplingParams(prompt_logprobs=2))
        row = SimpleNamespace(name=str(sequence_id), awaits_token=sequence_id in changing)
        sequence = SimpleNamespace(request=request, num_prompt_tokens=len(prompt))
        roster.choices[sequence_id] = SimpleNamespace(sequence=sequence, sampling_row=row)  # type: ignore[assignment]
        roster.assemblers[str(sequence_id)] = NotingAssembler(request)  # type: ignore[assignment]
    return roster


def plan_of(*scheduled: tuple[int, int, int, int, bool]) -> StepPlan:
    """(sequence id, start, number of tokens, number of rows, samples) each."""
    table = np.zeros(1, np.int32)
    return StepPlan(
        tuple(
            ScheduledSequence(
                one, 0, start, start + count, (0,) * count, table, WINDOWS, num_rows, samples
            )
            for one, start, count, num_rows, samples in scheduled
        ),
        (),
        16,
    )


def logits_of(num_rows: int) -> torch.Tensor:
    """Row i is full of i."""
    return torch.arange(num_rows).float()[:, None].expand(num_rows, VOCAB_SIZE)


def test_each_row_goes_where_the_plan_says() -> None:
    roster = roster_of({1: (5, 6, 7, 8), 2: (9,) * 40, 3: (1, 2)}, changing=[3])
    plan = plan_of((1, 1, 2, 2, False), (2, 0, 16, 0, False), (3, 6, 1, 1, True))
    sampler = RecordingSampler()
    launched = begin_draws(plan, logits_of(3), roster, sampler)  # type: ignore[arg-type]
    assert sampler.told == [([0.0, 1.0], [7, 8], 2)]
    assert roster.assemblers["1"].noted == [(2, ["token 7", "token 8"])]  # type: ignore[attr-defined]
    assert sampler.begun == [([2.0], ["3"], [5])]
    assert (launched.plan, launched.drawing, launched.draws) == (plan, (3,), "draws")
    assert launched.awaited == {3}


def test_a_prompt_that_ends_is_told_of_and_drawn_from_its_last_row() -> None:
    roster = roster_of({1: (5, 6, 7), 2: (4,)})
    plan = plan_of((1, 0, 3, 3, True), (2, 1, 1, 1, True))
    sampler = RecordingSampler()
    launched = begin_draws(plan, logits_of(4), roster, sampler)  # type: ignore[arg-type]
    assert sampler.told == [([0.0, 1.0], [6, 7], 2)], "nothing follows the last token"
    assert sampler.begun == [([2.0, 3.0], ["1", "2"], [0, 1])]
    assert launched.drawing == (1, 2)
    assert launched.awaited == frozenset()


def test_logits_that_are_all_drawn_from_are_not_copied() -> None:
    roster = roster_of({1: (5,), 2: (4,)})
    logits = logits_of(2)
    sampler = RecordingSampler()
    begin_draws(plan_of((1, 1, 1, 1, True), (2, 1, 1, 1, True)), logits, roster, sampler)  # type: ignore[arg-type]
    assert sampler.logits is logits


def test_a_step_that_draws_nothing_asks_nothing_of_the_sampler() -> None:
    sampler = RecordingSampler()
    plan = plan_of((1, 0, 4, 0, False))
    launched = begin_draws(plan, logits_of(0), roster_of({1: (5,) * 9}), sampler)  # type: ignore[arg-type]
    assert (launched.drawing, launched.draws, sampler.begun) == ((), None, [])
