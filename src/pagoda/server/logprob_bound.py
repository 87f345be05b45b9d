"""How many log-probabilities one request may be told.

An answer repeats those of a prompt in each of its choices, so a short request can ask for more than
any client reads: 8,191 tokens, their 20 likeliest and 128 choices are 22 million.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pagoda.errors import InvalidRequestError
from pagoda.request import SamplingParams

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.server.generation import Echo

MAX_TOLD_LOGPROBS = 500_000
"""Of prompts, and as many of answers: some 30 MB of JSON."""
_NUM_ADDED = 2
"""Tokens that a tokenizer adds to a text."""

Prompt = str | list[int]


async def bounded(
    sampling: SamplingParams,
    prompts: Sequence[Prompt],
    engine: AsyncEngine,
    echo: Echo | None,
    tenant: str,
) -> SamplingParams:
    """`sampling`, an answer without `max_tokens` no longer than its log-probabilities may be.

    Raises `InvalidRequestError` where it asks for more than `MAX_TOLD_LOGPROBS`.
    """
    if of_prompts := _of_prompts(sampling, echo):
        field, of_each = next(iter(of_prompts)), sampling.n * sum(of_prompts.values())
        most_tokens = sum(_most_tokens(prompt, engine.max_model_len) for prompt in prompts)
        if most_tokens * of_each > MAX_TOLD_LOGPROBS:
            most_tokens = await _num_tokens(prompts, engine, tenant)
        _require(field, most_tokens * of_each, "the prompts' tokens, each with its candidates")
    if sampling.logprobs is None:
        return sampling
    of_each = len(prompts) * sampling.n * (1 + sampling.logprobs)
    most_tokens = engine.max_model_len
    if sampling.max_tokens is None and most_tokens * of_each > MAX_TOLD_LOGPROBS:
        return replace(sampling, max_tokens=max(MAX_TOLD_LOGPROBS // of_each, 1))
    most_tokens = min(sampling.max_tokens or 1, most_tokens)
    _require("logprobs", most_tokens * of_each, "max_tokens, each with its candidates")
    return sampling


def _of_prompts(sampling: SamplingParams, echo: Echo | None) -> dict[str, int]:
    """How many of each token of a prompt one choice tells, by the field that asks for them."""
    asked = {"prompt_logprobs": sampling.prompt_logprobs}
    if echo is not None:
        asked = {"logprobs": sampling.logprobs, "prompt_logprobs": echo.prompt_logprobs}
    return {field: 1 + num_top for field, num_top in asked.items() if num_top is not None}


def _require(field: str, num: int, of: str) -> None:
    if num > MAX_TOLD_LOGPROBS:
        limit = f"at most {MAX_TOLD_LOGPROBS:,} in all choices together: {of}"
        raise InvalidRequestError(field, f"{num:,} log-probabilities", limit)


def _most_tokens(prompt: Prompt, max_model_len: int) -> int:
    """No more than these, told without tokenising."""
    if not isinstance(prompt, str):
        return len(prompt)
    return min(len(prompt.encode()) + _NUM_ADDED, max_model_len)


async def _num_tokens(prompts: Sequence[Prompt], engine: AsyncEngine, tenant: str) -> int:
    encode = partial(engine.tokenizer.encode, tenant=tenant)
    ids = [await encode(each) if isinstance(each, str) else each for each in prompts]
    return sum(map(len, ids))
