"""All samplers, each with the device on which it wants its logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest
import torch

from pagoda.engine.outputs import Logprob
from pagoda.engine.sampling import cpu_sampler, gpu_logprobs, gpu_sampler, logprobs
from pagoda.engine.sampling.cpu_sampler import CPUSampler
from pagoda.engine.sampling.gpu_sampler import GPUSampler, Way
from pagoda.engine.sampling.row import SamplingRow
from pagoda.engine.sampling.sampler import SampledToken, Sampler
from pagoda.request import SamplingParams
from triton_device import DEVICE


def sample(
    sampler: Sampler, logits: torch.Tensor, rows: Sequence[SamplingRow]
) -> list[SampledToken | None]:
    """What comes next of rows all of whose tokens are known; one at least."""
    return sampler.begin(logits, rows, [len(row.output_token_ids) for row in rows]).wait()


@dataclass(frozen=True)
class Subject:
    """A sampler to be tested, with logits wherever they are made."""

    sampler: Sampler
    device: torch.device
    module: ModuleType
    shrink_tiles: Callable[[pytest.MonkeyPatch, int], None]
    """Have it look at so many logits together."""

    def sample(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        tokens = sample(self.sampler, logits.to(self.device), rows)
        assert None not in tokens, "logits are not finite"
        return [token for token in tokens if token is not None]

    def choose(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[int]:
        return [token.token_id for token in self.sample(logits, rows)]

    def token_logprobs(
        self, logits: torch.Tensor, target_ids: Sequence[int], num_top: int
    ) -> list[dict[int, Logprob]]:
        return self.sampler.token_logprobs(logits.to(self.device), target_ids, num_top)

    def draw_with(
        self, patch: pytest.MonkeyPatch, uniforms: Callable[[int], np.ndarray | float]
    ) -> None:
        """Have it draw with these random numbers, made for so many rows."""
        made = lambda seeds, positions: np.broadcast_to(uniforms(len(seeds)), len(seeds))  # noqa: E731
        patch.setattr(self.module, "uniforms", made)


def shrink_tiles_in_main_memory(patch: pytest.MonkeyPatch, num_elements: int) -> None:
    patch.setattr(cpu_sampler, "_TILE_ELEMENTS", num_elements)
    patch.setattr(logprobs, "_TILE_ELEMENTS", num_elements)


def shrink_tiles_on_device(patch: pytest.MonkeyPatch, num_elements: int) -> None:
    patch.setattr(gpu_sampler, "_TILE_ELEMENTS", dict.fromkeys(Way, num_elements))
    patch.setattr(gpu_logprobs, "_TILE_ELEMENTS", num_elements)


SUBJECTS = {
    "main memory": Subject(
        CPUSampler(), torch.device("cpu"), cpu_sampler, shrink_tiles_in_main_memory
    ),
    "device": Subject(GPUSampler(), DEVICE, gpu_sampler, shrink_tiles_on_device),
}


def row_of(
    params: SamplingParams,
    seed: int = 0,
    prompt: Sequence[int] = (0,),
    output: Sequence[int] = (),
    stops: frozenset[int] = frozenset(),
) -> SamplingRow:
    return SamplingRow(params, seed, prompt, output, stops)


def logits_of(num_rows: int, vocab_size: int, seed: int = 0, step: float = 0.0) -> torch.Tensor:
    """Random logits; with a `step` they are rounded to its multiples, so that many are equal."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * 2
    return (logits / step).round() * step if step else logits


PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature 1": SamplingParams(),
    "low temperature": SamplingParams(temperature=0.3),
    "high temperature": SamplingParams(temperature=5.0),
    "top_k 1": SamplingParams(top_k=1),
    "top_k -1": SamplingParams(top_k=-1),
    "top_k 20": SamplingParams(top_k=20, temperature=0.8),
    "top_k 128": SamplingParams(top_k=128, temperature=3.0),
    "top_k 129": SamplingParams(top_k=129, temperature=3.0),
    "top_k beyond": SamplingParams(top_k=10**6, temperature=3.0),
    "min_p high": SamplingParams(min_p=0.2371),
    "min_p low": SamplingParams(min_p=1.37e-4, temperature=3.0),
    "min_p 1": SamplingParams(min_p=1.0),
    "min_p and top_k": SamplingParams(min_p=0.0123, top_k=30),
    "bias": SamplingParams(logit_bias={0: 2.5, 1: -100.0}),
    "bias, greedy": SamplingParams(temperature=0.0, logit_bias={0: 100.0}),
    "min_tokens": SamplingParams(min_tokens=8),
    "min_tokens, greedy": SamplingParams(temperature=0.0, min_tokens=8),
    "min_tokens reached": SamplingParams(min_tokens=5),
    "repetition": SamplingParams(repetition_penalty=1.7),
    "repetition, greedy": SamplingParams(temperature=0.0, repetition_penalty=0.6),
    "presence": SamplingParams(presence_penalty=1.2),
    "frequency": SamplingParams(frequency_penalty=-0.7),
    "all penalties": SamplingParams(
        presence_penalty=0.5,
        frequency_penalty=0.4,
        repetition_penalty=1.2,
        logit_bias={0: -3.0},
        min_tokens=9,
        temperature=0.9,
        top_k=15,
    ),
}
