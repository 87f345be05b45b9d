"""The message that answers, and its parts."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel
from pydantic_core import from_json

from pagoda.engine.outputs import CompletionOutput, RequestOutput
from pagoda.request import SamplingParams
from pagoda.server.left_out import left_out
from pagoda.server.reading import Reading, Said, Thought, joined
from pagoda.server.tool_calls import new_call_id

StopReason = Literal[
    "end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"
]


class TextContent(BaseModel):
    type: Literal["text"] = "text"
    text: str


class ThinkingContent(BaseModel):
    """What the model thought. Nothing of it is secret, so nothing is signed."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str = ""


class ToolUseContent(BaseModel):
    """A call of a tool that the client is to run."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


Content = TextContent | ThinkingContent | ToolUseContent


class MessageUsage(BaseModel):
    """Tokens in, of which there are three kinds, and out."""

    input_tokens: int
    """Computed for this answer."""
    cache_creation_input_tokens: int = 0
    """None: what the cache keeps of a prompt is no more work than computing it."""
    cache_read_input_tokens: int
    """Found in the cache."""
    output_tokens: int

    @classmethod
    def of(cls, output: RequestOutput, *, prompt_alone: bool) -> MessageUsage:
        num_output_tokens = sum(len(choice.token_ids) for choice in output.outputs)
        return cls(
            input_tokens=output.num_prompt_tokens - output.num_cached_tokens,
            cache_read_input_tokens=output.num_cached_tokens,
            output_tokens=0 if prompt_alone else num_output_tokens,
        )


class Ending(BaseModel):
    """Why a message ends, once it does."""

    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    """Which of `stop_sequences` came up."""

    @classmethod
    def of(cls, choice: CompletionOutput, sampling: SamplingParams, *, has_calls: bool) -> Ending:
        if choice.finish_reason == "length":
            is_cut = len(choice.token_ids) == sampling.max_tokens
            return cls(stop_reason="max_tokens" if is_cut else "model_context_window_exceeded")
        if isinstance(choice.stop_reason, str):
            return cls(stop_reason="stop_sequence", stop_sequence=choice.stop_reason)
        return cls(stop_reason="tool_use" if has_calls else "end_turn")


class Message(Ending):
    """The answer of `/v1/messages`; in a stream's first event one that says nothing yet."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Content]
    usage: MessageUsage
    warnings: list[str] | None = left_out()
    """Pagoda's own: what was asked for in vain."""


class TokensCount(BaseModel):
    """The answer of `/v1/messages/count_tokens`."""

    input_tokens: int


def content_of(reading: Reading) -> list[Content]:
    """The blocks of a whole answer, in the order in which they were said."""
    return [_block(said) for said in joined(reading.pieces)]


def _block(said: Said) -> Content:
    if isinstance(said, str):
        return TextContent(text=said)
    if isinstance(said, Thought):
        return ThinkingContent(thinking=said.text)
    return ToolUseContent(id=new_call_id(), name=said.name, input=_input(said.arguments))


def _input(arguments: str) -> dict[str, Any]:
    """Of arguments that were cut off, what is there, as Anthropic's client reads a stream."""
    try:
        value = from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
