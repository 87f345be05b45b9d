"""The arguments of calls that a conversation tells of, read from their JSON."""

from __future__ import annotations

import json
from typing import Any

from pagoda.engine.checked_tokenizer import MOST_CHARACTERS_PER_TOKEN
from pagoda.errors import ContextLengthError, InvalidRequestError
from pagoda.server.value_limit import ValueCount
from pagoda.structured import MAX_SCHEMA_DEPTH, is_deeper_than


class CallArguments:
    """Reads the arguments of one conversation's calls, which have one bound together.

    JSON within a text of the body was not counted with the body's own.
    """

    def __init__(self, max_model_len: int) -> None:
        """The longest prompt is as long as that, in tokens."""
        self._max_model_len = max_model_len
        self._num_characters = 0
        self._count = ValueCount()

    def read(self, text: str) -> dict[str, Any] | str:
        """What chat templates are given, who write it themselves: what is no JSON object stays
        text.

        Raises `InvalidRequestError` naming `messages` for too much, before it is read.
        """
        self._check_length(len(text))
        self._check_values(text)
        try:
            arguments = json.loads(text or "{}")
        except (ValueError, RecursionError):
            return text
        if not isinstance(arguments, dict) or is_deeper_than(arguments, MAX_SCHEMA_DEPTH):
            return text
        return arguments

    def _check_length(self, num_characters: int) -> None:
        self._num_characters += num_characters
        most = MOST_CHARACTERS_PER_TOKEN * self._max_model_len
        if self._num_characters > most:
            value = f"{self._num_characters} characters of arguments"
            raise ContextLengthError(
                "messages",
                value,
                f"at most {most}",
                max_model_len=self._max_model_len,
                requested=f"more ({value} in the messages)",
            )

    def _check_values(self, text: str) -> None:
        self._count.add(text.encode())
        if too_many := self._count.too_many(self._max_model_len):
            limit = f"the arguments of all calls may have at most {too_many}"
            raise InvalidRequestError("messages", "more", limit)
        self._count.begin()
