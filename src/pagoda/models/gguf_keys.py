"""What a GGUF file's metadata says about text, each key checked as it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagoda.errors import ModelError

_PREFIX = "tokenizer.ggml."
_CHAT_TEMPLATE = "tokenizer.chat_template"
MOST_TOKEN_CHARACTERS = 1024
MOST_CHARACTERS = 2**22
"""Of all tokens: twice those of the largest vocabulary."""
CONTROL, USER_DEFINED = 3, 4
"""Types of tokens that are matched before text is split."""
_TYPES = frozenset(range(1, 7))
"""Those that llama.cpp has: normal, unknown, control, user-defined, unused, byte."""


@dataclass(frozen=True, slots=True)
class TextKeys:
    """The keys under `tokenizer.ggml.`, named without it.

    Raises `ModelError` naming the key for a value of another type.
    """

    metadata: Mapping[str, Any]

    def name(self, key: str) -> str:
        """The whole key."""
        return _PREFIX + key

    def text(self, key: str) -> str | None:
        """A string, or None where the file has no such key."""
        return self._text(self.name(key))

    def chat_template(self) -> str | None:
        """The template of conversations, which has a prefix of its own."""
        return self._text(_CHAT_TEMPLATE)

    def switch(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self.metadata.get(self.name(key), default)
        if type(value) is not bool:
            raise ModelError(self.name(key), value, "must be true or false")
        return value

    def strings(self, key: str) -> list[str]:
        """A list of strings, which must be there."""
        value = self.metadata.get(self.name(key))
        if type(value) is not list or not value or type(value[0]) is not str:
            raise ModelError(self.name(key), value, "a list of strings is needed")
        return value

    def tokens(self) -> list[str]:
        """The vocabulary by id. Building a tokenizer looks at every place in every token."""
        tokens = self.strings("tokens")
        lengths = [len(token) for token in tokens]
        if max(lengths) > MOST_TOKEN_CHARACTERS or sum(lengths) > MOST_CHARACTERS:
            limit = f"at most {MOST_TOKEN_CHARACTERS:,} characters each, {MOST_CHARACTERS:,} in all"
            raise ModelError(self.name("tokens"), f"{max(lengths):,} characters", limit)
        return tokens

    def numbers(self, key: str) -> list[float]:
        """A list of numbers, empty where the file has no such key."""
        return self._list(key, (float, int))

    def whole_numbers(self, key: str) -> list[int]:
        """A list of whole numbers, empty where the file has no such key."""
        return self._list(key, (int,))

    def token_types(self, num_tokens: int) -> list[int]:
        """The type of each token, empty where the file has no such key.

        Raises `ModelError` for another number of types, and where none of them is known.
        """
        types = self.whole_numbers("token_type")
        told = f"{len(types):,} numbers"
        if types and len(types) != num_tokens:
            limit = f"must be {num_tokens:,}, one for each token"
            raise ModelError(self.name("token_type"), told, limit)
        if types and _TYPES.isdisjoint(types):
            limit = f"none is a type of tokens, {min(_TYPES)} to {max(_TYPES)}"
            raise ModelError(self.name("token_type"), told, limit)
        return types

    def token_id(self, key: str, num_tokens: int) -> int | None:
        """The id of one of the tokens, or None where the file has no such key."""
        found, value = self.optional_token_id(key, num_tokens), self.metadata.get(self.name(key))
        if found is None and value is not None:
            raise ModelError(self.name(key), value, f"must be below {num_tokens:,}")
        return found

    def optional_token_id(self, key: str, num_tokens: int) -> int | None:
        """The same, but None for a number that is no token's, too: 4294967295 says "none"."""
        value = self.metadata.get(self.name(key))
        if value is not None and type(value) is not int:
            raise ModelError(self.name(key), value, f"must be below {num_tokens:,}")
        return value if value is not None and 0 <= value < num_tokens else None

    def _text(self, name: str) -> str | None:
        value = self.metadata.get(name)
        if value is not None and type(value) is not str:
            raise ModelError(name, value, "must be a string")
        return value

    def _list(self, key: str, kinds: tuple[type, ...]) -> list[Any]:
        value = self.metadata.get(self.name(key), [])
        # items of an array in a file are all of one type
        if type(value) is not list or (value and type(value[0]) not in kinds):
            raise ModelError(self.name(key), value, "must be a list of numbers")
        return value
