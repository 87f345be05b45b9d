"""What a caller gets back; the names are vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagoda.cache.miss import Miss
from pagoda.scheduling import FinishReason


@dataclass(frozen=True, slots=True)
class Logprob:
    """How likely one token was, by the model's own logits before any penalty or temperature."""

    logprob: float
    """Natural logarithm of the probability."""
    rank: int
    """1 + how many tokens were strictly more likely."""
    decoded_token: str | None = None
    """The token's text."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice of a request, as far as it has come."""

    index: int
    """Which of the request's `n` choices."""
    text: str
    """Everything so far."""
    token_ids: Sequence[int]
    """Everything so far, a closing stop token included; a list once it is finished."""
    cumulative_logprob: float | None = None
    """Sum over `token_ids`; None unless log-probabilities were asked for."""
    logprobs: Sequence[dict[int, Logprob]] | None = None
    """One mapping per entry of `token_ids`: the chosen token first, then the most likely ones."""
    finish_reason: FinishReason | None = None
    """None while it runs."""
    stop_reason: int | str | None = None
    """The stop token or stop string that ended it; None for an end-of-sequence token."""
    delta: str = ""
    """The end of `text` that is new since the last output."""

    @property
    def finished(self) -> bool:
        """It has a finish reason."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request as far as it has come."""

    request_id: str
    """Made by the engine, or the caller's own."""
    prompt: str | None
    """None when the prompt was given as token ids."""
    prompt_token_ids: list[int]
    """The prompt as the model was given it."""
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    """One entry per prompt token, the first of them None; None unless asked for."""
    outputs: list[CompletionOutput]
    """The choices that this output is about."""
    finished: bool
    """Every choice has a finish reason."""
    num_cached_tokens: int = 0
    """Prompt tokens whose keys and values came from the cache."""
    cache_miss: Miss | None = None
    """Why no more of them did; None before the request's first step."""

    @property
    def num_prompt_tokens(self) -> int:
        """How many token ids the prompt has."""
        return len(self.prompt_token_ids)

    def after(self, unseen: RequestOutput) -> RequestOutput:
        """This output for someone who has not seen the one before it: `delta` covers both."""
        outputs = [
            replace(choice, delta=before.delta + choice.delta)
            for before, choice in zip(unseen.outputs, self.outputs, strict=True)
        ]
        return replace(self, outputs=outputs)
