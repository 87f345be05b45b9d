"""Tokens of which only hashes are known do in the cache what the tokens themselves would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.cache import CacheManager
from pagoda.cache.hashed_tokens import HashedTokens
from pagoda.errors import BlockTableError, InvalidOptionError

UNIT = 8


def sent(cache: CacheManager, tokens: HashedTokens | list[int], salt: str = "") -> int | None:
    """Tokens found of a prompt that is computed and forgotten; None if it does not fit."""
    table = cache.open(cache_salt=salt)
    match = cache.match(table, tokens)
    cache.acquire(table, tokens, match)
    fits = cache.reserve(table, match.num_tokens, len(tokens)) is not None
    if fits:
        cache.commit(table, tokens, len(tokens))
    cache.check_integrity()
    cache.free(table)
    cache.check_integrity()
    return match.num_tokens if fits else None


def units_of(words: list[int], rest: int) -> tuple[list[int], list[int]]:
    """Ids of chained units, and the tokens that they stand for."""
    ids, tokens, name = [], [], 0
    for word in words:
        name = name * 5 + word + 1
        ids.append(name)
        tokens += [word + 1000] * UNIT
    own = [hash((tuple(words), rest)) % 2**31 + at for at in range(rest)]
    return ids, tokens + own


prompts = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.just(0)),
    min_size=1,
    max_size=12,
)


@given(prompts, st.sampled_from([2, 4, 8, 16]), st.integers(3, 12))
def test_the_cache_does_what_it_does_with_the_tokens(
    asked: list[tuple[list[int], int]], block_size: int, num_blocks: int
) -> None:
    hashed = CacheManager(num_blocks, block_size)
    known = CacheManager(num_blocks, block_size)
    for words, rest in asked:
        ids, tokens = units_of(words, rest)
        salt = str(words[-1] % 2)
        assert sent(hashed, HashedTokens(ids, UNIT, len(tokens)), salt) == sent(known, tokens, salt)
        assert hashed.stats() == known.stats()


def test_tokens_that_no_id_stands_for_are_their_sequences_own() -> None:
    cache = CacheManager(16, 4)
    tokens = HashedTokens([1, 2], UNIT, 24)
    assert sent(cache, tokens) == 0
    assert sent(cache, tokens) == 23  # the same sequence finds all of it
    assert sent(cache, HashedTokens([1, 2], UNIT, 24)) == 16
    assert sent(cache, tokens.copy()) == 16
    assert sent(cache, HashedTokens([1, 2], UNIT, 24), salt="another") == 0


def test_answers_with_ids_are_found() -> None:
    cache = CacheManager(16, 4)
    tokens = HashedTokens([1, 2, 3], UNIT, 10, num_known=24)
    table = cache.open()
    cache.acquire(table, tokens, cache.match(table, tokens))
    cache.reserve(table, 0, 10)
    cache.commit(table, tokens, 10)
    for _ in range(14):
        tokens.append(5)
    cache.reserve(table, 10, 24)
    cache.commit(table, tokens, 24)
    cache.free(table)
    assert sent(cache, HashedTokens([1, 2, 3, 9], UNIT, 32)) == 24


def test_a_table_is_of_one_sequence() -> None:
    cache = CacheManager(16, 4)
    table = cache.open()
    cache.match(table, HashedTokens([1, 2], UNIT, 16))
    cache.match(table, HashedTokens([1, 2, 3], UNIT, 24))  # the same, grown
    for other in (HashedTokens([1, 4], UNIT, 16), list(range(16)), HashedTokens([1], UNIT, 8)):
        with pytest.raises(BlockTableError, match="tokens"):
            cache.match(table, other)


def test_it_reads_as_so_many_tokens() -> None:
    tokens = HashedTokens([1], UNIT, 5)
    tokens.append(77)
    assert (len(tokens), tokens[-1], tokens[2:4], list(tokens)) == (6, 0, (0, 0), [0] * 6)
    with pytest.raises(IndexError):
        tokens[6]


@pytest.mark.parametrize("block_size", [3, 5, 12])
def test_other_block_sizes_are_refused(block_size: int) -> None:
    cache = CacheManager(16, block_size)
    with pytest.raises(InvalidOptionError, match=f"block_size={block_size}: must divide 8, "):
        cache.match(cache.open(), HashedTokens([1, 2, 3], UNIT, 24))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (([1], 0, 5), "unit_size"),
        (([1], UNIT, -1), "num_tokens"),
        (([], UNIT, 5, 5), "num_known"),
        (([1], UNIT, 5, -1), "num_known"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[object, ...], field: str) -> None:
    with pytest.raises(BlockTableError, match=field):
        HashedTokens(*arguments)  # type: ignore[arg-type]
