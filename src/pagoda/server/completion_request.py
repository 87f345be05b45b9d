"""The body of `/v1/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pagoda.errors import InvalidRequestError
from pagoda.request import SamplingParams
from pagoda.server.body import Many, Text
from pagoda.server.numbers import LaxInt
from pagoda.server.protocol import GenerationRequest

MAX_PROMPTS = 128
MAX_CHOICES = 1024
"""In one request, of all prompts together."""


class CompletionRequest(GenerationRequest):
    """The body of `/v1/completions`."""

    prompt: Text | Many[Text] | Many[int] | Many[Many[int]]
    logprobs: LaxInt | None = None
    echo: bool | None = None
    """The answer begins with the prompt, and so do its log-probabilities."""
    lengths_beside: ClassVar[Mapping[str, str]] = {
        **GenerationRequest.lengths_beside,
        "max_tokens": "0 with echo",
    }

    def check(self, served_models: Sequence[str]) -> None:
        super().check(served_models)
        count = len(self.prompts())
        if count > MAX_PROMPTS:
            raise InvalidRequestError("prompt", f"{count} prompts", f"at most {MAX_PROMPTS}")
        if count * (self.n or 1) > MAX_CHOICES:
            limit = f"at most {MAX_CHOICES} choices for all {count} prompts together"
            raise InvalidRequestError("n", self.n, limit)

    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself, as text or as token ids.

        Raises `InvalidRequestError` when there is none.
        """
        if self.prompt == []:
            raise InvalidRequestError("prompt", [], "must hold at least one prompt or token id")
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[item for item in self.prompt if isinstance(item, int)]]
        return [item for item in self.prompt if not isinstance(item, int)]

    @property
    def wants_prompt_alone(self) -> bool:
        """An echo that nothing follows, as is asked for to score a text."""
        return bool(self.echo) and self.max_tokens == 0

    def sampling(self, max_model_len: int) -> SamplingParams:
        """Raises `InvalidRequestError` for a value out of range."""
        chosen: dict[str, Any] = {"logprobs": self.logprobs}
        if self.wants_prompt_alone:
            chosen |= {"max_tokens": 1, "prompt_alone": True}  # computed, but not told
        sampling = self.sampling_with(max_model_len, **chosen)
        if not self.echo or self.logprobs is None:
            return sampling
        # Those of an echo and those that are told beside it are cut from the same candidates.
        most = max(self.logprobs, self.prompt_logprobs or 0)
        return replace(sampling, prompt_logprobs=most)
