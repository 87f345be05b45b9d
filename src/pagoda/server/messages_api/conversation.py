"""A conversation as Anthropic's API has it, told as chat templates want it.

    system, user, user, assistant, user    what came, blocks in each
    system, user,       assistant, user    turns: what one role says at a stretch is one of them
    messages                               plain texts, calls, and a message for each result

Messages of role "system" between the others stay where they are, as what the user says: templates
take a system message at the beginning alone, and moved there a new one would change the prompt
from its beginning, so that nothing of it were found in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pagoda.errors import InvalidRequestError
from pagoda.models.chat_options import DEFAULT_CHAT_OPTIONS, ChatOptions
from pagoda.server.messages import thought_field
from pagoda.server.messages_api.blocks import (
    ContentBlock,
    InputMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    text_of,
)
from pagoda.server.messages_api.definitions import Definitions
from pagoda.server.tools import Tool

_PER_REQUEST = "x-anthropic-billing-header:"
"""Begins a text that an agent puts before its system prompt, with a number that is new each time:
it says nothing to a model, and nothing behind it could be found in the cache."""
_CONTINUED = ChatOptions(add_generation_prompt=False, continue_final_message=True)


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a prompt is made of, beside tools."""

    messages: list[dict[str, Any]]
    """As chat templates expect them."""
    options: ChatOptions
    """Whether the answer goes on with the last message."""

    @classmethod
    def of(
        cls,
        system: str | list[TextBlock] | None,
        messages: Sequence[InputMessage],
        tools: Sequence[Tool] = (),
    ) -> Conversation:
        """`tools` are those that results may refer to.

        Raises `InvalidRequestError` for messages that cannot follow one another.
        """
        said = _system_text(system)
        told: list[dict[str, Any]] = [{"role": "system", "content": said}] if said else []
        turns, definitions = _turns(messages), Definitions(tools)
        for turn in turns:
            told += turn.for_template(definitions)
        if not turns:
            raise InvalidRequestError("messages", [], "must hold at least one message")
        if not turns[-1].is_begun_answer:
            return cls(told, DEFAULT_CHAT_OPTIONS)
        if told[-1].get("tool_calls"):
            limit = "a tool_use in the last message needs a tool_result behind it"
            raise InvalidRequestError("messages", "tool_use", limit)
        return cls(told, _CONTINUED)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What the user or the assistant says until the other one does."""

    role: str
    blocks: list[ContentBlock]

    @property
    def is_begun_answer(self) -> bool:
        return self.role == "assistant"

    def for_template(self, definitions: Definitions) -> list[dict[str, Any]]:
        return self._assistant() if self.role == "assistant" else self._user(definitions)

    def _assistant(self) -> list[dict[str, Any]]:
        self._refuse(ToolResultBlock, "only a user's message has tool_result blocks")
        text = text_of([block for block in self.blocks if isinstance(block, TextBlock)])
        calls = [each.for_template() for each in self.blocks if isinstance(each, ToolUseBlock)]
        thoughts = [each.thinking for each in self.blocks if isinstance(each, ThinkingBlock)]
        thought = thought_field("\n".join(filter(None, thoughts)))
        message: dict[str, Any] = {"role": "assistant", "content": text, **thought}
        return [{**message, "tool_calls": calls} if calls else message]

    def _user(self, definitions: Definitions) -> list[dict[str, Any]]:
        self._refuse(ToolUseBlock, "only an assistant's message has tool_use blocks")
        messages: list[dict[str, Any]] = []
        for is_text, blocks in groupby(self.blocks, lambda each: isinstance(each, TextBlock)):
            if is_text:
                text = text_of([block for block in blocks if isinstance(block, TextBlock)])
                messages.append({"role": "user", "content": text})
            else:
                results = (block for block in blocks if isinstance(block, ToolResultBlock))
                messages += [result.for_template(definitions) for result in results]
        return messages or [{"role": "user", "content": ""}]

    def _refuse(self, kind: type[ToolResultBlock | ToolUseBlock], limit: str) -> None:
        found = next((block for block in self.blocks if isinstance(block, kind)), None)
        if found is not None:
            raise InvalidRequestError("messages", found.type, limit)


def _turns(messages: Sequence[InputMessage]) -> list[_Turn]:
    """An assistant's last turn that says nothing is none behind another: the answer begins there
    anyway."""
    turns = [
        _Turn(role, [block for message in group for block in message.blocks])
        for role, group in groupby(messages, _role_of)
    ]
    if len(turns) > 1 and turns[-1].is_begun_answer and not any(map(_says, turns[-1].blocks)):
        del turns[-1]
    return turns


def _role_of(message: InputMessage) -> str:
    return "assistant" if message.role == "assistant" else "user"


def _says(block: ContentBlock) -> bool:
    return (
        bool(block.text) if isinstance(block, TextBlock) else not isinstance(block, ThinkingBlock)
    )


def _system_text(system: str | list[TextBlock] | None) -> str:
    if not isinstance(system, list):
        return system or ""
    return text_of([block for block in system if not block.text.startswith(_PER_REQUEST)])
