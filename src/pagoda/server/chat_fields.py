"""The fields of a body that a conversation has, to be answered or only to be tokenised."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict

from pagoda.models.chat_options import MAX_TEMPLATE_KWARGS, ChatOptions, TemplateValue
from pagoda.server.body import Many, ManyNamed, Text
from pagoda.server.call_arguments import CallArguments
from pagoda.server.field_table import Ignored
from pagoda.server.list_bounds import FewParts, at_most
from pagoda.server.messages import Message
from pagoda.server.tool_choice import MAX_TOOLS
from pagoda.server.tools import Tool
from pagoda.truncation import Truncation

_OWN = ("messages", "tools", "add_generation_prompt")
"""What a template is given by these fields alone."""


_TemplateKwargs = Annotated[
    ManyNamed[Text, Text | int | float | bool | None], at_most(MAX_TEMPLATE_KWARGS)
]


def effort_kwargs(effort: str | None) -> dict[str, TemplateValue]:
    """What an effort asks of chat templates, under the names that they have for it."""
    if effort is None:
        return {}
    off = {"enable_thinking": False, "thinking": False} if effort == "none" else {}
    return {"reasoning_effort": effort, **off}


class ChatFields(BaseModel):
    """A conversation, its tools, and how they become a prompt."""

    model_config = ConfigDict(strict=True)

    messages: FewParts[Message] | None = None
    tools: Annotated[Many[Tool], at_most(MAX_TOOLS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: _TemplateKwargs | None = None
    reasoning_effort: Text | None = None
    """OpenAI's; some chat templates read it."""

    def template_messages(self, max_model_len: int) -> list[dict[str, Any]]:
        """Raises `InvalidRequestError` for what cannot be told to a model of that length."""
        arguments = CallArguments(max_model_len)
        return [message.for_template(arguments) for message in self.messages or []]

    def template_kwargs(self) -> dict[str, TemplateValue]:
        """What is meant for the template, under the names that it may read."""
        return {**effort_kwargs(self.reasoning_effort), **(self.chat_template_kwargs or {})}

    def chat_options(self, truncation: Truncation | None = None) -> ChatOptions:
        """Raises `InvalidRequestError` for options that contradict each other."""
        goes_on = bool(self.continue_final_message)
        begins = not goes_on if self.add_generation_prompt is None else self.add_generation_prompt
        return ChatOptions(
            add_generation_prompt=begins,
            continue_final_message=goes_on,
            add_special_tokens=bool(self.add_special_tokens),
            template_kwargs=self.template_kwargs(),
            truncation=truncation,
        )

    def unread(self, template_names: frozenset[str]) -> list[Ignored]:
        """What is meant for a template that reads `template_names` and not this."""
        others = f", only {', '.join(sorted(template_names))}" if template_names else ""
        reason = f"the model's chat template does not read it{others}"
        own = "it is a field of the request itself"
        found = [
            Ignored("chat_template_kwargs", own if name in _OWN else reason, inner=name)
            for name in self.chat_template_kwargs or {}
            if name not in template_names
        ]
        effort = effort_kwargs(self.reasoning_effort)
        if effort and not effort.keys() & template_names:
            found.append(Ignored("reasoning_effort", reason))
        return found
