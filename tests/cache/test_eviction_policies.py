"""What is each eviction policy's own; what all must keep to is in `test_eviction.py`."""

import random
from hashlib import sha256

import pytest

from pagoda.cache import CacheManager, EvictionPolicy
from pagoda.cache.evictions.arc import ARC
from pagoda.cache.evictions.gdsf import GDSF
from pagoda.cache.evictions.ghosts import Ghost, Ghosts
from pagoda.cache.evictions.lfu import LFU
from pagoda.cache.evictions.lru_shadow import LRUShadow
from pagoda.cache.evictions.rank_queue import RankQueue
from pagoda.cache.evictions.s3fifo import S3FIFO
from pagoda.cache.record import NO_BLOCK, BlockRecord


def hold(policy: EvictionPolicy, block_id: int, content: int, parent: int = NO_BLOCK) -> None:
    policy.publish(block_id, BlockRecord(sha256(b"%d" % content).digest(), parent, 0))
    policy.add(block_id)


def use(policy: EvictionPolicy, block_id: int, times: int = 1) -> None:
    for _ in range(times):
        policy.hit(block_id)
        policy.add(block_id)


def test_arc_gives_room_to_the_list_whose_ghosts_are_used() -> None:
    policy = ARC(4)
    for block_id in range(4):
        hold(policy, block_id, block_id)
    use(policy, 0)
    assert policy.evict() == 1, "nothing should be held yet for having been used once"
    hold(policy, 1, 1)
    assert list(policy) == [2, 3, 0, 1], "what was given up too soon is used often"
    assert [policy.evict(), policy.evict()] == [2, 0], "one that was used once has its place now"


@pytest.mark.parametrize("make", [ARC, LFU, GDSF, S3FIFO])
def test_no_more_is_remembered_than_there_are_blocks(make: type[ARC]) -> None:
    policy = make(8)
    for content in range(200):
        block_id = content if content < 8 else policy.evict()
        hold(policy, block_id, content)
        if content % 3 == 0:
            use(policy, block_id)
    ghosts = [
        each for name, each in vars(policy).items() if "ghosts_of" in name or name == "_ghosts"
    ]
    assert ghosts
    assert all(0 < len(each) <= 8 for each in ghosts)


def test_s3fifo_lets_a_scan_pass_by() -> None:
    policy = S3FIFO(10)
    for block_id in range(10):
        hold(policy, block_id, block_id)
    for block_id in (2, 5):
        use(policy, block_id)
    for content in range(100, 140):
        hold(policy, policy.evict(), content)
    assert {2, 5} <= set(policy)


def test_s3fifo_knows_a_newcomer_again() -> None:
    policy = S3FIFO(4)
    for block_id in range(4):
        hold(policy, block_id, block_id)
    assert policy.evict() == 0
    hold(policy, 0, 0)
    assert list(policy) == [1, 2, 3, 0]
    assert [policy.evict() for _ in range(3)] == [1, 2, 3]


def test_lfu_keeps_what_is_used_often_and_not_for_ever() -> None:
    policy = LFU(3)
    for block_id in range(3):
        hold(policy, block_id, block_id)
    use(policy, 0, times=4)
    given_up = []
    for content in range(100, 120):
        given_up.append(policy.evict())
        hold(policy, given_up[-1], content)
    assert given_up[:3] == [1, 2, 1]
    assert 0 in given_up, "its uses grow old"


def test_gdsf_keeps_what_takes_longer_to_compute() -> None:
    policy = GDSF(4)
    hold(policy, 0, 0)
    hold(policy, 1, 1, parent=0)
    hold(policy, 2, 2, parent=1)
    hold(policy, 3, 3)
    assert [policy.evict() for _ in range(4)] == [0, 3, 1, 2]


def test_a_rank_queue_gives_up_the_least() -> None:
    source, queue, held = random.Random(3), RankQueue(40), dict[int, tuple[float, int]]()
    for number in range(3000):
        block_id = source.randrange(40)
        if block_id not in held:
            held[block_id] = (source.randrange(5), number)
            queue.put(block_id, held[block_id][0])
        elif source.random() < 0.5:
            del held[block_id]
            queue.remove(block_id)
        else:
            least = min(held, key=held.__getitem__)
            assert queue.pop() == (least, held.pop(least)[0])
        assert list(queue) == sorted(held, key=held.__getitem__)
        assert len(queue) == len(held)
        assert len(queue._heap) <= 2 * 40 + 64
    for block_id in held:
        queue.remove(block_id)
    with pytest.raises(KeyError):
        queue.pop()
    with pytest.raises(KeyError):
        queue.remove(0)


def test_ghosts_are_forgotten_in_order() -> None:
    ghosts = Ghosts(3)
    told = {key: Ghost(key % 2, 10 * key, key) for key in range(6)}
    assert [ghosts.put(key, told[key]) for key in range(3)] == [None] * 3
    assert ghosts.pop(1) == told[1]
    assert ghosts.pop(1) is None
    assert ghosts.put(3, told[3]) == told[0]
    assert ghosts.put(4, told[4]) is None, "whose place it is, is no ghost any more"
    assert ghosts.put(5, told[5]) == told[2]
    assert len(ghosts) == 3


def test_a_shadow_knows_what_the_real_cache_lacks() -> None:
    source, shadow = random.Random(5), LRUShadow()
    order, lacking = list[int](), set[int]()
    for now in range(1, 4000):
        key, what = source.randrange(60), source.randrange(4)
        if what == 0:
            assert shadow.drop(key) == (key in order)
            order = [each for each in order if each != key]
        elif what == 1:
            shadow.put(key, now)
            order = [each for each in order if each != key] + [key]
            lacking.discard(key)
        elif what == 2:
            shadow.given_up(key)
            lacking |= {key} & set(order)
        else:
            shadow.shrink(25)
            order = order[-25:]
        lacking &= set(order)
        assert shadow.num_apart == len(lacking)


def hit_rate(policy: str, chains: list[list[int]], num_blocks: int) -> float:
    """In percent, of the blocks that are asked for."""
    cache = CacheManager(num_blocks, 2, eviction=policy)
    for chain in chains:
        tokens = [token for each in chain for token in (each, each)] + [0]
        table = cache.open()
        match = cache.match(table, tokens)
        cache.acquire(table, tokens, match)
        assert cache.reserve(table, match.num_tokens, len(tokens)) is not None
        cache.commit(table, tokens, len(tokens))
        cache.free(table)
    cache.check_integrity()
    stats = cache.stats()
    return 100 * stats.prefix_hits / stats.prefix_queries


def recent(num: int, distance: float, seed: int) -> list[list[int]]:
    """Chains of three of which half were asked for a while ago: nothing beats recency."""
    source, names = random.Random(seed), list[int]()
    for number in range(num):
        back = int(source.expovariate(1 / distance)) + 1
        is_old = source.random() < 0.5 and back <= len(names)
        names.append(names[-back] if is_old else number)
    return [[3 * name + 1, 3 * name + 2, 3 * name + 3] for name in names]


@pytest.mark.parametrize(("seed", "num_blocks"), [(0, 60), (1, 150)])
def test_density_is_never_far_behind_lru(seed: int, num_blocks: int) -> None:
    chains = recent(2000, 40, seed) + recent(2000, 15, seed + 9)
    assert hit_rate("density", chains, num_blocks) > hit_rate("lru", chains, num_blocks) - 0.5


def test_density_keeps_what_scans_push_out() -> None:
    source, chains = random.Random(1), list[list[int]]()
    for number in range(4000):
        is_scan = number % 100 >= 60
        chains.append([10_000 + number] if is_scan else [1 + source.randrange(80)])
    assert hit_rate("density", chains, 90) > hit_rate("lru", chains, 90) + 5
