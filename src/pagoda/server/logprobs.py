"""Log-probabilities in the shapes of OpenAI's two APIs, and prompt log-probabilities in vLLM's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pagoda.server.responses import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)

if TYPE_CHECKING:
    from pagoda.engine.outputs import Logprob

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot write; the value is OpenAI's."""


def completion_logprobs(
    token_ids: Sequence[int],
    logprobs: Sequence[Mapping[int, Logprob]],
    first_offset: int,
) -> CompletionLogprobs:
    """`token_ids` and their candidates as parallel lists; offsets are in characters."""
    shaped = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    offset = first_offset
    for token_id, candidates in zip(token_ids, logprobs, strict=True):
        chosen = candidates[token_id]
        text = _text(chosen)
        shaped.tokens.append(text)
        shaped.token_logprobs.append(_finite(chosen.logprob))
        shaped.top_logprobs.append({_text(c): _finite(c.logprob) for c in candidates.values()})
        shaped.text_offset.append(offset)
        offset += len(text)
    return shaped


def echoed_logprobs(
    first_text: str,
    token_ids: Sequence[int],
    candidates: Sequence[Mapping[int, Logprob] | None],
) -> CompletionLogprobs:
    """The tokens of a prompt in the same shape; of the first only its text is known."""
    rest = completion_logprobs(
        token_ids[1:], [each or {} for each in candidates[1:]], len(first_text)
    )
    return CompletionLogprobs(
        tokens=[first_text, *rest.tokens],
        token_logprobs=[None, *rest.token_logprobs],
        top_logprobs=[None, *rest.top_logprobs],
        text_offset=[0, *rest.text_offset],
    )


def joined(
    first: CompletionLogprobs | None, second: CompletionLogprobs | None
) -> CompletionLogprobs | None:
    """One after the other; what is None is nothing."""
    if first is None or second is None:
        return second if first is None else first
    return CompletionLogprobs(
        tokens=first.tokens + second.tokens,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        top_logprobs=first.top_logprobs + second.top_logprobs,
        text_offset=first.text_offset + second.text_offset,
    )


def chat_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[Mapping[int, Logprob]], num_top: int
) -> ChatLogprobs:
    """Each token with its `num_top` most likely candidates, the likeliest first."""
    content = []
    for token_id, candidates in zip(token_ids, logprobs, strict=True):
        likeliest = sorted(candidates.values(), key=lambda candidate: -candidate.logprob)
        top = [_top_logprob(candidate) for candidate in likeliest[:num_top]]
        chosen = _top_logprob(candidates[token_id])
        content.append(TokenLogprob(**chosen.model_dump(), top_logprobs=top))
    return ChatLogprobs(content=content)


def prompt_logprobs(
    logprobs: Sequence[Mapping[int, Logprob] | None] | None,
) -> PromptLogprobs | None:
    """One entry per prompt token, null for the first, by token id."""
    if logprobs is None:
        return None
    return [_prompt_candidates(candidates) for candidates in logprobs]


def _prompt_candidates(
    candidates: Mapping[int, Logprob] | None,
) -> dict[int, PromptLogprob] | None:
    if candidates is None:
        return None
    return {
        token_id: PromptLogprob(
            logprob=_finite(candidate.logprob),
            rank=candidate.rank,
            decoded_token=candidate.decoded_token,
        )
        for token_id, candidate in candidates.items()
    }


def _top_logprob(candidate: Logprob) -> TopLogprob:
    text = _text(candidate)
    return TopLogprob(
        token=text, logprob=_finite(candidate.logprob), bytes=list(text.encode("utf-8"))
    )


def _text(candidate: Logprob) -> str:
    return candidate.decoded_token or ""


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
