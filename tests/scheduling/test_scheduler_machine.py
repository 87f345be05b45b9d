"""Random traffic over a pool that is too small; whatever happens, every answer is the right one."""

from fake_model import VOCABULARY, FakeModel, expected_output, request
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagoda.cache import AttentionWindow, CacheManager
from pagoda.cache.quota import Quota
from pagoda.cache.watcher import CacheWatcher
from pagoda.cache.window import FULL_ATTENTION
from pagoda.cache_hint import CacheHint
from pagoda.scheduling import Ending, Scheduler, Sequence
from pagoda.scheduling.prefix_loads import PrefixLoads

PROMPTS = st.builds(
    lambda stem, own: [stem] * 6 + own,
    st.integers(0, 1),
    st.lists(st.integers(0, VOCABULARY - 1), max_size=12),
) | st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)


WINDOWS = st.just(FULL_ATTENTION) | st.builds(
    AttentionWindow, st.integers(1, 20), st.integers(0, 3)
)
RETENTIONS = st.sampled_from([None, None, "window:5", "streaming:sinks=2,window=7"])
MANY = 9
"""Requests, of up to three sequences for at most eight seats: a longer queue takes longer."""


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, go and are aborted while steps are taken."""

    @initialize(
        block_size=st.integers(1, 4),
        spare_blocks=st.integers(0, 3),
        budget=st.integers(1, 16),
        seats=st.integers(1, 8),
        threshold=st.integers(0, 4),
        policy=st.sampled_from(["fcfs", "priority"]),
        sharing=st.booleans(),
        prompt_rows=st.integers(1, 8),
        num_ahead=st.integers(0, 3),
        every=st.integers(1, 4),
        windows=st.lists(WINDOWS, min_size=1, max_size=3),
        weight=st.sampled_from([1.0, 0.25, 3.0]),
        floors=st.lists(st.integers(0, 12), max_size=2),
        spare_of_cap=st.none() | st.integers(0, 10),
        steps_aside=st.booleans(),
    )
    def start(
        self,
        block_size: int,
        spare_blocks: int,
        budget: int,
        seats: int,
        threshold: int,
        policy: str,
        sharing: bool,
        prompt_rows: int,
        num_ahead: int,
        every: int,
        windows: list[AttentionWindow],
        weight: float,
        floors: list[int],
        spare_of_cap: int | None,
        steps_aside: bool,
    ) -> None:
        self.max_model_len = 30
        # As few tokens as a layer's own window, some of them sinks, may be one block more.
        under_way = max(budget, block_size) * (num_ahead + 1) + block_size
        longest = sum(
            window.num_blocks(self.max_model_len, block_size, under_way) for window in windows
        )
        self.num_blocks = longest + spare_blocks + sum(floors)
        self.quotas = {
            tenant: Quota(
                floor, None if spare_of_cap is None else max(longest, floor) + spare_of_cap
            )
            for tenant, floor in zip("bc", floors, strict=False)
        }
        self.cache = CacheManager(
            self.num_blocks, block_size, enable_prefix_caching=sharing, windows=windows,
            under_way_tokens=under_way, quotas=self.quotas, watchers=self.watchers(len(windows)),
        )  # fmt: skip
        self.budget, self.seats, self.prompt_rows = budget, seats, prompt_rows
        self.scheduler = Scheduler(
            self.cache,
            max_num_batched_tokens=budget,
            max_num_seqs=seats,
            max_model_len=self.max_model_len,
            policy=policy,
            long_prefill_token_threshold=threshold,
            max_prompt_logit_rows=prompt_rows,
            tenant_weights={"b": weight},
            streams_step_aside=steps_aside,
            loads=self.new_loads(),
        )
        self.steps_aside, self.stalled = steps_aside, set[int]()
        self.model = FakeModel(
            self.scheduler,
            self.num_blocks,
            num_ahead=num_ahead,
            awaits=lambda sequence_id: sequence_id % every == 1,
        )
        self.alive: dict[str, tuple[Sequence, ...]] = {}
        self.count = 0
        self.begin()

    def watchers(self, num_groups: int) -> tuple[CacheWatcher, ...]:
        """Who watches the cache."""
        return ()

    has_loads = False

    def new_loads(self) -> PrefixLoads | None:
        """Who brings prefixes that are not in the cache."""
        return None

    def begin(self) -> None:
        """Everything is there, and nothing has happened."""

    @precondition(lambda self: len(self.alive) < MANY)
    @rule(
        copies=st.integers(1, 3),
        prompt=PROMPTS,
        max_tokens=st.integers(1, 20),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        priority=st.integers(0, 2),
        salt=st.sampled_from(["", "", "a"]),
        tenant=st.sampled_from(["", "", "b", "c"]),
        stops=st.sampled_from([[], [], [0], [1, 2]]),
        prompt_logprobs=st.sampled_from([None, None, 0]),
        retention=RETENTIONS,
        hint=st.none() | st.sampled_from(CacheHint),
    )
    def arrive(
        self,
        copies: int,
        prompt: list[int],
        max_tokens: int,
        n: int,
        priority: int,
        salt: str,
        tenant: str,
        stops: list[int],
        prompt_logprobs: int | None,
        retention: str | None,
        hint: CacheHint | None,
    ) -> None:
        for _ in range(copies):
            self.count += 1
            asked = request(
                str(self.count),
                prompt,
                max_tokens=max_tokens,
                n=n,
                priority=priority,
                cache_salt=salt,
                tenant=tenant,
                arrival_time=self.count,
                stop_token_ids=stops,
                prompt_logprobs=prompt_logprobs,
                kv_retention=retention,
                cache_hint=hint,
            )
            self.alive[asked.request_id] = self.scheduler.add(asked)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.alive)))
        self.scheduler.abort(request_id)
        assert all(sequence.ending for sequence in self.alive.pop(request_id))

    @precondition(lambda self: self.alive)
    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            if self.alive:
                self.step()
                self.cache.check_integrity()

    def step(self) -> None:
        tenants = {
            sequence.sequence_id: sequence.tenant
            for sequences in self.alive.values()
            for sequence in sequences
        }
        streams = {
            sequence.sequence_id
            for sequence in self.scheduler._running
            if sequence.num_uncomputed_tokens == 1
            and not sequence.wants_prompt_rows(sequence.num_computed_tokens)
            and not self.is_held(sequence)
        }
        is_idle = self.has_nothing_to_compute()
        num_preemptions = self.scheduler._num_preemptions
        num_prompt_tokens = {
            sequence.sequence_id: sequence.num_prompt_tokens
            for sequences in self.alive.values()
            for sequence in sequences
            if sequence.wants_prompt_logprobs
        }
        plan = self.model.step()
        assert plan.num_scheduled_tokens <= self.budget
        if not plan.sequences and not is_idle and not self.has_nothing_to_compute():
            assert self.scheduler._num_preemptions > num_preemptions, "a step in vain"
        assert len(plan.sequences) <= self.seats
        prompt_rows = [
            one.num_logit_rows
            for one in plan.sequences
            if one.start < num_prompt_tokens.get(one.sequence_id, 0)
        ]
        assert sum(prompt_rows) <= self.prompt_rows
        if self.scheduler._num_preemptions == 0:
            scheduled = {one.sequence_id for one in plan.sequences}
            stalled = streams - scheduled
            if stalled:
                assert self.steps_aside
                assert not self.stalled & stalled, "a stream stalled twice in a row"
                (first,) = {tenants[sequence_id] for sequence_id in scheduled}
                assert first not in {tenants[sequence_id] for sequence_id in stalled}
                # Whoever is admitted in place of one that waits for its load may be longer.
                is_in_vain = not any(one.samples for one in plan.sequences)
                assert self.has_loads or not is_in_vain, "streams stepped aside in vain"
            self.stalled = stalled
        self.collect()

    def has_nothing_to_compute(self) -> bool:
        """Whoever runs waits for a token, or nobody runs and whoever was preempted does."""
        running, waiting = list(self.scheduler._running), list(self.scheduler._waiting)
        if running:
            return all(map(self.is_held, running))
        return any(sequence.num_pending_tokens for sequence in waiting)

    def is_held(self, sequence: Sequence) -> bool:
        """Nothing more may be computed of it before its pending token is known."""
        asked = sequence.request
        assert asked.sampling.max_tokens is not None
        longest = len(asked.prompt_token_ids) + asked.sampling.max_tokens
        is_full = sequence.num_tokens == min(longest, self.max_model_len)
        return sequence.num_pending_tokens > 0 and (
            is_full or self.model.awaits(sequence.sequence_id)
        )

    def collect(self) -> None:
        for request_id, sequences in list(self.alive.items()):
            if all(sequence.ending for sequence in sequences):
                del self.alive[request_id]
            for sequence in sequences:
                if sequence.ending:
                    self.check_answer(sequence)

    def check_answer(self, sequence: Sequence) -> None:
        asked = sequence.request
        assert asked.sampling.max_tokens is not None
        stops = asked.stop_token_ids
        expected = expected_output(
            asked.prompt_token_ids, asked.sampling.max_tokens, self.max_model_len, stops
        )
        assert sequence.output_token_ids == expected
        last = expected[-1]
        assert sequence.ending == (Ending("stop", last) if last in stops else Ending("length"))

    @invariant()
    def everything_holds(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity()
        holdings = self.cache.holdings()
        num_due = sum(
            max(0, quota.floor - (holdings[tenant].num_held if tenant in holdings else 0))
            for tenant, quota in self.quotas.items()
        )
        assert self.cache.num_free_blocks >= num_due, "others hold what is due to a tenant"

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        event("preempted" if self.scheduler.stats().num_preemptions else "never preempted")
        self.finish()

    def finish(self) -> None:
        """Answer whoever is left; nothing is left then."""
        for _ in range(1000 * (1 + len(self.alive))):
            if not self.scheduler.has_unfinished:
                break
            self.step()
        assert not self.alive
        assert not self.scheduler.has_unfinished
        self.cache.check_integrity()
        assert self.cache.num_free_blocks == self.num_blocks


TestSchedulerMachine = SchedulerMachine.TestCase
