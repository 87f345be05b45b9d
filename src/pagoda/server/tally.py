"""What has become of one HTTP request so far, for whoever watches from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.types import Scope

from pagoda.cache.miss import Cause
from pagoda.server.explanation import PromptLookup

if TYPE_CHECKING:
    from pagoda.engine.outputs import RequestOutput


@dataclass(slots=True)
class Tally:
    """Tokens and errors of one request, as far as they are known."""

    is_streamed: bool | None = None
    """None for a request that asks nothing of the engine."""
    prompts_alone: bool = False
    """The one token that is computed after each prompt is not told."""
    answer_id: str | None = None
    """The id of the answer, once one was begun."""
    request_id: str = ""
    """Names the request in the log, and to its client."""
    error: str | None = None
    """The code of the error that it is answered with, or its type where that has no code."""
    error_param: str | None = None
    """The field at fault, if the error names one; never its value."""
    ignored: tuple[str, ...] = ()
    """Names of fields that asked for something in vain."""
    _outputs: dict[int, RequestOutput] = field(default_factory=dict)

    def note(self, prompt_index: int, output: RequestOutput) -> None:
        """The prompt of this index has come so far."""
        self._outputs[prompt_index] = output

    @property
    def is_known(self) -> bool:
        """There has been an output."""
        return bool(self._outputs)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(output.num_prompt_tokens for output in self._outputs.values())

    @property
    def num_cached_tokens(self) -> int:
        return sum(output.num_cached_tokens for output in self._outputs.values())

    def lookups(self) -> Iterator[PromptLookup]:
        """What the prompts found in the cache, in their order."""
        for _, output in sorted(self._outputs.items()):
            if output.cache_miss is not None:
                yield PromptLookup.of(output.cache_miss, output.prompt_token_ids)

    def missed(self) -> Counter[Cause]:
        """Tokens of prompts that were not found in the cache, by cause."""
        total: Counter[Cause] = Counter()
        for output in self._outputs.values():
            if output.cache_miss is not None:
                total.update(output.cache_miss.num_tokens)
        return total

    @property
    def num_output_tokens(self) -> int:
        if self.prompts_alone:
            return 0
        return sum(
            len(choice.token_ids) for output in self._outputs.values() for choice in output.outputs
        )


def tally_of(scope: Scope) -> Tally:
    """The tally of a request; a new one where it has none yet."""
    tally: Tally = scope.setdefault("state", {}).setdefault("tally", Tally())
    return tally
