"""What has come of requests and was not told yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pagoda.engine.failures import StepFailedError
from pagoda.engine.outputs import RequestOutput
from pagoda.errors import PagodaError


@dataclass(slots=True)
class News:
    """Outputs and errors of an engine, from when they are made to when somebody takes them.

    What the engine has forgotten already stays here, however a step breaks off.
    """

    outputs: list[RequestOutput] = field(default_factory=list)
    errors: dict[str, PagodaError] = field(default_factory=dict)
    """By request id: nothing else comes of these requests."""

    def __bool__(self) -> bool:
        return bool(self.outputs or self.errors)

    def take(self) -> list[RequestOutput]:
        """The outputs, which are told from now on; raises `StepFailedError` if there are errors."""
        outputs, errors = self.outputs, self.errors
        self.clear()
        if errors:
            raise StepFailedError(errors, outputs)
        return outputs

    def take_output(self) -> Iterator[RequestOutput]:
        """The oldest output alone. It stays news until the iterator is asked for it.

        `inbox.extend(news.take_output())` is one call for an interrupt: the output is in the inbox
        after it, or still here.
        """
        return map(self.outputs.pop, (0,))

    def take_error(self, request_id: str) -> Iterator[PagodaError]:
        """A request's error, in the same way."""
        return map(self.errors.pop, (request_id,))

    def drop(self, request_id: str) -> None:
        """Forget what has come of a request: nobody waits for it."""
        self.errors.pop(request_id, None)
        self.outputs[:] = [output for output in self.outputs if output.request_id != request_id]

    def clear(self) -> None:
        """Everything has been told."""
        self.outputs, self.errors = [], {}
