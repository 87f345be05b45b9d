"""What can go wrong, as a tree.

    PagodaError
    ├── RefusedError               stopped at the door: names the field, the value and the limit
    │   ├── InvalidRequestError        a field of a request (HTTP 400)
    │   │   └── ContextLengthError         more tokens than the model can take
    │   ├── InvalidOptionError         an option of the engine or a command
    │   ├── BlockTableError            a call of the cache that a block table does not allow
    │   ├── ModelError                 the model's files or its config
    │   │   └── UnsupportedModelError      an architecture or feature that is not covered
    │   ├── CapacityError              it can never fit into the memory that was given
    │   └── AddressInUseError          the server's port is taken
    ├── EngineError                a running request failed inside the engine (HTTP 500)
    │   ├── RequestTimeoutError        it took longer than it may (HTTP 504)
    │   └── ShutDownError              the engine was told to stop (HTTP 503)
    └── IntegrityError             an invariant of the cache is broken: a bug in Pagoda

A `RefusedError` is always the caller's to mend, prints as one line and never disturbs what runs.
"""

from __future__ import annotations

from typing import Self

_SHOWN_CHARACTERS = 80
_SHOWN_ITEMS = 200
"""In a value and all within it: writing out megabytes to show a line of them takes long."""
_CONTAINERS = (list, tuple, set, frozenset, dict)


class PagodaError(Exception):
    """Base of every error that Pagoda raises on purpose; one that is pickled keeps its fields."""

    def __reduce__(self) -> tuple[object, ...]:
        # The arguments that `Exception` keeps are not those that the classes below take.
        return _again, (type(self), self.args), self.__dict__


class RefusedError(PagodaError, ValueError):
    """Input that is refused at the door.

    `field` is the name the caller used, `value` what was given (shown shortened), `limit` says in
    a few words what would be accepted.
    """

    def __init__(self, field: str, value: object, limit: str) -> None:
        self.field = field
        self.value = value
        self.limit = limit
        super().__init__(self.line)

    @property
    def line(self) -> str:
        """All three; what the message says, where it says no more."""
        return f"{self.field}={shorten(self.value)}: {self.limit}"

    def of(self, field: str) -> Self:
        """Itself, by another name for the field."""
        told = self.line
        self.field = field
        self.args = (str(self).replace(told, self.line),)
        return self


class InvalidRequestError(RefusedError):
    """A field of a request is out of range, of the wrong type, or too long for the model."""


class ContextLengthError(InvalidRequestError):
    """The prompt, or the prompt and the answer together, have more tokens than the model takes.

    It begins with the sentence by which clients know that they should shorten the conversation.
    """

    def __init__(
        self, field: str, value: object, limit: str, *, max_model_len: int, requested: str
    ) -> None:
        """`requested` says in a few words how much was asked for, in tokens where that is known."""
        super().__init__(field, value, limit)
        self.args = (
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {requested}. {self}",
        )


class InvalidOptionError(RefusedError):
    """An option of the engine or of a command is out of range or contradicts another."""


class BlockTableError(RefusedError):
    """A block table is used for what it is not, or in a state that does not allow it."""


class ModelError(RefusedError):
    """The model's files are missing, broken or incomplete."""


class UnsupportedModelError(ModelError):
    """The architecture, or a feature its config asks for, is not covered."""


class CapacityError(RefusedError):
    """Not even one request can fit into the KV cache that was given."""


class AddressInUseError(RefusedError):
    """Another process listens on the address."""


class EngineError(PagodaError):
    """A running request failed inside the engine; others go on."""


class RequestTimeoutError(EngineError):
    """A request was ended because it took too long."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"the request took more than {timeout_s:g} seconds")


class ShutDownError(EngineError):
    """A request was ended, or not begun, because the engine was told to stop."""

    def __init__(self) -> None:
        super().__init__("the engine is shut down")


class IntegrityError(PagodaError):
    """`check_integrity` found a broken invariant: a bug in Pagoda, never in its input."""


def _again(kind: type[PagodaError], args: tuple[object, ...]) -> PagodaError:
    """An error of that kind without its fields, as `pickle` makes it anew."""
    return kind.__new__(kind, *args)


def shorten(value: object) -> str:
    """`repr(value)` cut to what fits on a line."""
    if isinstance(value, (*_CONTAINERS, str, bytes)) and len(value) > _SHOWN_ITEMS:
        return f"<{type(value).__name__} of {len(value):,}>"
    if _num_items(value) > _SHOWN_ITEMS:
        return f"<{type(value).__name__} too long to show>"
    try:
        text = repr(value)
    # a whole number of more digits than Python writes out, or lists in lists in lists …
    except (ValueError, RecursionError):
        return f"<{type(value).__name__} too long to show>"
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return text[: _SHOWN_CHARACTERS - 1] + "…"


def _num_items(value: object) -> int:
    """Items of a container and of all in it, or some number above `_SHOWN_ITEMS`."""
    left, num = [value], 0
    while left and num <= _SHOWN_ITEMS:
        each = left.pop()
        if isinstance(each, _CONTAINERS):
            num += len(each)
            if num <= _SHOWN_ITEMS:
                left.extend(each.values() if isinstance(each, dict) else each)
        elif isinstance(each, (str, bytes)) and len(each) > 100 * _SHOWN_ITEMS:
            num += len(each)
    return num
