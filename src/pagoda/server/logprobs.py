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
    offsets: Sequence[int],
    *,
    as_ids: bool = False,
) -> CompletionLogprobs:
    """`token_ids`, their candidates and where they begin in the text, as parallel lists.

    With `as_ids` tokens are told by their ids.
    """
    shaped = CompletionLogprobs(
        tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[*offsets]
    )
    for token_id, candidates in zip(token_ids, logprobs, strict=True):
        chosen = candidates[token_id]
        shaped.tokens.append(_told(token_id, chosen, as_ids))
        shaped.token_logprobs.append(_finite(chosen.logprob))
        shaped.top_logprobs.append(
            {_told(each, c, as_ids): _finite(c.logprob) for each, c in candidates.items()}
        )
    return shaped


def echoed_logprobs(
    first_text: str,
    token_ids: Sequence[int],
    candidates: Sequence[Mapping[int, Logprob] | None],
    offsets: Sequence[int],
    *,
    as_ids: bool = False,
) -> CompletionLogprobs:
    """The tokens of a prompt in the same shape; of the first only its text is known."""
    rest = completion_logprobs(
        token_ids[1:], [each or {} for each in candidates[1:]], offsets[1:], as_ids=as_ids
    )
    first = _name(token_ids[0]) if as_ids else first_text
    return CompletionLogprobs(
        tokens=[first, *rest.tokens],
        token_logprobs=[None, *rest.token_logprobs],
        top_logprobs=[None, *rest.top_logprobs],
        text_offset=[offsets[0], *rest.text_offset],
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
    token_ids: Sequence[int],
    logprobs: Sequence[Mapping[int, Logprob]],
    num_top: int,
    *,
    as_ids: bool = False,
) -> ChatLogprobs:
    """Each token with its `num_top` most likely candidates, the likeliest first.

    With `as_ids` tokens are told by their ids.
    """
    content = []
    for token_id, candidates in zip(token_ids, logprobs, strict=True):
        likeliest = sorted(candidates.items(), key=lambda each: -each[1].logprob)
        top = [_top_logprob(*each, as_ids) for each in likeliest[:num_top]]
        chosen = _top_logprob(token_id, candidates[token_id], as_ids)
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


def _top_logprob(token_id: int, candidate: Logprob, as_ids: bool) -> TopLogprob:
    return TopLogprob(
        token=_told(token_id, candidate, as_ids),
        logprob=_finite(candidate.logprob),
        bytes=list(_text(candidate).encode("utf-8")),
    )


def _told(token_id: int, candidate: Logprob, as_ids: bool) -> str:
    return _name(token_id) if as_ids else _text(candidate)


def _name(token_id: int) -> str:
    return f"token_id:{token_id}"


def _text(candidate: Logprob) -> str:
    return candidate.decoded_token or ""


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
