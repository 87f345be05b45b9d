"""What `/v1/responses` sends: a response, and lists of what went into one."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from pagoda.server.left_out import left_out
from pagoda.server.responses import Usage
from pagoda.server.responses_api.output_items import OutputItem

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class InputTokensDetails(BaseModel):
    """How many of the tokens that went in had their K and V in the cache."""

    cached_tokens: int
    cache_write_tokens: int = 0
    """Nobody pays for writing to the cache."""


class OutputTokensDetails(BaseModel):
    """How many tokens are thought, where that is told apart."""

    reasoning_tokens: int = 0


class ResponseUsage(BaseModel):
    """Tokens in and out."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails = Field(default_factory=OutputTokensDetails)
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> ResponseUsage:
        thought, details = usage.completion_tokens_details, OutputTokensDetails()
        if thought is not None:
            details = OutputTokensDetails(reasoning_tokens=thought.reasoning_tokens)
        cached = InputTokensDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens)
        return cls(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=cached,
            output_tokens=usage.completion_tokens,
            output_tokens_details=details,
            total_tokens=usage.total_tokens,
        )


class ResponseFailure(BaseModel):
    """What went wrong; the codes are OpenAI's."""

    code: Literal["server_error", "invalid_prompt"]
    message: str


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ToldReasoning(BaseModel):
    """The effort that the chat template was told; nothing is summed up."""

    effort: str | None = None
    summary: None = None


class ResponseObject(BaseModel):
    """A response: what was asked, and what came of it so far."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus = "in_progress"
    background: bool = False
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem] = Field(default_factory=list)
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: ToldReasoning = Field(default_factory=ToldReasoning)
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None
    warnings: list[str] | None = left_out()
    """What was asked for in vain."""


class DeletedResponse(BaseModel):
    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(BaseModel):
    """A page of items."""

    object: str = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(BaseModel):
    """How long a prompt would be."""

    object: str = "response.input_tokens"
    input_tokens: int
