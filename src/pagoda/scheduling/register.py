"""All unfinished sequences, by their ids and by their requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pagoda.scheduling.sequence import Sequence


class Register:
    """Who is here: waiting or running."""

    def __init__(self, sequences: Iterable[Sequence] = ()) -> None:
        self.by_id: dict[int, Sequence] = {}
        """To be read alone."""
        self._by_request: dict[str, list[Sequence]] = {}
        self.add(sequences)

    def add(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self.by_id[sequence.sequence_id] = sequence
            self._by_request.setdefault(sequence.request.request_id, []).append(sequence)

    def discard(self, sequences: Iterable[Sequence]) -> None:
        """No effect on those that are not here."""
        for sequence in sequences:
            self.by_id.pop(sequence.sequence_id, None)
            request_id = sequence.request.request_id
            siblings = [each for each in self.of(request_id) if each is not sequence]
            if siblings:
                self._by_request[request_id] = siblings
            else:
                self._by_request.pop(request_id, None)

    def has_request(self, request_id: str) -> bool:
        return request_id in self._by_request

    def of(self, request_id: str) -> list[Sequence]:
        """A request's sequences, in the order of its choices."""
        return self._by_request.get(request_id, [])[:]

    def get(self, sequence_id: int) -> Sequence | None:
        return self.by_id.get(sequence_id)

    def __getitem__(self, sequence_id: int) -> Sequence:
        """Raises KeyError if there is none of that id."""
        return self.by_id[sequence_id]

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self.by_id

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)
