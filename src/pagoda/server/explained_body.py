"""The body of `/cache/explain`: that of any request that has a prompt, told by its shape."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, PlainValidator, RootModel

from pagoda.server.chat_request import ChatCompletionRequest
from pagoda.server.completion_request import CompletionRequest
from pagoda.server.messages_api.body import MessagesBody
from pagoda.server.responses_api.body import ResponsesRequest

AnyBody = CompletionRequest | ChatCompletionRequest | MessagesBody | ResponsesRequest

_OF_RESPONSES = ("input", "previous_response_id")
_OF_MESSAGES = ("system", "stop_sequences", "thinking", "output_config", "output_format")
_CHOICES_OF_MESSAGES = ("auto", "any", "tool", "none")
_BLOCKS_OF_MESSAGES = ("tool_use", "tool_result", "thinking", "redacted_thinking")


def _read(given: Any) -> BaseModel:
    return _kind_of(given).model_validate(given)


class ExplainedBody(RootModel[Annotated[AnyBody, PlainValidator(_read, AnyBody)]]):
    """A completion's, a chat's, a message's or a response's body."""


def _kind_of(given: Any) -> type[BaseModel]:
    """What is no object is refused as a completion's body is."""
    if not isinstance(given, dict):
        return CompletionRequest
    if any(given.get(name) is not None for name in _OF_RESPONSES):
        return ResponsesRequest
    if given.get("messages") is None:
        return CompletionRequest
    return MessagesBody if _is_of_messages(given) else ChatCompletionRequest


def _is_of_messages(given: dict[str, Any]) -> bool:
    """A body with `messages` says something that only Anthropic's API has."""
    choice = given.get("tool_choice")
    return (
        any(given.get(name) is not None for name in _OF_MESSAGES)
        or given.get("max_tokens") == 0
        or (isinstance(choice, dict) and choice.get("type") in _CHOICES_OF_MESSAGES)
        or any("input_schema" in tool for tool in _objects(given.get("tools")))
        or any(
            block.get("type") in _BLOCKS_OF_MESSAGES
            for message in _objects(given["messages"])
            for block in _objects(message.get("content"))
        )
    )


def _objects(value: Any) -> list[dict[str, Any]]:
    """Those of a list; nothing where there is none."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
