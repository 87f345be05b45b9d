"""Where a JSON value ends that comes in pieces."""

from __future__ import annotations

import re

_BETWEEN = re.compile(r"[ \t\r\n\w,:+.\-]*", re.ASCII)
"""What stands outside of strings, but for brackets."""
_IN_STRING = re.compile(r'[^"\\\x00-\x1f]*')
_SCALAR = re.compile(r"[\w.+-]*", re.ASCII)
_CLOSING = {"{": "}", "[": "]"}


class JSONEnd:
    """Looks for the end of an object, list or string, at each character once.

    It follows brackets and strings alone: a parser may still find that what has ended is no JSON.
    """

    def __init__(self) -> None:
        self._awaited: list[str] = []
        """The closing brackets of what is open."""
        self._is_in_string = False
        self._is_escaped = False
        self.is_found = False
        self.is_broken = False
        """Whatever comes, it is no JSON."""

    def look(self, text: str, position: int) -> int:
        """Go on in `text` from `position`; returns the position behind what was looked at.

        That is the end of `text`, or of the value where it `is_found`, or where what is wrong
        begins.
        """
        while position < len(text) and not self.is_found and not self.is_broken:
            go_on = self._in_string if self._is_in_string else self._outside
            position = go_on(text, position)
        return position

    def _in_string(self, text: str, position: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return position + 1
        position = end_of(_IN_STRING, text, position)
        if position == len(text):
            return position
        self.is_broken = text[position] < " "
        self._is_escaped = text[position] == "\\"
        self._is_in_string = text[position] != '"'
        self.is_found = not self._is_in_string and not self._awaited
        return position + (not self.is_broken)

    def _outside(self, text: str, position: int) -> int:
        position = end_of(_BETWEEN, text, position)
        if position == len(text):
            return position
        character = text[position]
        if character in _CLOSING:
            self._awaited.append(_CLOSING[character])
        elif character == '"':
            self._is_in_string = True
        elif self._awaited and character == self._awaited[-1]:
            self._awaited.pop()
            self.is_found = not self._awaited
        else:
            self.is_broken = True
        return position + (not self.is_broken)


class ScalarEnd:
    """Looks for the end of a number, `true`, `false` or `null`, which only what follows tells."""

    is_broken = False

    def __init__(self) -> None:
        self.is_found = False

    def look(self, text: str, position: int) -> int:
        """As `JSONEnd.look`."""
        position = end_of(_SCALAR, text, position)
        self.is_found = position < len(text)
        return position


def end_of(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Where the match of `pattern` at `position` ends; `position` where there is none."""
    match = pattern.match(text, position)
    return position if match is None else match.end()
