"""Which tokens of a live sequence stay, where that is decided by position: named, and checked.

    full                          every token
    window:1024                   the last 1,024
    streaming:sinks=4,window=1020 those and the first 4 (StreamingLLM, arXiv 2309.17453)

Without sinks a model that was trained on whole texts breaks down once its first tokens are gone:
`window` is there to be compared with.
"""

from __future__ import annotations

import re
from functools import lru_cache

from pagoda.cache.window import FULL_ATTENTION, AttentionWindow
from pagoda.errors import InvalidOptionError

DEFAULT_SINKS, DEFAULT_WINDOW = 4, 1020
PATTERNS = "full, window:1024, streaming or streaming:sinks=4,window=1020"
_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,99}")
"""Also of numbers that are told to be out of their range."""
_MOST_TOKENS = 10**9 - 1
MOST_POSITIONS = 2**22
"""Tokens of a sequence of which only a part is kept: each has a row in tables of angles."""


def parse_retention(text: str) -> AttentionWindow:
    """The window that `text` names.

    Raises `InvalidOptionError` for another text, for a number that is named twice or out of its
    range, and for more sinks than tokens of the window.
    """
    if not isinstance(text, str):
        raise InvalidOptionError("kv_retention", text, PATTERNS)
    return _parse(text)


def most_positions(made_for: int, retention: AttentionWindow) -> int:
    """Tokens of the longest sequence on a model that was made for `made_for` positions."""
    return made_for if retention.is_full else max(made_for, MOST_POSITIONS)


def require_length(max_model_len: int, made_for: int, retention: AttentionWindow) -> None:
    """Sequences may be so long on a model that was made for `made_for` positions.

    Raises `InvalidOptionError`.
    """
    most = most_positions(made_for, retention)
    if max_model_len > most:
        limit = f"at most {most} with --kv-retention"
        if retention.is_full:
            limit = (
                f"at most {most}, the positions the model was made for; more with --kv-retention"
            )
        raise InvalidOptionError("max_model_len", max_model_len, limit)


@lru_cache(maxsize=256)
def _parse(text: str) -> AttentionWindow:
    name, _, given = text.partition(":")
    if text == "full":
        return FULL_ATTENTION
    if name == "window" and _NUMBER.fullmatch(given):
        return _window(text, int(given), 0)
    if text == "streaming":
        return AttentionWindow(DEFAULT_WINDOW, DEFAULT_SINKS)
    if name == "streaming":
        numbers = _numbers(text, given)
        sinks = numbers.get("sinks", DEFAULT_SINKS)
        return _window(text, numbers.get("window", DEFAULT_WINDOW), sinks)
    raise InvalidOptionError("kv_retention", text, PATTERNS)


def _numbers(text: str, given: str) -> dict[str, int]:
    """`sinks` and `window`, as far as they are named."""
    numbers: dict[str, int] = {}
    for part in given.split(","):
        key, _, value = part.partition("=")
        if key not in ("sinks", "window") or not _NUMBER.fullmatch(value):
            raise InvalidOptionError("kv_retention", text, PATTERNS)
        if key in numbers:
            raise InvalidOptionError("kv_retention", text, f"{key} named once")
        numbers[key] = int(value)
    return numbers


def _window(text: str, window: int, sinks: int) -> AttentionWindow:
    if not 1 <= window <= _MOST_TOKENS:
        limit = f"a window of 1 to {_MOST_TOKENS} tokens"
        raise InvalidOptionError("kv_retention", text, limit)
    if sinks < 0:
        raise InvalidOptionError("kv_retention", text, "at least 0 sinks")
    if sinks > window:
        limit = f"at most as many sinks as the window has tokens, {window}"
        raise InvalidOptionError("kv_retention", text, limit)
    return AttentionWindow(window, sinks)


def require_retention(retention: AttentionWindow, *, block_size: int, most_tokens: int) -> None:
    """A model made for `most_tokens` positions can keep it, in blocks of `block_size` tokens.

    Raises `InvalidOptionError`.
    """
    if retention.is_full:
        return
    name = str(retention)
    if retention.window < block_size:
        limit = f"a window of at least one block, {block_size} tokens"
        raise InvalidOptionError("kv_retention", name, limit)
    if retention.window + retention.sinks > most_tokens:
        limit = f"sinks and window of at most {most_tokens} tokens, which the model was made for"
        raise InvalidOptionError("kv_retention", name, limit)
