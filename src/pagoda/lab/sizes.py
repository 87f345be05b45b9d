"""How much the lab measures."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.errors import InvalidOptionError
from pagoda.sizing.step_limits import MAX_PROMPT_LOGIT_ROWS

_LEAST = {"windows": 2, "window": 16, "chunk": 1, "passkey_depths": 1, "passkey_trials": 0}
_LEAST_LENGTH = 128
"""Tokens of a prompt that hides a passkey: the question and the key take some fifty."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Windows of text, and prompts with a passkey. Raises `InvalidOptionError` out of range."""

    windows: int = 16
    """Pieces of text that are read, none of which overlap."""
    window: int = 1024
    """Tokens in one of them."""
    chunk: int = 128
    """Tokens that are read in a step: the others before them come from the cache."""
    passkey_lengths: tuple[int, ...] = (1024, 2048)
    """Tokens of a prompt that hides a passkey, and of its answer."""
    passkey_depths: int = 5
    """Places in such a prompt where the passkey stands."""
    passkey_trials: int = 2
    """Passkeys at each place; 0: none is looked for."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                limit = f"must be a whole number of at least {least}"
                raise InvalidOptionError(name, getattr(self, name), limit)
        if self.chunk > MAX_PROMPT_LOGIT_ROWS:
            limit = f"at most {MAX_PROMPT_LOGIT_ROWS}: each of its tokens has a row of logits"
            raise InvalidOptionError("chunk", self.chunk, limit)
        if self.chunk >= self.window:
            limit = f"must be less than a window, {self.window:,}: later chunks read earlier ones"
            raise InvalidOptionError("chunk", self.chunk, limit)
        for length in self.passkey_lengths:
            if length < _LEAST_LENGTH:
                limit = f"must be whole numbers of at least {_LEAST_LENGTH}"
                raise InvalidOptionError("passkey_lengths", length, limit)

    @property
    def passkeys(self) -> tuple[int, ...]:
        """The lengths of the prompts that are asked; none without trials."""
        return self.passkey_lengths if self.passkey_trials else ()

    def require_within(self, max_model_len: int) -> None:
        """Raises `InvalidOptionError` for more tokens than the model takes."""
        longest = max(self.passkeys, default=0)
        for name, length, needed in (
            ("window", self.window, self.window + 1),
            ("passkey_lengths", longest, longest),
        ):
            if needed > max_model_len:
                limit = f"the model takes {max_model_len:,} tokens, an answer's included"
                raise InvalidOptionError(name, length, limit)


QUICK = Sizes(windows=4, window=512, passkey_trials=0)
"""A first look."""
