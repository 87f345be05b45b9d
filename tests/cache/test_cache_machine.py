"""Random lives of sequences over one cache, with every invariant checked after each operation."""

from collections import Counter, deque
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paged_tokens import PagedTokens, written_for
from pagoda.cache import EVICTION_POLICIES, AttentionWindow, BlockTable, CacheManager
from pagoda.cache.prefix import block_key
from pagoda.cache.quota import Quota
from pagoda.cache.window import FULL_ATTENTION
from pagoda.cache_hint import CacheHint

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14)
SALTS = st.sampled_from(["", "a"])
TENANTS = st.sampled_from(["", "b", "c"])
QUOTAS = st.dictionaries(
    st.sampled_from("bc"),
    st.builds(
        lambda floor, more: Quota(floor, None if more is None else floor + more),
        st.integers(0, 4),
        st.none() | st.integers(1, 6),
    ),
)
HINTS = st.none() | st.sampled_from(CacheHint)
WINDOWS = st.builds(AttentionWindow, st.integers(1, 9), st.integers(0, 3)) | st.just(FULL_ATTENTION)


@dataclass(eq=False)
class Life:
    """A sequence as the test sees it."""

    table: BlockTable
    salt: str
    tokens: list[int]
    num_computed: int = 0
    first_row: int = 0
    """Rows from here on may be computed."""
    is_running: bool = False
    stay: int = 0


class CacheMachine(RuleBasedStateMachine):
    """Sequences of few distinct tokens, so that prefixes meet, over a pool that is too small."""

    @initialize(
        num_blocks=st.integers(2, 12),
        block_size=st.integers(1, 4),
        sharing=st.booleans(),
        eviction=st.sampled_from(sorted(EVICTION_POLICIES)),
        num_ahead=st.integers(0, 3),
        windows=st.lists(WINDOWS, min_size=1, max_size=3),
        quotas=QUOTAS,
    )
    def start(
        self, num_blocks: int, block_size: int, sharing: bool, eviction: str, num_ahead: int,
        windows: list[AttentionWindow], quotas: dict[str, Quota],
    ) -> None:  # fmt: skip
        num_blocks = num_blocks * len(windows) + sum(quota.floor for quota in quotas.values())
        self.quotas = quotas
        self.cache = CacheManager(
            num_blocks, block_size, enable_prefix_caching=sharing, eviction=eviction,
            windows=windows, quotas=quotas,
        )  # fmt: skip
        self.storage = PagedTokens(num_blocks, block_size)
        self.num_blocks = num_blocks
        self.lives: list[Life] = []
        self.num_ahead = num_ahead
        self.outstanding: deque[tuple[Life, int, int]] = deque()

    def running(self) -> list[Life]:
        return [life for life in self.lives if life.is_running]

    def waiting(self) -> list[Life]:
        return [life for life in self.lives if not life.is_running]

    @rule(tokens=TOKENS, salt=SALTS, tenant=TENANTS, retention=WINDOWS)
    def arrive(self, tokens: list[int], salt: str, tenant: str, retention: AttentionWindow) -> None:
        table = self.cache.open(tenant=tenant, cache_salt=salt, retention=retention)
        self.lives.append(Life(table, written_for(salt, retention, tenant), tokens))

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), patient=st.booleans())
    def begin(self, data: st.DataObject, patient: bool) -> None:
        life = data.draw(st.sampled_from(self.waiting()))
        match = self.cache.match(life.table, life.tokens)
        assert match.num_tokens < len(life.tokens)
        if match.in_flight is not None and patient:
            return
        assert self.storage.holds(
            match.block_ids, life.tokens, match.num_tokens, life.salt, life.table.windows
        )
        num_needed = self.cache.num_blocks_to_admit(match.num_tokens, match, life.table.windows)
        if num_needed > self.cache.allowance(life.table).num_blocks:
            return
        self.cache.acquire(life.table, life.tokens, match)
        life.num_computed = life.first_row = match.num_tokens
        life.is_running = True

    @precondition(lambda self: self.running())
    @rule(data=st.data(), count=st.integers(1, 6))
    def compute(self, data: st.DataObject, count: int) -> None:
        life = data.draw(st.sampled_from(self.running()))
        start = life.num_computed
        stop = min(start + count, len(life.tokens))
        if start == stop:
            return
        held, free = list(life.table.block_ids), self.cache.num_free_blocks
        allowed, kept = self.cache.allowance(life.table).num_blocks, self.kept_for_others(life)
        num_groups = life.table.num_groups
        grown = max(-(-stop // self.cache.block_size) * num_groups - len(held), 0)
        copied = self.unwritable(life, start, stop)
        copies = self.cache.reserve(life.table, start, stop)
        if copies is None:
            assert grown + len(copied) > allowed
            assert (list(life.table.block_ids), self.cache.num_free_blocks) == (held, free)
            return
        assert kept <= self.kept_for_others(life), "what a floor keeps was evicted for another"
        assert [copy.source for copy in copies] == copied
        assert len(life.table.block_ids) == len(held) + grown
        self.storage.copy(copies)
        self.refuse_shared_writes(life, start, stop)
        self.storage.write(life.table.block_ids, life.tokens, start, stop, life.salt, num_groups)
        life.num_computed = stop
        self.outstanding.append((life, life.stay, stop))
        while len(self.outstanding) > self.num_ahead:
            self.conclude()

    def kept_for_others(self, life: Life) -> Counter[str]:
        """Cached blocks of tenants that nobody else may take."""
        return Counter(
            {
                tenant: min(holding.num_cached, quota.floor - holding.num_held)
                for tenant, quota in self.quotas.items()
                if tenant != life.table.origin.tenant
                and (holding := self.cache.holdings().get(tenant)) is not None
                and holding.num_held < quota.floor
            }
        )

    def conclude(self) -> None:
        """The oldest write that is outstanding is heard of; its stay may be over by then."""
        life, stay, stop = self.outstanding.popleft()
        if life.stay == stay:
            self.cache.commit(life.table, life.tokens, stop)
            life.first_row = max(life.first_row, stop - 1)  # it may be computed again

    def written_to(self, life: Life, start: int, stop: int) -> list[int]:
        size, num_groups = self.cache.block_size, life.table.num_groups
        first, last = start // size * num_groups, -(-stop // size) * num_groups
        return list(life.table.block_ids[first:last])

    def unwritable(self, life: Life, start: int, stop: int) -> list[int]:
        """Blocks among those that would be written to which others hold or can find."""
        return [
            block_id
            for block_id in self.written_to(life, start, stop)
            if sum(block_id in other.table.block_ids for other in self.lives) > 1
            or block_id in self.cache._blocks.index
        ]

    def refuse_shared_writes(self, life: Life, start: int, stop: int) -> None:
        for block_id in self.written_to(life, start, stop):
            holders = [other for other in self.lives if block_id in other.table.block_ids]
            assert holders == [life]
            assert block_id not in self.cache._blocks.index

    @precondition(lambda self: self.running())
    @rule(data=st.data(), tokens=TOKENS)
    def generate(self, data: st.DataObject, tokens: list[int]) -> None:
        life = data.draw(st.sampled_from(self.running()))
        if life.num_computed == len(life.tokens):
            life.tokens.extend(tokens)

    @precondition(lambda self: any(life.num_computed for life in self.running()))
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parents = [life for life in self.running() if life.num_computed]
        parent = data.draw(st.sampled_from(parents))
        least = parent.first_row + 1
        if all(window.is_full for window in parent.table.windows):
            least = 1
        if least > parent.num_computed:
            return
        count = data.draw(st.integers(least, parent.num_computed))
        table = self.cache.fork(parent.table, count)
        child = Life(table, parent.salt, parent.tokens[:count], count, is_running=True)
        child.first_row = max(parent.first_row, count - 1)
        self.lives.append(child)

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        life = data.draw(st.sampled_from(self.running()))
        self.cache.free(life.table)
        life.num_computed, life.first_row, life.is_running = 0, 0, False
        life.stay += 1

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), hint=HINTS)
    def end(self, data: st.DataObject, hint: CacheHint | None) -> None:
        life = data.draw(st.sampled_from(self.lives))
        if life.is_running:
            self.cache.free(life.table, hint)
        self.lives.remove(life)
        life.stay += 1

    @rule()
    def forget(self) -> None:
        self.cache.forget()
        assert self.cache.stats().num_cached_blocks == 0

    @invariant()
    def everything_holds(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity()
        self.storage.check_published(self.cache)
        holdings = self.cache.holdings()
        due = (
            quota.floor - holdings[tenant].num_held if tenant in holdings else quota.floor
            for tenant, quota in self.quotas.items()
        )
        assert self.cache.num_free_blocks >= sum(max(0, each) for each in due)
        for life in self.lives:
            assert self.storage.holds(
                life.table.block_ids, life.tokens, life.num_computed, life.salt,
                life.table.windows, life.first_row,
            )  # fmt: skip
            parent, size = life.table.root, self.cache.block_size
            for index, key in enumerate(life.table.keys):
                assert key == block_key(parent, life.tokens[index * size : (index + 1) * size])
                parent = key.hash

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for life in self.running():
            self.cache.free(life.table)
        self.cache.check_integrity()
        assert self.cache.num_free_blocks == self.num_blocks


TestCacheMachine = CacheMachine.TestCase
