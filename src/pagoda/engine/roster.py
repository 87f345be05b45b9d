"""The roster of an engine: the requests that run or wait, and their choices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagoda.engine.assembler import Assembler
from pagoda.engine.choice import Choice
from pagoda.request import Request
from pagoda.scheduling import Sequence as RunningSequence


class Roster:
    """Finds what the engine keeps of a request by the ids that a step plan and a caller name.

    A request is on it from `add` to `remove`: also choices that have ended, while others go on.
    `assemblers` says who is; the other two find them quickly.
    """

    def __init__(self) -> None:
        self.assemblers: dict[str, Assembler] = {}
        """By request id."""
        self.choices: dict[int, Choice] = {}
        """By sequence id."""
        self.constrained: dict[int, Choice] = {}
        """The choices that follow a grammar, by sequence id."""

    def add(self, assembler: Assembler) -> None:
        """Take on a request and all of its choices."""
        self.assemblers[assembler.request.request_id] = assembler
        self._enter(assembler)

    def remove(self, request_id: str) -> Sequence[Choice]:
        """Forget a request; returns its choices, none if it is not here."""
        assembler = self.assemblers.pop(request_id, None)
        if assembler is None:
            return ()
        for choice in assembler.choices:
            self.choices.pop(choice.sequence.sequence_id, None)
            self.constrained.pop(choice.sequence.sequence_id, None)
        return assembler.choices

    def find_choices(self) -> None:
        """Find all choices anew, after a call that broke off."""
        self.choices, self.constrained = {}, {}
        for assembler in self.assemblers.values():
            self._enter(assembler)

    def unfinished(self) -> list[RunningSequence]:
        """The sequences that have not ended, in the order in which their requests came."""
        sequences = (choice.sequence for choice in self.choices.values())
        return [sequence for sequence in sequences if sequence.ending is None]

    def _enter(self, assembler: Assembler) -> None:
        for choice in assembler.choices:
            sequence_id = choice.sequence.sequence_id
            self.choices[sequence_id] = choice
            if choice.sampling_row.matcher is not None:
                self.constrained[sequence_id] = choice

    def requests_of(self, sequence_ids: Iterable[int]) -> list[Request]:
        """The requests of those sequences that are here, each once."""
        found: dict[str, Request] = {}
        for sequence_id in sequence_ids:
            choice = self.choices.get(sequence_id)
            if choice is not None:
                request = choice.sequence.request
                found[request.request_id] = request
        return list(found.values())
