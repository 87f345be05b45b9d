"""The cache alone, beside a dictionary that forgets what was used least recently."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import pytest

from pagoda.cache import CacheManager
from pagoda.errors import CapacityError, InvalidOptionError
from pagoda.replay.cache_replay import replay_cache
from pagoda.replay.what_if import CacheSetting, replay_caches, settings_of
from replay.traces import UNIT, ListedTrace, asked, prefixes


def plain_lru(walks: Sequence[Sequence[int]], num_blocks: int) -> int:
    """Blocks found: no reference counts, no tables, no keys."""
    kept: OrderedDict[int, None] = OrderedDict()
    found = 0
    for walk in walks:
        for name in walk:
            if name not in kept:
                break
            found += 1
        for name in reversed(walk):
            kept.pop(name, None)
            kept[name] = None
        while len(kept) > num_blocks:
            kept.popitem(last=False)
    return found


@pytest.mark.parametrize("num_blocks", [6, 11, 23, 60])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lru_finds_what_a_dictionary_finds(num_blocks: int, seed: int) -> None:
    # A token behind the blocks: a prompt of nothing but blocks computes its last token again, in a
    # copy of its last block. It takes a block while a request runs, so the pool has one more.
    walks = prefixes(seed, 300)
    requests = [asked(walk, rest=1) for walk in walks]
    outcome = replay_cache(requests, CacheManager(num_blocks + 1, UNIT))
    assert outcome.num_hit_tokens == plain_lru(walks, num_blocks) * UNIT
    assert outcome.num_prompt_tokens == sum(len(walk) * UNIT + 1 for walk in walks)
    roomy = replay_cache(requests, CacheManager(1000, UNIT))
    assert roomy.num_hit_tokens == plain_lru(walks, 999) * UNIT
    assert roomy.num_evictions == 0


def test_an_unfinished_unit_with_an_id_counts_as_a_block() -> None:
    request = asked([1, 2], rest=-2, num_known=6)
    published = replay_cache([request, request], CacheManager(8, UNIT))
    served = replay_cache([request, request], CacheManager(8, UNIT), whole_blocks=False)
    assert (published.num_prompt_tokens, published.num_hit_tokens) == (16, 7)
    assert (served.num_prompt_tokens, served.num_hit_tokens) == (12, 4)


def test_answers_that_ids_stand_for_are_kept() -> None:
    first = asked([1], output=8, answer_ids=[2, 3])
    outcome = replay_cache([first, asked([1, 2, 3, 4])], CacheManager(8, UNIT))
    assert outcome.num_hit_tokens == 12


def test_tenants_and_salts_share_nothing() -> None:
    requests = [asked([1, 2], **each) for each in ({}, {"tenant": "a"}, {"cache_salt": "a"})]
    assert replay_cache(requests, CacheManager(16, UNIT)).num_hit_tokens == 0


def test_requests_that_cannot_fit_are_counted() -> None:
    outcome = replay_cache([asked([1, 2, 3]), asked([1]), asked([1])], CacheManager(2, UNIT))
    assert (outcome.num_requests, outcome.num_refused, outcome.num_hit_tokens) == (2, 1, 3)
    with pytest.raises(CapacityError, match="num_blocks=2: none of 1 requests fits"):
        list(replay_caches(ListedTrace([asked([1, 2, 3])]), [CacheSetting(2, UNIT, "lru")]))


def test_answers_that_no_id_stands_for_must_fit_too() -> None:
    requests = [asked([1], output=length) for length in (3 * UNIT, 3 * UNIT + 1, 100_000)]
    for whole_blocks in (True, False):
        cache = CacheManager(4, UNIT)
        outcome = replay_cache(requests, cache, whole_blocks=whole_blocks)
        assert (outcome.num_requests, list(outcome.refused)) == (1, [1, 2])


def test_the_rest_of_an_unfinished_block_is_room_for_an_answer() -> None:
    request = asked([1, 2], rest=-2, output=2, num_known=6)
    assert replay_cache([request], CacheManager(2, UNIT)).num_requests == 1


def test_a_prompt_of_all_blocks_that_there_are() -> None:
    whole = asked([1, 2])
    outcome = replay_cache([whole, whole], CacheManager(2, UNIT))
    assert (outcome.num_requests, outcome.num_hit_tokens) == (2, 7)


def test_settings_are_tried_in_turn() -> None:
    trace = ListedTrace([asked(walk) for walk in prefixes(1, 100)])
    settings = settings_of([8, 20], [UNIT, 2 * UNIT], ["lru", "slru"], UNIT)
    answers = list(replay_caches(trace, settings))
    assert [answer.setting for answer in answers] == settings
    for answer in answers:
        assert answer.optimum is not None
        alone = replay_cache(trace, answer.setting.cache())
        assert alone == answer.outcome
        assert answer.outcome.hit_rate <= answer.optimum.hit_rate <= 1
        assert answer.optimum.hit_rate <= answer.optimum.unbounded_hit_rate
    [bare] = replay_caches(trace, settings[:1], with_optimum=False)
    assert bare.optimum is None
    assert bare.as_json()["optimal_hit_rate"] is None


@pytest.mark.parametrize(
    ("blocks", "sizes", "policies", "message"),
    [
        ([0], [4], ["lru"], "num_blocks=0"),
        ([5], [0], ["lru"], "block_size=0"),
        ([5], [3], ["lru"], "block_size=3: must divide 4, "),
        ([5], [4], ["mru"], "eviction_policy='mru': one of arc, density, "),
    ],
)
def test_settings_that_cannot_be_are_refused(
    blocks: list[int], sizes: list[int], policies: list[str], message: str
) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        settings_of(blocks, sizes, policies, UNIT)
