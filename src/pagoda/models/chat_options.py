"""How a conversation becomes a prompt, beside its messages and tools."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Immutable. Raises `InvalidRequestError` for options that contradict each other."""

    add_generation_prompt: bool = True
    """The prompt ends where the assistant's answer begins."""
    continue_final_message: bool = False
    """The prompt ends within the last message, which the answer goes on with."""

    def __post_init__(self) -> None:
        if self.continue_final_message and self.add_generation_prompt:
            limit = "cannot be combined with add_generation_prompt"
            raise InvalidRequestError("continue_final_message", True, limit)


DEFAULT_CHAT_OPTIONS = ChatOptions()
