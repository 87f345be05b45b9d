"""The text that a model is tried on, and the windows cut out of it."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pagoda.errors import InvalidOptionError

if TYPE_CHECKING:
    from pagoda.models.tokenizer import Tokenizer

_SHORTEST_WORDS = 20
"""Of a paragraph: headings and lists are shorter."""


@dataclass(frozen=True, slots=True)
class Text:
    """What is read, and what it is called."""

    name: str
    content: str


def read_text(paths: Sequence[Path]) -> Text:
    """The files one after the other; those that end in .gz are compressed.

    Raises `InvalidOptionError` for one that cannot be read or is no UTF-8.
    """
    return Text(", ".join(path.name for path in paths), "\n\n".join(map(_content, paths)))


def default_text() -> Text:
    """The prose of the reference of Python's language, which comes with Python.

    Raises `InvalidOptionError` where it was left out.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        limit = "this Python comes without its reference, the default: name a file"
        raise InvalidOptionError("text", None, limit) from None
    # Some paragraphs stand under several topics.
    paragraphs = dict.fromkeys(prose("\n\n".join(topics.values())).split("\n\n"))
    return Text("Python's language reference", "\n\n".join(paragraphs))


def prose(text: str) -> str:
    """The paragraphs of a text, a line each, without short ones: headings, lists of contents."""
    paragraphs = (" ".join(part.split()) for part in text.replace("\r", "").split("\n\n"))
    return "\n\n".join(each for each in paragraphs if each.count(" ") + 1 >= _SHORTEST_WORDS)


@dataclass(frozen=True, slots=True)
class TokenText:
    """A text in the tokens of a model."""

    name: str
    opening: tuple[int, ...]
    """Special tokens that the model wants before a text."""
    token_ids: tuple[int, ...]
    """Of the text alone."""

    @classmethod
    def of(cls, text: Text, tokenizer: Tokenizer) -> TokenText:
        """`tokenizer` is the model's."""
        own = tokenizer.encode(text.content, add_special_tokens=False)
        return cls(text.name, tuple(tokenizer.encode("")), tuple(own))

    def windows(self, count: int, size: int) -> list[tuple[int, ...]]:
        """`count` windows of `size` tokens, spread evenly over the text, none of which overlap.

        Each begins with the opening. Raises `InvalidOptionError` where the text is too short.
        """
        own = size - len(self.opening)
        self.require(count * own, f"{count} windows of {size:,}")
        step = len(self.token_ids) // count
        return [
            self.opening + self.token_ids[first : first + own]
            for first in range(0, count * step, step)
        ]

    def require(self, count: int, purpose: str) -> None:
        """Raises `InvalidOptionError` unless there are `count` tokens, which `purpose` takes."""
        if len(self.token_ids) < count:
            limit = f"has {len(self.token_ids):,} tokens, and {purpose} take {count:,}"
            raise InvalidOptionError("text", self.name, limit)


def _content(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "must be UTF-8 text, or such text as .gz"
        raise InvalidOptionError("text", str(path), reason) from None
