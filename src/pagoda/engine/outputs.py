"""What a caller gets back; the names are vLLM's.

An output is built per sequence and step, so it need not copy what grows: a `Snapshot` shows a
stretch of the engine's own list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, overload

FinishReason = Literal["stop", "length", "abort"]

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class Logprob:
    """How likely one token was, by the model's own logits before any penalty or temperature."""

    logprob: float
    """Natural logarithm of the probability."""
    rank: int
    """1 + how many tokens were strictly more likely."""
    decoded_token: str | None = None


class Snapshot(Sequence[T], Generic[T]):
    """Items `start` to `stop` (now the end) of a list that only grows, at constant cost.

    Compares equal to a list, tuple or snapshot of the same items; pickles as a tuple.
    """

    __slots__ = ("_items", "_positions")

    def __init__(self, items: Sequence[T], start: int = 0, stop: int | None = None) -> None:
        self._items = items
        self._positions = range(len(items))[start:stop]

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return tuple(self)[index]
        return self._items[self._positions[index]]

    def __iter__(self) -> Iterator[T]:
        return iter(self._items[self._positions.start : self._positions.stop])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, tuple, Snapshot)):
            return NotImplemented
        return len(other) == len(self) and tuple(other) == tuple(self)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[type, tuple[tuple[T, ...]]]:
        return tuple, (tuple(self),)


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice of a request, as far as it has come."""

    index: int
    """Which of the request's `n` choices."""
    text: str
    """Everything so far."""
    token_ids: Sequence[int]
    """Everything so far, a closing stop token included."""
    cumulative_logprob: float | None = None
    """Sum over `token_ids`; None unless log-probabilities were asked for."""
    logprobs: Sequence[Mapping[int, Logprob]] | None = None
    """One mapping per entry of `token_ids`: the chosen token first, then the most likely ones."""
    finish_reason: FinishReason | None = None
    """None while it runs."""
    stop_reason: int | str | None = None
    """The stop token or stop string that ended it; None for an end-of-sequence token."""
    delta: str = ""
    """The end of `text` that is new since the last output."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request as far as it has come."""

    request_id: str
    prompt: str | None
    """None when the prompt was given as token ids."""
    prompt_token_ids: Sequence[int]
    prompt_logprobs: Sequence[Mapping[int, Logprob] | None] | None
    """One entry per prompt token, the first of them None; None unless asked for."""
    outputs: Sequence[CompletionOutput]
    """The choices that this output is about."""
    finished: bool
    """Every choice has a finish reason."""
    num_cached_tokens: int = 0
    """Prompt tokens whose keys and values came from the cache."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)
