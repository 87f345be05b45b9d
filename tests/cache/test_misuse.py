"""Every misuse of the cache is a typed error that names its field, and nothing has changed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from pagoda.cache import NO_MATCH, BlockTable, CacheManager, PrefixMatch
from pagoda.errors import BlockTableError, InvalidOptionError

SIZE = 4
TOKENS = list(range(14))


class Cast(NamedTuple):
    """A cache, and tables in every state: the calls of a misuse choose among them."""

    cache: CacheManager
    held: BlockTable
    """Holds 3 blocks for 10 computed tokens."""
    fresh: BlockTable
    matched: BlockTable
    """Has matched the tokens of `held`, and acquired nothing."""
    freed: BlockTable
    foreign: BlockTable
    """Another cache's, which holds what `held` holds."""


def computed(cache: CacheManager) -> BlockTable:
    table = cache.open()
    cache.acquire(table, TOKENS[:10], cache.match(table, TOKENS[:10]))
    cache.reserve(table, 0, 10)
    cache.commit(table, TOKENS, 10)
    return table


def cast(sharing: bool) -> Cast:
    cache = CacheManager(16, SIZE, enable_prefix_caching=sharing)
    other = CacheManager(16, SIZE, enable_prefix_caching=sharing)
    held, fresh, matched, freed = computed(cache), cache.open(), cache.open(), cache.open()
    cache.match(matched, TOKENS)
    cache.acquire(freed, [7] * 9, NO_MATCH)
    cache.free(freed)
    return Cast(cache, held, fresh, matched, freed, computed(other))


Misuse = tuple[str, str, Callable[[Cast], Any]]

ALWAYS: list[Misuse] = [
    # what is no table of this cache
    ("match None", "table", lambda c: c.cache.match(None, TOKENS)),
    ("acquire None", "table", lambda c: c.cache.acquire(None, TOKENS, NO_MATCH)),
    ("reserve None", "table", lambda c: c.cache.reserve(None, 0, 4)),
    ("commit None", "table", lambda c: c.cache.commit(None, TOKENS, 0)),
    ("fork None", "table", lambda c: c.cache.fork(None, 4)),
    ("free None", "table", lambda c: c.cache.free(None)),
    ("free a list", "table", lambda c: c.cache.free([])),
    ("go on with None", "table", lambda c: c.cache.num_blocks_to_go_on(None, 4)),
    ("go on with another's", "table", lambda c: c.cache.num_blocks_to_go_on(c.foreign, 100)),
    ("reserve within another's", "table", lambda c: c.cache.reserve(c.foreign, 9, 10)),
    ("reserve another's from 0", "table", lambda c: c.cache.reserve(c.foreign, 0, 4)),
    ("commit into another's", "table", lambda c: c.cache.commit(c.foreign, TOKENS, 10)),
    ("reserve a table of nobody", "table", lambda c: c.cache.reserve(BlockTable(), 0, 4)),
    # what is no number, or one that is out of bounds
    ("commit -4", "num_computed", lambda c: c.cache.commit(c.held, TOKENS, -4)),
    ("commit 1000", "num_computed", lambda c: c.cache.commit(c.held, TOKENS * 100, 1000)),
    ("commit 13 of 3 blocks", "num_computed", lambda c: c.cache.commit(c.held, TOKENS, 13)),
    ("commit 11 of 10 tokens", "num_computed", lambda c: c.cache.commit(c.held, TOKENS[:10], 11)),
    ("commit None tokens", "num_computed", lambda c: c.cache.commit(c.held, TOKENS, None)),
    ("commit text", "num_computed", lambda c: c.cache.commit(c.held, TOKENS, "12")),
    ("commit what nobody holds", "table", lambda c: c.cache.commit(c.fresh, TOKENS, 1)),
    ("commit what was freed", "table", lambda c: c.cache.commit(c.freed, [7] * 9, 8)),
    ("reserve floats", "start", lambda c: c.cache.reserve(c.held, 10.0, 14.0)),
    ("reserve to a float", "stop", lambda c: c.cache.reserve(c.held, 10, 14.0)),
    ("reserve from text", "start", lambda c: c.cache.reserve(c.held, "0", 14)),
    ("reserve from None", "start", lambda c: c.cache.reserve(c.held, None, 14)),
    ("reserve to None", "stop", lambda c: c.cache.reserve(c.held, 10, None)),
    ("reserve an array", "start", lambda c: c.cache.reserve(c.held, np.array([8, 9]), 14)),
    ("reserve from True", "start", lambda c: c.cache.reserve(c.held, True, 14)),
    ("reserve backwards", "stop", lambda c: c.cache.reserve(c.held, 9, 6)),
    ("reserve behind a gap", "start", lambda c: c.cache.reserve(c.held, 13, 14)),
    ("reserve from -1", "start", lambda c: c.cache.reserve(c.held, -1, 4)),
    ("reserve before acquiring", "start", lambda c: c.cache.reserve(c.matched, 8, 14)),
    ("fork a float", "num_tokens", lambda c: c.cache.fork(c.held, 4.0)),
    ("fork None tokens", "num_tokens", lambda c: c.cache.fork(c.held, None)),
    ("fork -1", "num_tokens", lambda c: c.cache.fork(c.held, -1)),
    ("fork 13", "num_tokens", lambda c: c.cache.fork(c.held, 13)),
    ("go on with -1", "num_tokens", lambda c: c.cache.num_blocks_to_go_on(c.held, -1)),
    ("go on with a float", "num_tokens", lambda c: c.cache.num_blocks_to_go_on(c.held, 9.0)),
    ("admit -5", "num_tokens", lambda c: c.cache.num_blocks_to_admit(-5, NO_MATCH)),
    ("admit a float", "num_tokens", lambda c: c.cache.num_blocks_to_admit(5.0, NO_MATCH)),
    (
        "admit less than the match",
        "num_tokens",
        lambda c: c.cache.num_blocks_to_admit(7, PrefixMatch((0, 1), 8)),
    ),
    # what is no match
    ("admit None", "match", lambda c: c.cache.num_blocks_to_admit(5, None)),
    ("admit others", "match", lambda c: c.cache.num_blocks_to_admit(5, PrefixMatch((99,), 4))),
    ("acquire no match", "match", lambda c: c.cache.acquire(c.fresh, TOKENS, None)),
    ("acquire a number", "match", lambda c: c.cache.acquire(c.fresh, TOKENS, 8)),
    (
        "acquire what is not cached",
        "match",
        lambda c: c.cache.acquire(c.fresh, [9] * 14, PrefixMatch((0, 1), 8)),
    ),
    ("wait for None", "block_hash", lambda c: c.cache.is_in_flight(None)),
    ("wait for a list", "block_hash", lambda c: c.cache.is_in_flight([])),
    # what are no tokens
    *(
        (f"match {name}", "tokens", lambda c, tokens=tokens: c.cache.match(c.fresh, tokens))
        for name, tokens in [
            ("None", None),
            ("a number", 5),
            ("text", "hello"),
            ("a set", {1, 2, 3, 4, 5}),
            ("an array of floats", np.arange(10.0)),
            ("an array of rows", np.zeros((2, 5), np.int64)),
        ]
    ),
    ("acquire None tokens", "tokens", lambda c: c.cache.acquire(c.fresh, None, NO_MATCH)),
    ("commit of None", "tokens", lambda c: c.cache.commit(c.held, None, 5)),
]

WHEN_SHARING: list[Misuse] = [
    # without prefix caching nothing is published: a float changes nothing, tokens are not read
    ("commit a float", "num_computed", lambda c: c.cache.commit(c.held, TOKENS, 12.0)),
    ("match floats", "tokens", lambda c: c.cache.match(c.fresh, [0.5] * 9)),
    ("match Nones", "tokens", lambda c: c.cache.match(c.fresh, [None] * 9)),
    ("match -1", "tokens", lambda c: c.cache.match(c.fresh, np.full(9, -1))),
    ("commit others", "tokens", lambda c: c.cache.commit(c.held, [9] * 12, 12)),
]


@pytest.mark.parametrize(
    ("sharing", "misuse"),
    [(sharing, misuse) for sharing in (True, False) for misuse in ALWAYS]
    + [(True, misuse) for misuse in WHEN_SHARING],
    ids=lambda value: value[0] if isinstance(value, tuple) else f"sharing={value}",
)
def test_a_misuse_is_a_typed_error_and_changes_nothing(sharing: bool, misuse: Misuse) -> None:
    _, field, call = misuse
    cache, *tables = people = cast(sharing)

    def state() -> list[tuple[Any, ...]]:
        return [
            (list(t.block_ids), t.keys[:], t.num_committed, t.num_forked, t.num_shared, t.is_freed)
            for t in tables
        ]

    before, counts = state(), cache.stats()
    with pytest.raises(BlockTableError) as refused:
        call(people)
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}=")
    assert state() == before
    assert cache.stats() == counts
    cache.check_integrity()
    for table in (people.held, people.matched):
        cache.free(table)
    assert cache.num_free_blocks == 16


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("tenant", lambda: CacheManager(4, SIZE).open(tenant=None)),
        ("cache_salt", lambda: CacheManager(4, SIZE).open(cache_salt=5)),
        ("codec", lambda: CacheManager(4, SIZE, codec=None)),
        ("enable_prefix_caching", lambda: CacheManager(4, SIZE, enable_prefix_caching=None)),
        ("num_blocks", lambda: CacheManager(None, SIZE)),
        ("block_size", lambda: CacheManager(4, 4.0)),
    ],
)
def test_an_option_of_the_wrong_type_is_refused(field: str, call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidOptionError) as refused:
        call()
    assert refused.value.field == field


def test_a_match_that_was_not_acquired_is_told_from_a_gap() -> None:
    people = cast(sharing=True)
    with pytest.raises(BlockTableError, match="a match has to be acquired first"):
        people.cache.reserve(people.matched, 8, 14)
    with pytest.raises(BlockTableError, match="0 to 12, the slots that the table has"):
        people.cache.reserve(people.held, 13, 14)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_numbers_and_arrays_of_numpy_are_whole_numbers_and_tokens(dtype: type) -> None:
    cache, held, fresh, *_ = cast(sharing=True)
    tokens = np.arange(200, dtype=dtype)
    match = cache.match(fresh, tokens)
    assert match == cache.match(cache.open(), tokens.tolist())
    cache.acquire(fresh, tokens, match)
    assert cache.reserve(fresh, dtype(8), dtype(14)) == ()
    cache.commit(fresh, tokens, dtype(14))
    assert cache.num_blocks_to_go_on(fresh, dtype(17)) == 2
    assert cache.num_blocks_to_admit(dtype(17), match) == 3
    assert len(cache.fork(fresh, dtype(9))) == 3
    assert (fresh.num_committed, held.num_committed) == (3, 2)
    assert cache.match(cache.open(), np.array([], dtype=dtype)) == NO_MATCH
    cache.check_integrity()


@pytest.mark.parametrize("sharing", [True, False])
def test_a_float_within_the_slots_changes_nothing(sharing: bool) -> None:
    cache, held, *_ = cast(sharing)
    before = (list(held.block_ids), held.keys[:], held.num_committed, cache.stats())
    assert cache.reserve(held, 9.0, 10.0) == ()
    cache.commit(held, TOKENS, 10.0)
    assert (list(held.block_ids), held.keys, held.num_committed, cache.stats()) == before


def test_keys_go_to_a_new_table_of_the_same_origin_alone() -> None:
    cache, tokens = CacheManager(4, SIZE), list(range(3 * SIZE + 1))
    known, new, other = cache.open(), cache.open(), cache.open(tenant="other")
    cache.match(known, tokens)
    new.take_keys(known, tokens[: 2 * SIZE], SIZE)
    assert new.keys == known.keys[:2]
    assert len(known.keys) == 3
    for table in (new, other):
        with pytest.raises(BlockTableError, match="a new one of the same origin"):
            table.take_keys(known, tokens, SIZE)
    assert (len(new.keys), other.keys) == (2, [])
