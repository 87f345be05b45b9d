"""What the server sends: OpenAI's response bodies, with vLLM's extra fields.

OpenAI writes most absent values as null and leaves a few out, which are marked `left_out`.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from pagoda.server.explanation import CacheExplanation
from pagoda.server.left_out import left_out

PromptLogprobs = list[dict[int, "PromptLogprob"] | None]


class PromptTokensDetails(BaseModel):
    """How many of the prompt's tokens had their K and V in the cache."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """How many of the answer's tokens are thought."""

    reasoning_tokens: int


class Usage(BaseModel):
    """Tokens in and out, summed over the prompts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = left_out()
    """Where thoughts are told apart."""
    cache_explanation: list[CacheExplanation] | None = left_out()
    """One for each prompt."""


class PromptLogprob(BaseModel):
    """One candidate for a prompt token, as vLLM tells it."""

    logprob: float
    rank: int | None
    decoded_token: str | None


class CompletionLogprobs(BaseModel):
    """Parallel lists, one entry per output token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """None for the first token of an echoed prompt, which nothing went before."""
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = left_out()
    prompt_logprobs: PromptLogprobs | None = left_out()
    token_ids: list[int] | None = left_out()
    prompt_token_ids: list[int] | None = left_out()


class CompletionResponse(BaseModel):
    """A whole completion, or one chunk of a streamed one."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = left_out()
    warnings: list[str] | None = left_out()


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """One entry per output token."""

    content: list[TokenLogprob]


class FunctionCall(BaseModel):
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


class ToolCallMessage(BaseModel):
    """A call of a tool in a whole message."""

    id: str
    type: str = "function"
    function: FunctionCall


class FunctionDelta(BaseModel):
    """What a chunk adds to a call: its name, at its beginning, and more of its arguments."""

    name: str | None = left_out()
    arguments: str


class ToolCallDelta(BaseModel):
    """A call in a chunk, where calls are numbered; who is called is told at its beginning."""

    index: int
    id: str | None = left_out()
    type: str | None = left_out()
    function: FunctionDelta


class _Thought(BaseModel):
    """What the model thought, under both names that vLLM has had for it."""

    reasoning_content: str | None = left_out()
    reasoning: str | None = left_out()


class ChatMessage(_Thought):
    role: str = "assistant"
    content: str | None
    tool_calls: list[ToolCallMessage] | None = left_out()


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = left_out()
    token_ids: list[int] | None = left_out()


class ChatCompletionResponse(BaseModel):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = left_out()
    prompt_token_ids: list[int] | None = left_out()
    warnings: list[str] | None = left_out()


class ChatDelta(_Thought):
    """What a chunk adds to the message."""

    role: str | None = left_out()
    content: str | None = left_out()
    tool_calls: list[ToolCallDelta] | None = left_out()


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = left_out()
    token_ids: list[int] | None = left_out()


class ChatCompletionChunk(BaseModel):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = left_out()
    prompt_logprobs: PromptLogprobs | None = left_out()
    prompt_token_ids: list[int] | None = left_out()
    warnings: list[str] | None = left_out()


class ModelCard(BaseModel):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "pagoda"
    root: str
    """The name of it that answers and metrics have."""
    max_model_len: int


class ModelList(BaseModel):
    object: str = "list"
    data: list[ModelCard]


class TokenizeResponse(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
    warnings: list[str] | None = left_out()


class DetokenizeResponse(BaseModel):
    prompt: str


class ErrorDetail(BaseModel):
    """OpenAI's error: what went wrong, of which kind, in which field."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    error: ErrorDetail


def json_of(body: BaseModel, *, exclude_none: bool = False) -> bytes:
    """As it is sent."""
    return body.model_dump_json(exclude_none=exclude_none).encode("utf-8")


def refusals(model: type[BaseModel], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """Responses of `model`, for the schema: referred to, and described where a route names it.

    FastAPI prepares a model anew for every status of every route that names it: two thirds of
    what making the application takes.
    """
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    content = {"application/json": {"schema": reference}}
    # Without a "default" FastAPI would promise answers of its own, of status 422.
    told: list[int | str] = [*statuses, "default"]
    return {status: {"content": content} for status in told}
