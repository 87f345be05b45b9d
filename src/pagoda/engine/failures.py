"""What the callers of requests are told that a step could not bring further."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from pagoda.engine.outputs import RequestOutput
from pagoda.engine.sampling.sampler import LogitsError
from pagoda.errors import EngineError, PagodaError
from pagoda.request import Request

logger = logging.getLogger("pagoda")

INTERRUPTS = (KeyboardInterrupt, SystemExit)
"""What ends a program, and is no failure of what it was doing."""


class StepFailedError(EngineError):
    """Some requests of one step were ended; others go on."""

    def __init__(
        self, errors: Mapping[str, PagodaError], outputs: Sequence[RequestOutput] = ()
    ) -> None:
        self.errors = errors
        """What each of them, by its id, is told."""
        self.outputs = outputs
        """What the step would have returned: outputs of the others."""
        super().__init__(f"{len(errors)} requests of a step were ended")


def of_a_failed_step(requests: Iterable[Request], cause: BaseException) -> dict[str, PagodaError]:
    """The errors, by request id, of everybody in a step that failed with `cause`; logs it."""
    errors = _errors(requests, cause)
    logger.error("a step failed; its %d requests are ended", len(errors), exc_info=cause)
    return errors


def of_a_broken_change(requests: Iterable[Request], cause: BaseException) -> dict[str, PagodaError]:
    """The errors, by request id, of those for whom something failed with `cause` that had changed
    the engine in part; logs it."""
    errors = _errors(requests, cause)
    told = "the engine failed and starts over; %d requests are ended, the others go on"
    logger.error(told, len(errors), exc_info=cause)
    return errors


def of_an_interrupt(requests: Iterable[Request]) -> dict[str, PagodaError]:
    """The errors, by request id, of those whose tokens or text an interrupt has left half made."""
    told = "the engine was interrupted while computing this request"
    return {request.request_id: EngineError(told) for request in requests}


def of_sick_logits(requests: Iterable[Request]) -> dict[str, PagodaError]:
    """The errors, by request id, where the model gave logits that are not finite; logs them."""
    errors = _errors(requests, LogitsError())
    if errors:
        logger.error("requests whose logits are not finite are ended: %s", ", ".join(errors))
    return errors


def _errors(requests: Iterable[Request], cause: BaseException) -> dict[str, PagodaError]:
    """An error each: whoever raises one adds to it where it was raised."""
    return {request.request_id: _failure(cause) for request in requests}


def _failure(cause: BaseException) -> EngineError:
    """Callers are not told the cause, which may speak of others or of the machine."""
    failure = EngineError("the engine failed while computing this request")
    failure.__cause__ = cause
    return failure
