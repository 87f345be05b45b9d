"""What the bodies of requests, and the objects in them, have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WrapValidator, model_validator

from pagoda.errors import InvalidRequestError


def _no_lone_surrogate(text: str) -> str:
    # JSON can write half of a surrogate pair, which no encoding of text can.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair") from None
    return text


Item = TypeVar("Item")
Many = Annotated[list[Item], Field(fail_fast=True)]
"""A list of which the first wrong item is told, not all of them."""


def _entry_by_entry(given: object, check: Callable[[object], dict[str, Any]]) -> dict[str, Any]:
    if not isinstance(given, dict):
        return check(given)
    checked: dict[str, Any] = {}
    for entry in given.items():
        checked |= check(dict([entry]))
    return checked


ManyNamed = Annotated[dict[str, Item], WrapValidator(_entry_by_entry)]
"""A mapping of which the first wrong entry is told, not all of them."""

Text = Annotated[str, AfterValidator(_no_lone_surrogate)]

# Fields that change the answer and are not covered: refused unless they hold one of these values,
# which ask for nothing. Every other unknown field is ignored, as OpenAI's clients expect.
_REFUSED_FIELDS: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "detokenize": (True,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_whitespace_pattern": (),
    "length_penalty": (1.0,),
    "logits_processors": ([],),
    "logprob_token_ids": ([],),
    "modalities": (["text"],),
    "prompt_embeds": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "structural_tag": (),
    "suffix": ("",),
    "tool_calls": ([],),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "web_search_options": (),
}


class Body(BaseModel):
    """Strict types; of unknown fields the ones that matter are kept, so that they can be refused.

    The others would hold some 25 times their bytes for as long as the request runs.
    """

    model_config = ConfigDict(strict=True, extra="allow")

    @model_validator(mode="after")
    def _keep_what_matters(self) -> Self:
        unknown = self.model_extra or {}
        for name in unknown.keys() - _REFUSED_FIELDS.keys():
            del unknown[name]
        return self

    def refuse_uncovered(self) -> None:
        """Raises `InvalidRequestError` for a field that would change the answer."""
        for name, value in (self.model_extra or {}).items():
            if name in _REFUSED_FIELDS and value is not None and value not in _REFUSED_FIELDS[name]:
                raise InvalidRequestError(name, value, "is not covered")
