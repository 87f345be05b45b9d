"""Where `pagoda generate` gets its prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from pagoda.errors import InvalidOptionError

_JSONL_LIMIT = 'must be a JSON string or an object with "prompt"'


@dataclass(frozen=True, slots=True)
class PromptSource:
    """Prompts from the arguments, else from a file, else from stdin."""

    arguments: Sequence[str]
    file: Path | None
    stdin: TextIO

    def read(self) -> list[str]:
        """All prompts, in order.

        Raises `InvalidOptionError` when there is none, or two sources, or one that cannot be
        read.
        """
        if self.arguments and self.file is not None:
            raise InvalidOptionError("file", str(self.file), "prompts are given as arguments too")
        prompts = list(self.arguments) or self._lines()
        if not prompts:
            raise InvalidOptionError("prompts", [], "give at least one, or --file, or stdin")
        return prompts

    def _lines(self) -> list[str]:
        if self.file is None:
            return [] if self.stdin.isatty() else _plain(read_stdin(self.stdin))
        try:
            text = self.file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "must be UTF-8 text"
            raise InvalidOptionError("file", str(self.file), reason) from None
        return _json_lines(text, self.file) if self.file.suffix == ".jsonl" else _plain(text)


def read_stdin(stdin: TextIO) -> str:
    """Its text. Raises `InvalidOptionError` for bytes that are none."""
    try:
        return stdin.read()
    except UnicodeDecodeError as error:
        raise undecodable(error) from None


def undecodable(error: UnicodeDecodeError) -> InvalidOptionError:
    """The refusal of a stdin whose bytes are no text."""
    return InvalidOptionError(
        "stdin", error.object[error.start :], f"must be {error.encoding} text"
    )


def _plain(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def _json_lines(text: str, file: Path) -> list[str]:
    prompts = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        prompt = value.get("prompt") if isinstance(value, dict) else value
        if not isinstance(prompt, str):
            raise InvalidOptionError("file", line, f"line {number} of {file}: {_JSONL_LIMIT}")
        prompts.append(prompt)
    return prompts
