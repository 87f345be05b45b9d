"""The items of an answer, as they are sent."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from pagoda.server.responses import TokenLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(BaseModel):
    """The one part of a message."""

    type: str = "output_text"
    text: str = ""
    annotations: list[object] = Field(default_factory=list)
    logprobs: list[TokenLogprob] = Field(default_factory=list)


class OutputMessage(BaseModel):
    """What the model says."""

    id: str
    type: str = "message"
    role: str = "assistant"
    status: ItemStatus = "in_progress"
    content: list[OutputText] = Field(default_factory=list)


class ReasoningText(BaseModel):
    """The one part of what was thought."""

    type: str = "reasoning_text"
    text: str = ""


class OutputReasoning(BaseModel):
    """What the model thinks before it answers, as it thinks it: nothing is summed up or hidden."""

    id: str
    type: str = "reasoning"
    status: ItemStatus = "in_progress"
    summary: list[object] = Field(default_factory=list)
    content: list[ReasoningText] = Field(default_factory=list)


class OutputCall(BaseModel):
    """A call of a function, which the client is to run."""

    id: str
    type: str = "function_call"
    status: ItemStatus = "in_progress"
    call_id: str
    name: str
    namespace: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Where the tool's name stands among the tools; without one at the top."""
    arguments: str = ""
    """JSON text, as the model wrote it."""


OutputItem = OutputMessage | OutputReasoning | OutputCall
