"""The items of a conversation, as clients send them and as they are kept."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
)
from pydantic_core import PydanticCustomError

from pagoda.server.body import Many, Text
from pagoda.server.call_arguments import CallArguments
from pagoda.server.messages import (
    CalledFunction,
    MadeCall,
    RefusalPart,
    kind_of_part,
    thought_field,
)
from pagoda.server.responses_api.tool_kinds import FunctionPlace
from pagoda.server.tools import ToolName


def _covered_part(kind: object) -> object:
    if isinstance(kind, str) and kind not in ("input_text", "output_text", "text"):
        raise PydanticCustomError(
            "part_not_covered", "only parts of text are covered: no images, sound or files"
        )
    return kind


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class TextPart(_Part):
    """A piece of text: of a message, or of what a tool gave back."""

    type: Annotated[Literal["input_text", "output_text", "text"], BeforeValidator(_covered_part)]
    text: Text

    @property
    def said(self) -> str:
        return self.text

    @model_serializer(mode="wrap")
    def _told(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What an assistant said has as many fields in a list of items as in its response."""
        names = ("annotations", "logprobs") if self.type == "output_text" else ()
        return {**write(self), **{name: [] for name in names}}


_MessagePart = Annotated[
    Annotated[TextPart, Tag("text part")] | Annotated[RefusalPart, Tag("refusal part")],
    Discriminator(kind_of_part),
]


def _num_parts_of(content: str | Sequence[object]) -> int:
    return 0 if isinstance(content, str) else len(content)


def text_of(content: str | Sequence[TextPart | RefusalPart]) -> str:
    """All parts as one text."""
    return content if isinstance(content, str) else "".join(part.said for part in content)


class _Item(BaseModel):
    """An item of a conversation; what it has beside the fields of its kind changes nothing."""

    model_config = ConfigDict(strict=True)

    id: Text | None = None
    status: Text | None = None

    @property
    def num_parts(self) -> int:
        """The item itself and the parts of its content."""
        return 1


class MessageItem(_Item):
    """What somebody said."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Many[_MessagePart]

    @property
    def num_parts(self) -> int:
        return 1 + _num_parts_of(self.content)

    def in_parts(self) -> MessageItem:
        """The same message, its content as a list, as OpenAI lists it."""
        if not isinstance(self.content, str):
            return self
        kind: Any = "output_text" if self.role == "assistant" else "input_text"
        return self.model_copy(update={"content": [TextPart(type=kind, text=self.content)]})


class FunctionCallItem(_Item):
    """A call of a function that the assistant made."""

    type: Literal["function_call"] = "function_call"
    call_id: Text
    name: ToolName
    namespace: ToolName | None = None
    arguments: Text


class FunctionOutputItem(_Item):
    """What a call of a function gave back."""

    type: Literal["function_call_output"]
    call_id: Text
    output: Text | Many[TextPart]

    @property
    def num_parts(self) -> int:
        return 1 + _num_parts_of(self.output)


class ReasoningPart(_Part):
    type: Text
    text: Text


class ReasoningItem(_Item):
    """What a model thought. Without content nobody reads it: it is neither told nor kept."""

    type: Literal["reasoning"]
    summary: Many[ReasoningPart] = Field(default_factory=list)
    content: Many[ReasoningPart] | None = None
    encrypted_content: Text | None = None

    @property
    def thought(self) -> str:
        """What of it can be read, as it was thought."""
        return "".join(part.text for part in self.content or ())

    @property
    def num_parts(self) -> int:
        return 1 + len(self.content or ())


class ItemReference(BaseModel):
    """Stands for an item of a stored response."""

    model_config = ConfigDict(strict=True)

    type: Literal["item_reference"] | None = None
    id: Text


Item = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem
"""An item that says something itself, to the model too."""
_KINDS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")


def _kind_of(value: Any) -> str:
    """OpenAI lets messages and references go without a type."""
    given = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    kind = given.get("type")
    if isinstance(kind, str) and kind in _KINDS:
        return kind
    return "item_reference" if "id" in given and "role" not in given else "message"


def _covered_kind(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in _KINDS:
        raise PydanticCustomError(
            "item_not_covered",
            "items of type {kind} are not covered, only {kinds}",
            {"kind": repr(kind[:64]), "kinds": ", ".join(_KINDS)},
        )
    return value


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(_kind_of),
    BeforeValidator(_covered_kind),
]


_ID_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}


def new_item_id(item: Item) -> str:
    """An id, by which the item can be referred to, that no other has."""
    prefix = _ID_PREFIXES[item.type]
    return f"{prefix}_{uuid.uuid4().hex}"


def template_messages(
    instructions: str | None, items: Iterable[Item], arguments: CallArguments
) -> list[dict[str, Any]]:
    """The conversation as chat templates expect it.

    Calls become part of the assistant's message before them, thoughts of the one behind them.
    Raises `InvalidRequestError` for too many arguments.
    """
    messages: list[dict[str, Any]] = []
    thought: dict[str, str] = {}
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        if isinstance(item, ReasoningItem):
            thought = thought_field(item.thought)
            continue
        if isinstance(item, MessageItem):
            role = "system" if item.role == "developer" else item.role
            messages.append({"role": role, "content": text_of(item.content)})
        elif isinstance(item, FunctionCallItem):
            _caller(messages).setdefault("tool_calls", []).append(_call(item, arguments))
        elif isinstance(item, FunctionOutputItem):
            result = {"role": "tool", "content": text_of(item.output)}
            messages.append({**result, "tool_call_id": item.call_id})
        if messages[-1]["role"] == "assistant":
            messages[-1] |= thought
        thought = {}
    return messages


def _caller(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message at the end; one without text where there is none."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _call(item: FunctionCallItem, arguments: CallArguments) -> dict[str, Any]:
    place = FunctionPlace(item.namespace, item.name)
    function = CalledFunction(name=item.name, arguments=item.arguments)
    function = function.model_copy(update={"name": place.full_name})
    return MadeCall(id=item.call_id, function=function).for_template(arguments)
