"""The arguments of calls that a conversation tells of, read from their JSON."""

from __future__ import annotations

from typing import Any

from pagoda.engine.checked_tokenizer import MOST_CHARACTERS_PER_TOKEN
from pagoda.engine.prompt_forms import read_arguments
from pagoda.errors import ContextLengthError, InvalidRequestError
from pagoda.server.value_limit import ValueCount


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
        """See `read_arguments`.

        Raises `InvalidRequestError` naming `messages` for too much, before it is read.
        """
        self._check_length(len(text))
        self._check_values(text)
        return read_arguments(text)

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
