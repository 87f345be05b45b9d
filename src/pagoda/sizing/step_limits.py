"""The largest step that an engine runs where options leave it open."""

from __future__ import annotations

from typing import NamedTuple

from pagoda.sizing.capacity import GIB

MAX_PROMPT_LOGIT_ROWS = 256
"""Rows of logits that prompts' log-probabilities ask of one step: 150 MB where a vocabulary has
150,000 tokens; those of a whole step would be gigabytes."""

_LARGE_DEVICE = 70 * GIB


class StepLimits(NamedTuple):
    """What one step may take."""

    max_num_batched_tokens: int
    """Tokens that go through the model."""
    max_num_seqs: int
    """Sequences that run at once."""

    def or_given(self, tokens: int | None, sequences: int | None) -> StepLimits:
        """These limits, but for those that an option gives. Each sequence of a step has a token of
        it at least, so there are no more sequences than tokens."""
        most = tokens or self.max_num_batched_tokens
        return StepLimits(most, min(sequences or self.max_num_seqs, most))


CPU_LIMITS = StepLimits(512, 128)
"""Small steps: a CPU gains little from more tokens, and streams wait for each."""


def gpu_limits(memory_bytes: int, name: str) -> StepLimits:
    """The limits of a server on a GPU of that memory and name, vLLM's or Pagoda's.

    vLLM 0.32: 8192 and 1024 on devices of 70 GiB or more but the A100, else 2048 and 256.
    """
    if memory_bytes >= _LARGE_DEVICE and "a100" not in name.casefold():
        return StepLimits(8192, 1024)
    return StepLimits(2048, 256)
