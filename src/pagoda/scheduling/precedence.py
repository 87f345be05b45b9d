"""Whose first token goes before the next tokens of others.

A step with many streams in it takes longer than a prompt alone would. Where one tenant streams and
another, which has been served less, begins, the streams step aside for that one step:

    together    | 16 streams and the prompt |                first token after all of it
    aside       | the prompt | 16 streams and the first's next |

The streams have their tokens as late as before, but for what weights cost that are read once more:
little where a step takes as long as its rows do, on a CPU, and much where it takes as long as its
weights, on a GPU, whose streams go on. Never two steps in a row, and only where the prompt is done
with in one step, so that no stream waits for more than that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pagoda.cache import CacheManager
from pagoda.scheduling.admitter import is_held_up
from pagoda.scheduling.queue import Lane, OrderedSequences, in_order
from pagoda.scheduling.sequence import Sequence
from pagoda.scheduling.service import Service


class Precedence:
    """Says which lane has a step to itself, if any."""

    def __init__(
        self,
        cache: CacheManager,
        service: Service,
        running: OrderedSequences,
        waiting: OrderedSequences,
        *,
        budget: int,
        most_tokens: int,
    ) -> None:
        """`budget`: tokens of a step; 0: nobody ever steps aside. `most_tokens`: of a sequence."""
        self._cache = cache
        self._service = service
        self._running = running
        self._waiting = waiting
        self._budget = budget
        self._most_tokens = most_tokens
        self._was_given = False

    @property
    def is_given(self) -> bool:
        """Some lane may have a step to itself, one day."""
        return self._budget > 0

    def lane(self, streams: Iterable[Sequence]) -> Lane | None:
        """The lane whose tenant has been served least, where those of the running `streams` whose
        tenants were served more step aside for its next prompt; None: nobody does."""
        if not self.is_given or self._was_given or self._service.num_tenants == 1:
            return None
        lane = next(iter(in_order(self._running.lanes | self._waiting.lanes, self._service)), None)
        if lane is None:
            return None
        num_streams = Counter(each.tenant for each in streams)
        num_own = num_streams.pop(lane.tenant, 0)
        num_tokens = self._next_prompt(lane) if num_streams else None
        if num_tokens is None or num_tokens > min(self._most_tokens, self._budget - num_own):
            return None
        is_due = self._service.stays_behind(lane.tenant, num_tokens, num_streams)
        return lane if is_due else None

    def settle(self, *, is_given: bool) -> None:
        """Note whether a lane has this step to itself: once a step."""
        self._was_given = is_given

    def _next_prompt(self, lane: Lane) -> int | None:
        """Tokens that the next prompt of a lane lacks; None: it has none that could go on."""
        for sequence in self._running.of(lane):
            if sequence.num_uncomputed_tokens > 1:
                return self._lacking(sequence, sequence.num_computed_tokens)
        for sequence in self._waiting.of(lane):
            if not is_held_up(sequence, self._cache):
                match = self._cache.match(sequence.table, sequence.token_ids)
                return self._lacking(sequence, match.num_tokens)
        return None

    @staticmethod
    def _lacking(sequence: Sequence, num_there: int) -> int | None:
        """None: rows of logits, which are bounded, may take it several steps."""
        return None if sequence.wants_prompt_logprobs else sequence.num_tokens - num_there
