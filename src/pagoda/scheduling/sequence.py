"""The mutable run state of one choice of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens
from dataclasses import replace
from enum import Enum

from pagoda.cache import AttentionWindow, BlockTable, CacheManager
from pagoda.cache.hashed_tokens import HashedTokens
from pagoda.cache.prefix import BlockHash
from pagoda.cache.retention import parse_retention
from pagoda.cache.watcher import Lookup
from pagoda.request import Request
from pagoda.scheduling.ending import Ending
from pagoda.scheduling.prefix_load import NOTHING_TO_LOAD, PrefixLoad


class Status(Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """One growing run of tokens: a prompt and what was generated after it.

    Only the scheduler changes a sequence. Tokens are only ever appended.
    """

    __slots__ = (
        "awaited_block",
        "awaited_load",
        "ending",
        "fork_parent",
        "index",
        "lacks_room",
        "lookup",
        "max_num_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_pending_tokens",
        "num_prompt_tokens",
        "output_token_ids",
        "request",
        "sequence_id",
        "status",
        "stay",
        "table",
        "token_ids",
        "wants_prompt_logprobs",
    )

    def __init__(
        self,
        sequence_id: int,
        request: Request,
        index: int,
        table: BlockTable,
        max_num_tokens: int,
    ) -> None:
        self.sequence_id = sequence_id
        self.request = request
        self.index = index
        """Which of the request's n choices this is."""
        self.table = table
        self.max_num_tokens = max_num_tokens
        """Prompt and output together; with so many it ends."""
        self.token_ids = _growing(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.output_token_ids: list[int] = []
        """What follows the prompt in `token_ids`; kept beside it, so that nobody cuts it out."""
        self.wants_prompt_logprobs = index == 0 and request.sampling.prompt_logprobs is not None
        self.num_computed_tokens = 0
        """Tokens whose K and V are in the cache once the steps decided so far are done."""
        self.num_pending_tokens = 0
        """Tokens that these steps draw and nobody knows yet; they come after `token_ids`."""
        self.num_cached_tokens = 0
        """Tokens of the prompt that came from a hit when the sequence first began."""
        self.lookup: Lookup | None = None
        """What came of looking for the prompt when the sequence first began."""
        self.stay = 0
        """How many times it has been preempted, which numbers its stays among the running."""
        self.status = Status.WAITING
        self.ending: Ending | None = None
        """None while it has not ended."""
        self.awaited_block: BlockHash | None = None
        """A block another sequence is computing; nothing is scheduled until it is there."""
        self.awaited_load: PrefixLoad | None = None
        """What it waits for, or has waited for, before it begins; None: nobody was asked since it
        came, or since it was preempted."""
        self.lacks_room = False
        """When its turn came last, it did not fit beside those that run."""
        self.fork_parent: Sequence | None = None
        """The choice that computes the prompt this one will share."""

    @property
    def tenant(self) -> str:
        return self.request.options.tenant

    @property
    def num_tokens(self) -> int:
        """Known and pending."""
        return len(self.token_ids) + self.num_pending_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) + self.num_pending_tokens - self.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    def wants_prompt_rows(self, start: int) -> bool:
        """Logits are asked for of every row that a step computes from position `start` on."""
        return self.wants_prompt_logprobs and start < self.num_prompt_tokens

    def found(self, lookup: Lookup | None, num_tokens: int) -> None:
        """It begins for the first time, with so many tokens of the cache's."""
        self.lookup, self.num_cached_tokens = lookup, num_tokens
        gated = None if self.awaited_load is None else self.awaited_load.gated
        if gated is not None and lookup is not None and lookup.miss is not None:
            lookup.miss = replace(lookup.miss, gated=gated)

    def append(self, token_id: int) -> None:
        """The next token of the output."""
        self.token_ids.append(token_id)
        self.output_token_ids.append(token_id)

    def start_over(self, table: BlockTable) -> None:
        """Wait to be computed again from its tokens, in the blocks of another table.

        A choice forks from the first one if that has yet to compute the prompt.
        """
        self.table = table
        self.stay += self.status is Status.RUNNING
        self.status = Status.WAITING
        self.num_computed_tokens = 0
        self.num_pending_tokens = 0
        self.awaited_block = None
        self.awaited_load = NOTHING_TO_LOAD  # it may have been a load that broke off
        parent = self.fork_parent
        if parent is not None and (parent.ending is not None or parent.num_output_tokens):
            self.fork_parent = None

    def __repr__(self) -> str:
        return (
            f"Sequence({self.sequence_id}, {self.status.value}, "
            f"{self.num_computed_tokens}/{len(self.token_ids)} computed)"
        )


def _growing(prompt_token_ids: Tokens[int]) -> list[int] | HashedTokens:
    """A copy that tokens are appended to; those of a trace stay unknown."""
    if isinstance(prompt_token_ids, HashedTokens):
        return prompt_token_ids.copy()
    return list(prompt_token_ids)


def longest(request: Request, max_model_len: int) -> int:
    """Tokens of prompt and output together that each choice of a request may have."""
    max_tokens = request.sampling.max_tokens
    if max_tokens is None:
        return max_model_len
    return min(len(request.prompt_token_ids) + max_tokens, max_model_len)


def open_table(cache: CacheManager, retention: AttentionWindow, request: Request) -> BlockTable:
    """A table for a sequence of a request; `retention` is for requests that do not say theirs."""
    options = request.options
    if options.kv_retention is not None:
        retention = parse_retention(options.kv_retention)
    return cache.open(tenant=options.tenant, cache_salt=options.cache_salt, retention=retention)


def choices_of(
    request: Request,
    max_num_tokens: int,
    ids: Iterator[int],
    open_table: Callable[[Request], BlockTable],
) -> tuple[Sequence, ...]:
    """A sequence for each of a request's `n` choices; all others wait for the first's prompt."""
    sequences: list[Sequence] = []
    for index in range(request.sampling.n):
        table = open_table(request)
        sequence = Sequence(next(ids), request, index, table, max_num_tokens)
        sequence.fork_parent = sequences[0] if sequences else None
        sequences.append(sequence)
    return tuple(sequences)
