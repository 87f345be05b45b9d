"""Traces that are made up, the same for the same seed: `synthetic:chat?requests=10000&seed=1`.

    chat      conversations with turns behind one system prompt, and pauses to think
    agents    long instructions, many short turns, tools that mostly answer soon
    rag       a few documents, the well-known ones often, and a question
    system    one system prompt and a question

A family is a shape of conversations; each number of it may be given with the name. Requests are
made as they are asked for, and what is held grows with the conversations that go on at once.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl

from pagoda.errors import InvalidOptionError
from pagoda.replay.faults import Faults
from pagoda.replay.trace import TracedRequest

PREFIX = "synthetic:"
UNIT_SIZE = 16
MOST_REQUESTS = 10**9
_LEAST_RATE = 1e-6
"""Of conversations in a second: one in 12 days. Times of far lower ones are no numbers."""
_MOST_TOKENS = 10**6
"""Of a family's lengths."""
_LENGTHS = frozenset({"system", "document", "message", "answer"})
_LONGEST = 32_768
"""Tokens of a prompt; a conversation that is longer ends."""
_MOST_OF_MEAN = 8
"""No length and no pause is more than so many times the mean."""
_MASK = 2**64 - 1
_DOCUMENTS = 2**40
"""What stands for the first; conversations have lower numbers, and what all share has 0."""


@dataclass(frozen=True, slots=True)
class Family:
    """A shape of conversations. Lengths are in tokens, and means where they vary."""

    requests: int = 1000
    """How many there are in all."""
    seed: int = 0
    rate: float = 1.0
    """Conversations that begin in a second, by chance."""
    system: int = 0
    """At the beginning of all prompts."""
    documents: int = 0
    """That there are; the k-th is asked for about 1/k as often as the first."""
    chosen: int = 0
    """Documents in a prompt."""
    document: int = 0
    message: float = 100.0
    answer: float = 200.0
    turns: float = 1.0
    """Of a conversation, on the average."""
    pause: float = 0.0
    """Seconds from one turn to the next."""
    long_pause: float = 0.0
    long_share: float = 0.0
    """Of the pauses, those that are long."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            most = _MOST_TOKENS if name in _LENGTHS else MOST_REQUESTS
            if not 0 <= value <= most:
                raise InvalidOptionError(name, value, f"must be from 0 to {most:,}")
        for name in ("requests", "rate", "message", "answer", "turns"):
            if getattr(self, name) <= 0:
                raise InvalidOptionError(name, getattr(self, name), "must be above 0")
        if self.rate < _LEAST_RATE:
            limit = f"must be at least {_LEAST_RATE:g} a second"
            raise InvalidOptionError("rate", self.rate, limit)
        if self.long_share > 1:
            raise InvalidOptionError("long_share", self.long_share, "must be at most 1")
        if self.chosen > self.documents:
            raise InvalidOptionError("chosen", self.chosen, f"at most {self.documents} documents")
        most_chosen = _MOST_TOKENS // max(1, self.document)
        if self.chosen > most_chosen:
            limit = f"at most {most_chosen:,} of so long documents"
            raise InvalidOptionError("chosen", self.chosen, limit)


FAMILIES = MappingProxyType(
    {
        "chat": Family(
            rate=0.5, system=500, message=120, answer=250, turns=5, pause=40, long_pause=600,
            long_share=0.1,
        ),
        "agents": Family(
            rate=0.2, system=3000, message=700, answer=150, turns=15, pause=3, long_pause=120,
            long_share=0.1,
        ),
        "rag": Family(
            rate=2, system=200, documents=5000, chosen=4, document=800, message=50, answer=200
        ),
        "system": Family(rate=4, system=2000, message=150, answer=200),
    }
)  # fmt: skip


def find_synthetic(name: str) -> SyntheticTrace:
    """The trace of a name that begins with `PREFIX`.

    Raises `InvalidOptionError` for an unknown family, and for a number that it does not have or
    that cannot be.
    """
    family, _, query = name.removeprefix(PREFIX).partition("?")
    if family not in FAMILIES:
        limit = f"{PREFIX} and one of {', '.join(FAMILIES)}, then ?requests=10000&seed=1"
        raise InvalidOptionError("trace", name, limit)
    shape = FAMILIES[family]
    try:
        given = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        limit = "behind ? come numbers, as requests=10000&seed=1"
        raise InvalidOptionError("trace", name, limit) from None
    numbers = {key: _number(key, value) for key, value in given}
    return SyntheticTrace(f"{PREFIX}{family}", replace(shape, **numbers))


def _number(key: str, text: str) -> Any:
    is_whole = {each.name: isinstance(each.default, int) for each in fields(Family)}
    if key not in is_whole:
        raise InvalidOptionError(key, text, f"is no number of a family: {', '.join(is_whole)}")
    try:
        number = int(text) if is_whole[key] else float(text)
    except ValueError:
        limit = "must be a whole number" if is_whole[key] else "must be a number"
        raise InvalidOptionError(key, text, limit) from None
    if not math.isfinite(number):
        raise InvalidOptionError(key, text, "must be a number")
    return number


class SyntheticTrace:
    """Requests of one family; see `Trace`."""

    unit_size = UNIT_SIZE
    recorded = None

    def __init__(self, name: str, shape: Family) -> None:
        self.name = name
        self.faults = Faults()
        self.num_requests = shape.requests
        self._shape = shape

    def __iter__(self) -> Iterator[TracedRequest]:
        source = random.Random(f"pagoda trace {self._shape}")
        turns: list[tuple[float, int, _Conversation]] = []
        num_begun, next_begin_s = 0, 0.0
        for _ in range(self._shape.requests):
            while not turns or next_begin_s <= turns[0][0]:
                heappush(
                    turns, (next_begin_s, num_begun, _Conversation(self._shape, num_begun, source))
                )
                num_begun += 1
                next_begin_s += source.expovariate(self._shape.rate)
            now_s, number, conversation = heappop(turns)
            yield conversation.turn(now_s)
            pause_s = conversation.pause()
            if pause_s is not None:
                heappush(turns, (now_s + pause_s, number, conversation))


class _Conversation:
    """One conversation, as far as it has come."""

    def __init__(self, shape: Family, number: int, source: random.Random) -> None:
        self._shape = shape
        self._source = source
        self._own = number + 1
        self._name = 0  # stands for all that was said so far
        self._length = 0
        self._unit_ids = array("Q")
        self._num_turns = 0
        self._say(shape.system, 0)
        for _ in range(shape.chosen):
            # the inverse of a distribution where the k-th is about 1/k as likely as the first
            rank = int((shape.documents + 1) ** source.random())
            self._say(shape.document, _DOCUMENTS + rank)

    def turn(self, now_s: float) -> TracedRequest:
        """The next request, and its answer."""
        self._say(self._length_of(self._shape.message), self._own)
        prompt, answer = self._length, self._length_of(self._shape.answer)
        self._say(answer, self._own)
        self._num_turns += 1
        return TracedRequest(
            arrival_s=now_s,
            num_prompt_tokens=prompt,
            num_output_tokens=answer,
            unit_ids=self._unit_ids[:],
            unit_size=UNIT_SIZE,
            num_known_tokens=len(self._unit_ids) * UNIT_SIZE,
        )

    def pause(self) -> float | None:
        """Seconds until the next turn, None if that was the last."""
        shape, source = self._shape, self._source
        if source.random() < 1 / shape.turns or self._length > _LONGEST:
            return None
        is_long = source.random() < shape.long_share
        return self._varied(shape.long_pause if is_long else shape.pause)

    def _say(self, num_tokens: int, name: int) -> None:
        """So many tokens that `name` stands for, behind all that was said."""
        self._name = hash((self._name, name, num_tokens))
        self._length += num_tokens
        first = (len(self._unit_ids) + 1) * UNIT_SIZE
        for end in range(first, self._length + 1, UNIT_SIZE):
            self._unit_ids.append(hash((self._name, end)) & _MASK)

    def _length_of(self, mean: float) -> int:
        return max(1, round(self._varied(mean)))

    def _varied(self, mean: float) -> float:
        return min(self._source.expovariate(1.0), _MOST_OF_MEAN) * mean
