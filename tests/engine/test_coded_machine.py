"""Random lives of an engine under every codec: whatever happens, each answer is the one alone."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from ahead import let_run_ahead
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from checkpoints import Case, write_checkpoint
from pagoda.cache import EVICTION_POLICIES
from pagoda.cache.formats import CODED_FORMATS
from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.core import Engine
from pagoda.engine.options import EngineOptions
from pagoda.engine.outputs import CompletionOutput, RequestOutput
from pagoda.request import RequestOptions, SamplingParams

BLOCK_SIZE = 16
LONGEST = 80
MOST_TOKENS = 17
NUM_LAYERS = 6
SHAPE = {
    "head_dim": 64,
    "num_hidden_layers": NUM_LAYERS,
    "use_sliding_window": True,
    "sliding_window": 20,
    "max_window_layers": 4,
}
STEMS = np.random.default_rng(3).integers(256, size=(2, LONGEST - MOST_TOKENS)).tolist()
PROMPTS = st.builds(
    lambda stem, own, cut: (*STEMS[stem][:cut], *own),
    st.integers(0, 1),
    st.lists(st.integers(0, 255), min_size=1, max_size=6),
    st.sampled_from([0, 5, 16, 20, 31, 32, 33, 47, 48]),
)
NAMES = (*CODED_FORMATS, "levels5-float16-norm-hadamard/levels4-float16-offset")
FOLDER = tempfile.TemporaryDirectory()
"""Of the model, whose tokenizer is read where a format is calibrated. It has the same name in each
run, so that what is calibrated is found again."""
Told = list[tuple[int, float]]


@cache
def model() -> Model:
    """Random weights in float32, some layers with a window."""
    directory = write_checkpoint(Path(FOLDER.name) / "coded", Case("qwen3", SHAPE))
    return load_model(EngineOptions(model=str(directory), max_model_len=LONGEST))


@dataclass(frozen=True)
class Mix:
    """How K and V are stored."""

    dtype: str
    skip_layers: tuple[int, ...]

    def engine(self, **options: Any) -> Engine:
        """A new engine."""
        return connect(model(), self.options(**options))

    def options(self, **options: Any) -> EngineOptions:
        """Those of an engine."""
        return EngineOptions(
            kv_cache_dtype=self.dtype,
            kv_cache_dtype_skip_layers=self.skip_layers,
            block_size=BLOCK_SIZE,
            threads=1,
            **options,
        )


@dataclass(frozen=True)
class Asked:
    """A request: what its answer depends on, but for the number of tokens."""

    prompt: tuple[int, ...]
    n: int
    seed: int | None
    """None: the likeliest token."""

    def params(self, max_tokens: int) -> SamplingParams:
        return SamplingParams(
            temperature=0 if self.seed is None else 1,
            seed=self.seed,
            n=self.n,
            max_tokens=max_tokens,
            ignore_eos=True,
            logprobs=0,
        )


@cache
def alone(mix: Mix) -> Engine:
    """An engine for one request at a time, which shares nothing but among its choices."""
    return mix.engine(num_gpu_blocks_override=60, enable_prefix_caching=False)


@cache
def expected(mix: Mix, asked: Asked, max_tokens: int) -> list[Told]:
    """Of each choice."""
    engine = alone(mix)
    engine.add(engine.intake.request("alone", asked.prompt, asked.params(max_tokens)))
    outputs: list[RequestOutput] = []
    while engine.has_unfinished:
        outputs += engine.step()
    return list(map(told, outputs[-1].outputs))


def told(choice: CompletionOutput) -> Told:
    """Tokens, and how likely each was."""
    assert choice.logprobs is not None
    return [
        (token_id, entry[token_id].logprob)
        for token_id, entry in zip(choice.token_ids, choice.logprobs, strict=True)
    ]


class CodedMachine(RuleBasedStateMachine):
    """Requests that share beginnings come, go and are aborted, over a pool that is too small."""

    @initialize(
        name=st.sampled_from(NAMES),
        skipped=st.sets(st.integers(0, NUM_LAYERS - 1), max_size=3),
        spare_blocks=st.integers(0, 7),
        budget=st.integers(1, 70),
        seats=st.integers(1, 8),
        threshold=st.sampled_from([0, 0, 5, 16]),
        sharing=st.sampled_from([True, True, True, False]),
        eviction=st.sampled_from(sorted(EVICTION_POLICIES)),
        policy=st.sampled_from(["fcfs", "priority"]),
        is_ahead=st.booleans(),
    )
    def start(
        self,
        name: str,
        skipped: set[int],
        spare_blocks: int,
        budget: int,
        seats: int,
        threshold: int,
        sharing: bool,
        eviction: str,
        policy: str,
        is_ahead: bool,
    ) -> None:
        self.mix = Mix(name, tuple(sorted(skipped)))
        asked = self.mix.options(num_gpu_blocks_override=10**4, max_num_batched_tokens=budget)
        spec = model().loaded.size(asked, LONGEST).capacity.spec
        if is_ahead:  # windows keep what two steps compute
            spare_blocks += -(-budget // BLOCK_SIZE) * len(spec.groups)
        engine = self.mix.engine(
            num_gpu_blocks_override=spec.num_blocks(LONGEST) + spare_blocks,
            max_num_batched_tokens=budget,
            max_num_seqs=seats,
            long_prefill_token_threshold=threshold,
            enable_prefix_caching=sharing,
            eviction_policy=eviction,
            scheduling_policy=policy,
        )
        self.engine = let_run_ahead(engine) if is_ahead else engine
        self.alive: dict[str, tuple[Asked, int]] = {}
        self.count = 0

    @rule(
        copies=st.integers(1, 2),
        prompt=PROMPTS,
        max_tokens=st.integers(1, MOST_TOKENS),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        seed=st.sampled_from([None, None, 1, 2]),
        priority=st.integers(0, 2),
        salt=st.sampled_from(["", "", "a"]),
    )
    def arrive(
        self,
        copies: int,
        prompt: tuple[int, ...],
        max_tokens: int,
        n: int,
        seed: int | None,
        priority: int,
        salt: str,
    ) -> None:
        asked = Asked(prompt, n if seed is not None else 1, seed)
        options = RequestOptions(priority=priority, cache_salt=salt)
        for _ in range(copies):
            self.count += 1
            request_id = str(self.count)
            params = asked.params(max_tokens)
            self.engine.add(
                self.engine.intake.request(request_id, prompt, params, options), streams=False
            )
            self.alive[request_id] = asked, max_tokens

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.alive)))
        self.engine.abort(request_id)
        del self.alive[request_id]

    @precondition(lambda self: self.alive)
    @rule(count=st.integers(1, 8))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        for output in self.engine.step():
            answers = expected(self.mix, *self.alive.pop(output.request_id))
            assert list(map(told, output.outputs)) == answers
        self.engine.scheduler.cache.check_integrity()

    @rule()
    def reset(self) -> None:
        self.engine.reset_prefix_cache()

    @invariant()
    def everything_holds(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.cache.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(1000 * (1 + len(self.alive))):
            if not self.engine.has_unfinished:
                break
            self.step()
        assert not self.alive
        assert not self.engine.has_unfinished
        stats = self.engine.stats()
        event("preempted" if stats.num_preemptions else "never preempted")
        event("shared" if stats.prefix_cache_hits else "never shared")
        assert stats.cache.num_free_blocks == stats.num_blocks


TestCodedMachine = CodedMachine.TestCase
if settings.default.max_examples < 100:  # half a second each: the quick profile has fewer
    TestCodedMachine.settings = settings(max_examples=12)
