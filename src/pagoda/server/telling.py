"""What an answer tells beside what was said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagoda.server.field_table import Ignored

if TYPE_CHECKING:
    from pagoda.engine.outputs import RequestOutput


@dataclass(frozen=True, slots=True)
class Telling:
    """As a body asks for it."""

    usage_at_end: bool = False
    """A stream's last chunk, without choices, tells the tokens in and out."""
    usage_in_chunks: bool = False
    """Every chunk tells those of its prompt so far."""
    token_ids: bool = False
    """The tokens of prompt and answer, beside the text."""
    tokens_as_ids: bool = False
    """Tokens with log-probabilities are told as `token_id:17`."""
    cache_explanation: bool = False
    """The usage of all prompts says why no more of each was in the cache."""
    thoughts: bool = True
    """What the model thought before it answered, where that is known."""
    ignored: Sequence[Ignored] = ()
    """What was asked for in vain."""


def cut_short(
    output: RequestOutput, field: str | None, max_tokens: int | None, max_model_len: int
) -> list[str]:
    """The warning that the prompt leaves less than `field` asks for; nothing where it does not."""
    room = max_model_len - output.num_prompt_tokens
    if field is None or max_tokens is None or max_tokens <= room:
        return []
    return [
        f"{field}={max_tokens} is taken as {room}: the prompt's {output.num_prompt_tokens} tokens "
        f"leave no more of the model's maximum context length of {max_model_len} tokens"
    ]
