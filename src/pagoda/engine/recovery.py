"""What becomes of everybody when a change of the engine breaks off.

    a failure, somebody in hand    that request ends
    a failure, nobody in hand      none ends the first time; the second time, whoever has not got a
                                   token since the first
    an interrupt                   who is in hand ends, but is told that it was interrupted

All others start over: they wait, hold no blocks, and are computed again from their tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import TracebackType
from weakref import WeakMethod

from pagoda.engine import failures
from pagoda.engine.assembler import Assembler
from pagoda.engine.failures import INTERRUPTS
from pagoda.engine.news import News
from pagoda.engine.roster import Roster
from pagoda.errors import PagodaError
from pagoda.request import Request
from pagoda.scheduling import InHand


class Recovery:
    """Guards each change of the engine: a `with` block is done whole, or recovered from.

    Nothing leaves the block but interrupts. An interrupt may come at any place of the recovery too;
    the next block then begins with another, or `finish` has done it before.
    """

    def __init__(
        self,
        in_hand: InHand,
        roster: Roster,
        news: News,
        *,
        forget: Callable[[str], None],
        start_over: Callable[[], None],
    ) -> None:
        """`forget` takes a request off the engine, `start_over` lets all that are left wait. Both
        are methods of the engine's, which this does not keep: it and its cache are freed with the
        last that refers to it."""
        self._in_hand = in_hand
        self._roster = roster
        self._news = news
        self._forget_by = WeakMethod(forget)
        self._start_over_by = WeakMethod(start_over)
        self._is_changing = False
        """A block has begun, and is neither done nor recovered from."""
        self._cause: BaseException | None = None
        """What it broke off with, as far as that could be noted."""
        self._standing: dict[int, int] = {}
        """What `_started_over` goes by: how many tokens each sequence had, by its id."""

    def finish(self) -> None:
        """Recover, if an interrupt broke a recovery off. To be done before news are told: whoever
        it told of is forgotten then, and is not told again."""
        if self._is_changing:
            self._recover()
            self._is_changing = False

    def __enter__(self) -> None:
        self.finish()
        self._in_hand.request_id = None
        self._is_changing = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        cause: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if cause is not None:  # a library's panic may be no `Exception`
            self._cause = cause
            self._recover()
        self._is_changing = False
        return not isinstance(cause, INTERRUPTS)

    def _recover(self) -> None:
        """Trusted are the requests, their tokens, the text that was made of them, and the news."""
        self._roster.find_choices()
        self._forget_the_told()
        if self._cause is None or isinstance(self._cause, INTERRUPTS):
            self._end(failures.of_an_interrupt(self._requests_in_hand()))
            self._start_over()
        else:
            self._recover_from(self._cause)
        self._cause = None

    def _recover_from(self, failure: BaseException) -> None:
        concerned = self._requests_in_hand()
        if concerned:
            self._standing = {}
        self._end(failures.of_a_broken_change(concerned or self._started_over(), failure))
        self._start_over()
        if not concerned:
            self._standing = {
                choice.sequence.sequence_id: choice.sequence.num_output_tokens
                for choice in self._roster.choices.values()
            }

    def _forget(self, request_id: str) -> None:
        forget = self._forget_by()
        assert forget is not None, "recovery outlives its engine"
        forget(request_id)

    def _start_over(self) -> None:
        start_over = self._start_over_by()
        assert start_over is not None, "recovery outlives its engine"
        start_over()

    def _forget_the_told(self) -> None:
        """A finished output in the news was the last of its request."""
        for output in self._news.outputs:
            if output.finished:
                self._forget(output.request_id)

    def _requests_in_hand(self) -> Collection[Request]:
        """One or none."""
        request_id, here = self._in_hand.request_id, self._roster.assemblers
        return [here[request_id].request] if request_id is not None and request_id in here else []

    def _started_over(self) -> Collection[Request]:
        """Whoever has started over before and has not got a token since."""
        here = self._roster.assemblers.values()
        return [each.request for each in here if not each.is_finished and self._stands(each)]

    def _stands(self, assembler: Assembler) -> bool:
        sequences = (choice.sequence for choice in assembler.choices)
        return all(self._standing.get(s.sequence_id) == s.num_output_tokens for s in sequences)

    def _end(self, errors: dict[str, PagodaError]) -> None:
        """End requests; a reason that one was given before stays."""
        for request_id, error in errors.items():
            self._news.errors.setdefault(request_id, error)
            self._forget(request_id)
