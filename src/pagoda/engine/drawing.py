"""From the logits of a step to the tokens that are drawn and to prompts' log-probabilities.

plan        A: part of a prompt whose    B: a prompt that    C: decodes
            log-probabilities are asked  is not done
logits      rows 0, 1, 2                 no row              row 3
            └─ token_logprobs            └─ nothing          └─ drawn from
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagoda.engine.assembler import Assembler
from pagoda.engine.launched_step import LaunchedStep
from pagoda.engine.roster import Roster
from pagoda.engine.sampling.sampler import Sampler
from pagoda.scheduling import StepPlan


def begin_draws(
    plan: StepPlan, logits: torch.Tensor, roster: Roster, sampler: Sampler
) -> LaunchedStep:
    """Begin to draw a token for each sequence of `plan` that samples.

    `logits` [num_rows, vocab] float32 has the rows that the plan wants, in its order, and is not
    changed. Log-probabilities of prompts are noted in their assemblers.
    """
    sequence_ids, wanted, sampling_rows, positions = [], [], [], []
    first = 0
    for scheduled in plan.sequences:
        end = first + scheduled.num_logit_rows
        if scheduled.num_logit_rows > scheduled.samples:
            choice = roster.choices[scheduled.sequence_id]
            assembler = roster.assemblers[choice.sequence.request.request_id]
            _note_prompt_logprobs(assembler, scheduled.start, logits[first:end], sampler)
        if scheduled.samples:
            choice = roster.choices[scheduled.sequence_id]
            sequence_ids.append(scheduled.sequence_id)
            wanted.append(end - 1)
            sampling_rows.append(choice.sampling_row)
            positions.append(scheduled.stop - choice.sequence.num_prompt_tokens)
        first = end
    if not sequence_ids:
        return LaunchedStep(plan)
    draws = sampler.begin(_rows(logits, wanted), sampling_rows, positions)
    drawing = zip(sequence_ids, sampling_rows, strict=True)
    awaited = frozenset(sequence_id for sequence_id, row in drawing if row.awaits_token)
    return LaunchedStep(plan, tuple(sequence_ids), draws, awaited)


def _rows(logits: torch.Tensor, wanted: Sequence[int]) -> torch.Tensor:
    """Different rows of `logits` in their order: the very tensor where all of them are wanted."""
    if len(wanted) == len(logits):
        return logits
    # Stacked: with a list for an index, PyTorch waits for the device.
    return torch.stack([logits[row] for row in wanted])


def _note_prompt_logprobs(
    assembler: Assembler, start: int, logits: torch.Tensor, sampler: Sampler
) -> None:
    """Row i of `logits` tells how likely the prompt's token `start + i + 1` was."""
    prompt = assembler.request.prompt_token_ids
    targets = prompt[start + 1 : start + 1 + len(logits)]
    num_top = assembler.request.sampling.prompt_logprobs
    assert num_top is not None, "logits of a prompt that nobody asked for"
    if targets:
        logprobs = sampler.token_logprobs(logits[: len(targets)], targets, num_top)
        assembler.add_prompt_logprobs(start + 1, logprobs)
