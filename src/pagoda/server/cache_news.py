"""What a viewer of the cache is told at a time: all that there is to draw."""

from __future__ import annotations

from pydantic import BaseModel

from pagoda.cache.miss import Cause


class TenantNews(BaseModel):
    """What a tenant has. Blocks."""

    name: str
    held: int
    cached: int
    evicted_for_own: int
    """Since the start: blocks of its own that its own sequences took."""
    evicted_for_others: int


class SequenceNews(BaseModel):
    """A sequence that runs. Tokens, unless a name says otherwise."""

    id: str
    """Of its request."""
    index: int
    """Which of the request's choices it is."""
    owner: int
    """The number of its tenant in `tenants`, from 1 on."""
    computed: int
    tokens: int
    prompt: int
    cached: int
    """Of the prompt, what came from a hit."""
    num_blocks: int
    cells: list[int]
    """Where its blocks are on the map: a first cell and a number of cells by turns."""


class MapNews(BaseModel):
    """The pool as a map; see `cache_map`."""

    num_cells: int
    blocks_per_cell: int
    packed: str


class CacheNews(BaseModel):
    """The cache as one viewer may see it."""

    is_operator: bool
    """All tenants are told, and not one alone."""
    num_blocks: int
    block_size: int
    cached: int
    """Blocks that nobody holds and that can be found."""
    held: int
    """Blocks that one sequence holds."""
    shared: int
    """Blocks that several do."""
    hinted: int | None
    """Cached blocks that hints alone keep, for an operator: when others come and go shows in it."""
    tenants: list[TenantNews]
    """An operator's are all, by their numbers; beyond the 254th they are told as one."""
    found: int
    """Tokens that were found when sequences began, since the start."""
    missed: dict[Cause, int]
    """And those that were not."""
    num_running: int
    num_waiting: int
    sequences: list[SequenceNews]
    """Of those that run the first 64."""
    map: MapNews
