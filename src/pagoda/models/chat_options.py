"""How a conversation becomes a prompt, beside its messages and tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pagoda.errors import InvalidRequestError
from pagoda.truncation import Truncation

MAX_TEMPLATE_KWARGS = 32
MAX_NAME_CHARACTERS = 64
MAX_KWARG_CHARACTERS = 1024
_KWARGS = "chat_template_kwargs"

TemplateValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Immutable. Raises `InvalidRequestError` for options that contradict each other."""

    add_generation_prompt: bool = True
    """The prompt ends where the assistant's answer begins."""
    continue_final_message: bool = False
    """The prompt ends within the last message, which the answer goes on with."""
    add_special_tokens: bool = False
    """The tokenizer adds its own around what the template has written."""
    template_kwargs: Mapping[str, TemplateValue] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """Given to the template under their names, where it reads them."""
    truncation: Truncation | None = None
    """How a prompt that may be too long is cut; None: it is refused."""

    def __post_init__(self) -> None:
        if self.continue_final_message and self.add_generation_prompt:
            limit = "cannot be combined with add_generation_prompt"
            raise InvalidRequestError("continue_final_message", True, limit)
        if len(self.template_kwargs) > MAX_TEMPLATE_KWARGS:
            count = f"{len(self.template_kwargs)} entries"
            raise InvalidRequestError(_KWARGS, count, f"at most {MAX_TEMPLATE_KWARGS}")
        for name, value in self.template_kwargs.items():
            if len(name) > MAX_NAME_CHARACTERS:
                limit = f"names must have at most {MAX_NAME_CHARACTERS} characters"
                raise InvalidRequestError(_KWARGS, f"one of {len(name)} characters", limit)
            if not isinstance(value, TemplateValue):
                limit = "each must be a string, a number, true, false or null"
                raise InvalidRequestError(_KWARGS, {name: value}, limit)
            if isinstance(value, str) and len(value) > MAX_KWARG_CHARACTERS:
                limit = f"each must have at most {MAX_KWARG_CHARACTERS} characters"
                raise InvalidRequestError(_KWARGS, f"{name} of {len(value)} characters", limit)


DEFAULT_CHAT_OPTIONS = ChatOptions()
