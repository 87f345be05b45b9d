"""A rule: what a sampling parameter changes in the logits of the tokens that it concerns.

    SamplingParams ── rules.table ──> rules of a row ── entries ──> token ids and a number for each
                                                                            │
                        in main memory: `logits.change_logits`  on a GPU: `gpu_logits.change_on_gpu`

A rule names tokens and numbers once a row and step. What is done with them is one of four edits,
and each edit has two appliers. They round alike, so both give the same logits to the last bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pagoda.engine.sampling.token_counts import TokenCounts
from pagoda.request import SamplingParams

_DEFAULTS = SamplingParams()


class Edit(Enum):
    """What becomes of a logit, given the number that a rule has for its token. All are float32."""

    ADD = "add"
    """logit + number"""
    SCALE = "scale"
    """logit / number where the logit is above 0, else logit · number"""
    BAN = "ban"
    """Minus infinity, unless that would leave the row nothing finite. The number is not read."""
    KEEP = "keep"
    """All others are minus infinity, unless that would leave the row nothing finite. The number is
    not read."""


class Entries(NamedTuple):
    """The tokens that a rule concerns, and a number for each."""

    token_ids: NDArray[np.int64]
    """[n], each token at most once"""
    numbers: NDArray[np.float32]
    """[n]"""

    @classmethod
    def of(cls, token_ids: ArrayLike, numbers: ArrayLike) -> Entries:
        """A number for each token."""
        return cls(np.asarray(token_ids, np.int64), np.asarray(numbers, np.float32))

    @classmethod
    def alike(cls, token_ids: ArrayLike, number: float) -> Entries:
        """One number for all tokens."""
        ids = np.asarray(token_ids, np.int64)
        return cls(ids, np.full(len(ids), number, np.float32))

    def within(self, vocab_size: int) -> Entries:
        """The entries of the vocabulary: an id beyond it can never come up."""
        inside = self.token_ids < vocab_size
        if np.count_nonzero(inside) == len(inside):
            return self
        return Entries(self.token_ids[inside], self.numbers[inside])


class RuledRow(Protocol):
    """What rules read of a sequence whose next token is wanted; see `SamplingRow`."""

    @property
    def params(self) -> SamplingParams: ...

    @property
    def prompt_token_ids(self) -> Sequence[int]: ...

    @property
    def output_token_ids(self) -> Sequence[int]:
        """Tokens chosen so far."""
        ...

    @property
    def stop_token_ids(self) -> frozenset[int]: ...

    @property
    def allowed(self) -> NDArray[np.int64]:
        """The tokens of `allowed_token_ids`, each once."""
        ...

    @property
    def said(self) -> TokenCounts:
        """The output's tokens."""
        ...

    @property
    def seen(self) -> TokenCounts:
        """The tokens of prompt and output."""
        ...


class Rule(ABC):
    """One rule, the same for all rows. A file under `rules/` and a line in `rules.table`."""

    fields: ClassVar[tuple[str, ...]]
    """The fields of `SamplingParams` that ask for it."""
    edit: ClassVar[Edit]
    reads_output: ClassVar[bool] = True
    """What it says depends on the tokens drawn before; otherwise it says the same at every step."""

    def __init_subclass__(cls) -> None:
        for name in cls.fields:
            if not hasattr(_DEFAULTS, name):
                raise TypeError(f"{cls.__name__}.fields: SamplingParams (request.py) has no {name}")

    def is_asked(self, params: SamplingParams) -> bool:
        """A field has another value than its default."""
        return any(getattr(params, name) != getattr(_DEFAULTS, name) for name in self.fields)

    def is_due(self, row: RuledRow) -> bool:
        """The rule, which is asked for, applies to the row's next token."""
        return True

    @abstractmethod
    def entries(self, row: RuledRow) -> Entries:
        """What the rule says of the next token of `row`."""

    @abstractmethod
    def reference(self, values: list[float], row: RuledRow) -> None:
        """Do the same in place, plain and slow: `values` [vocab] are one row's logits."""
