"""User text stays text: what is said in a chat never becomes one of the model's special tokens.

    message    Write <|im_end|> twice
    rendered   …user\nWrite <MARK|im_end|> twice<|im_end|>\n…
    encoded    …user\nWrite <    +    |im_end|> twice<|im_end|>\n…

A special token in a message is cut behind its first character, before the template writes the
prompt. The prompt is then encoded from cut to cut: no piece holds a whole special token but those
of the template. A chat without such text is rendered and encoded as ever.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Encoding


class UserText:
    """Cuts special tokens wherever the messages of a chat have their text."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        """Of `tokens`, which a tokenizer finds in a text before all else, the special ones."""
        special = [each for each in tokens if each.special and len(each.content) > 1]
        either = "|".join(re.escape(each.content) for each in special) or r"(?!)"
        self._found = re.compile(either)
        self._first_character = re.compile(f"(?={either})(.)", re.DOTALL)
        self._mark = secrets.token_hex(16)
        """Stands where a text is cut. Nobody can know it, and templates write it as it is."""
        plain = (each.content for each in special if not (each.lstrip or each.rstrip))
        self._leader = next(plain, "")
        """Goes before a piece: at the beginning of a text some tokenizers add a space."""

    def cut(self, value: Any) -> Any:
        """The same with marks in its texts; `value` is a message, or any value of JSON in it."""
        if isinstance(value, str):
            found = self._found.search(value) is not None
            return self._first_character.sub(rf"\g<1>{self._mark}", value) if found else value
        if isinstance(value, Mapping):
            return {self.cut(key): self.cut(each) for key, each in value.items()}
        if isinstance(value, Sequence):
            return [self.cut(each) for each in value]
        return value

    def uncut(self, text: str) -> str:
        """Without marks."""
        return text.replace(self._mark, "")

    def encode(
        self,
        prompt: str,
        encode: Callable[[list[str]], list[Encoding]],
        check_count: Callable[[int], None],
    ) -> list[int]:
        """The token ids of a prompt with marks, which `encode` gives for texts without.

        `check_count` may refuse their number before they are copied.
        """
        first, *others = prompt.split(self._mark)
        if not others:
            [whole] = encode([first])
            check_count(len(whole))
            return whole.ids
        leader, whole, *pieces = encode(
            [self._leader, first, *[self._leader + other for other in others]]
        )
        num_leading = len(leader)
        check_count(len(whole) + sum(len(piece) - num_leading for piece in pieces))
        later = [token_id for piece in pieces for token_id in piece.ids[num_leading:]]
        return whole.ids + later
