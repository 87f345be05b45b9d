"""An engine without a model: the interface of `AsyncEngine`, answers made of numbered words."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from dataclasses import replace
from typing import Any

from pagoda.cache import NO_MATCH, CacheManager
from pagoda.cache.accounts import Holding
from pagoda.cache.curve import HitRateCurve
from pagoda.cache.explainer import MissExplainer
from pagoda.engine.block_lives import BlockLives
from pagoda.engine.cache_snapshot import CacheSnapshot
from pagoda.engine.meter import TokenCounts
from pagoda.engine.outputs import CompletionOutput, Logprob, RequestOutput
from pagoda.engine.sessions.desk import SessionDesk
from pagoda.engine.sessions.support import SessionSupport
from pagoda.engine.stats import EngineStats
from pagoda.engine.step_watch import HungStep, StepWatch
from pagoda.engine.timeline import Timeline
from pagoda.engine.transfers.transfer_stats import TransferStats
from pagoda.engine.usage import Usage
from pagoda.errors import (
    ContextLengthError,
    EngineError,
    InvalidRequestError,
    RequestTimeoutError,
)
from pagoda.models.chat_options import DEFAULT_CHAT_OPTIONS, ChatOptions
from pagoda.models.tool_prompt import ToolFormat
from pagoda.request import DEFAULT_REQUEST_OPTIONS, RequestOptions, SamplingParams
from pagoda.scheduling import SchedulerStats
from pagoda.sizing.held_weights import HeldWeights
from pagoda.sizing.stored_cache import StoredCache
from pagoda.tiers.shelf_stats import ShelfCounts, ShelfStats
from pagoda.tiers.tier import TierUsage

MODEL = "fake-model"
OTHER_NAME = "fake"
MAX_MODEL_LEN = 64
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven")
FIRST_WORD_ID = 1000
OTHER_BYTES = {0: b"", 1: "é".encode(), 2: b""}
"""Tokens that are neither words nor characters of their ids."""


class FakeTokenizer:
    """A token is a character; `check` refuses token ids of a conversation."""

    def __init__(self, check: Callable[[str, list[int]], None]) -> None:
        self.has_chat_template = True
        self.tool_format: ToolFormat = "hermes"
        self.template_names = frozenset({"enable_thinking"})
        self.chat_template = ""
        self.marks: Sequence[str] = ()
        """Tokens that stand around a thought, from id 2000 on."""
        self.begun_answer = ""
        """What each prompt says of the answer already."""
        self.tools: list[dict[str, object]] = []
        """Tools of the last conversation."""
        self.messages: list[dict[str, Any]] = []
        """Its messages."""
        self.options = DEFAULT_CHAT_OPTIONS
        """How it was told."""
        self._check = check

    async def chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, object]] = (),
        options: ChatOptions = DEFAULT_CHAT_OPTIONS,
        *,
        tenant: str = "",
        to_answer: bool = True,
    ) -> list[int]:
        self.tools, self.messages, self.options = list(tools), list(messages), options
        text = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        token_ids = [ord(character) for character in text]
        if to_answer:
            self._check("messages", token_ids)
        return token_ids

    async def prompt(self, text: str, *, tenant: str = "") -> list[int]:
        token_ids = [ord(character) for character in text]
        self._check("prompt", token_ids)
        return token_ids

    async def encode(
        self, text: str, add_special_tokens: bool = True, *, tenant: str = ""
    ) -> list[int]:
        return [1] * add_special_tokens + [ord(character) for character in text]

    async def decode(
        self, token_ids: Sequence[int], field: str = "tokens", *, tenant: str = ""
    ) -> str:
        if any(token_id > 0x10FFFF for token_id in token_ids):
            raise InvalidRequestError(field, max(token_ids), "must be a character")
        return "".join(chr(token_id) for token_id in token_ids)

    def token_id(self, token: str) -> int | None:
        return 2000 + self.marks.index(token) if token in self.marks else None

    def begun(self, prompt_token_ids: Sequence[int], beside: frozenset[int]) -> str:
        return self.begun_answer

    def token_text(self, token_id: int) -> str:
        return chr(token_id)

    special_ids: frozenset[int] = frozenset()

    def text_bytes(
        self, params: SamplingParams, shown_ids: Set[int] = frozenset()
    ) -> Callable[[int], bytes]:
        return self.token_bytes

    def token_bytes(self, token_id: int) -> bytes:
        place = token_id - FIRST_WORD_ID
        if 0 <= place < len(WORDS):
            return WORDS[place].encode()
        return OTHER_BYTES.get(token_id, chr(token_id).encode())


class FakeTransfers:
    """A tier that has done and suffered everything."""

    lossy_form = "kvtc-5x"

    def stats(self) -> TransferStats:
        counts = ShelfCounts(rejected=Counter(checksum=1), failures=Counter(timeout=2))
        usage = TierUsage(3, 4096, None)
        shelf = ShelfStats("disk", True, True, 0.001, 1e9, usage, counts)
        return TransferStats((shelf,), 64, 32, {"whole": 1}, self.lossy_form)


class FakeEngine:
    """Choice c of a prompt says the words from c on; a prompt seen before counts as cached.

    `hold` keeps every request from its second token until it is set; `fail` makes requests fail
    there. `started` and `ended` name the requests in order, `aborted` those that were closed early.
    `says` are the pieces of a text that it says instead of the words, until it stops.
    """

    def renew(self) -> None:
        """Be as at first, whatever a test has made of it.

        A server's thread may use it meanwhile: it has all its attributes at any time.
        """
        fresh = vars(FakeEngine())
        vars(self).update(fresh)
        for name in vars(self).keys() - fresh.keys():
            delattr(self, name)

    def __init__(self) -> None:
        self.model_name = MODEL
        self.model_names = (MODEL, OTHER_NAME)
        self.max_model_len = MAX_MODEL_LEN
        self.max_num_seqs = 2
        self.stored = StoredCache(
            "int8_per_token_head",
            "bfloat16",
            (0, 29),
            1000,
            12_944,
            560,
            23_040,
            None,
            None,
            "window:64",
            block_bytes=207_104,
            max_model_len=MAX_MODEL_LEN,
        )
        self.held = HeldWeights(2**28, 2**28, "bfloat16", ("Q4_1", "Q8_0"), ("F32",))
        self.num_resets = 0
        self.timeline = Timeline()
        self.curve = HitRateCurve(40, 32, "slru")
        cache = CacheManager(40, 32, watchers=[self.curve])
        cache.acquire(cache.open(), [1], NO_MATCH)
        self.block_lives = BlockLives()
        self.sessions = SessionDesk(SessionSupport(), lambda do: do())
        self.transfers = FakeTransfers()
        self.tokenizer = FakeTokenizer(self._check)
        self.says: Sequence[str] = ()
        self.is_alive = True
        self.watch = StepWatch()
        self.hold: asyncio.Event | None = None
        self.fail: Exception | None = None
        self.asked: list[dict[str, object]] = []
        self.started: list[str] = []
        self.ended: list[str] = []
        self.aborted: list[str] = []
        self.is_running = False
        self.is_warm = False
        self._seen: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._generated = 0

    @property
    def step_age_s(self) -> float:
        return self.watch.age_s

    def hung_step(self, timeout_s: float) -> HungStep | None:
        return self.watch.hung(timeout_s)

    def where(self) -> str:
        return "in a kernel"

    def warm_up(self) -> None:
        self.is_warm = True

    def start(self) -> None:
        self.is_running = True

    async def shutdown(self, timeout_s: float | None = None) -> None:
        self.is_running = False

    def usage(self) -> dict[str, Usage]:
        return {"": Usage(TokenCounts(2, 30, 8, 24, 5), Holding(3, 4, 60.0, 20.0))}

    async def reset_prefix_cache(self) -> None:
        self.num_resets += 1

    def stats(self) -> EngineStats:
        return EngineStats(
            scheduler=SchedulerStats(
                num_running=len(self.started) - len(self.ended),
                num_waiting=0,
                num_preemptions=3,
                num_computed_tokens=50,
                num_finished={"stop": 7, "length": 2},
            ),
            cache=replace(
                CacheManager(num_blocks=40, block_size=32).stats(),
                num_free_blocks=30,
                prefix_queries=200,
                prefix_hits=150,
            ),
            prompt_tokens=120,
            prompt_tokens_cached=70,
            prompt_tokens_computed=50,
            generation_tokens=self._generated,
        )

    async def cache_snapshot(self) -> CacheSnapshot:
        return CacheSnapshot.of(CacheManager(40, 32), (), MissExplainer(40, 32))

    async def generate(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        options: RequestOptions = DEFAULT_REQUEST_OPTIONS,
        streams: bool = True,
        timeout_s: float | None = None,
        arrived_at: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        token_ids = [ord(c) for c in prompt] if isinstance(prompt, str) else list(prompt)
        self._check("prompt", token_ids)
        self.asked.append(
            {
                "prompt": prompt,
                "sampling": sampling,
                "options": options,
                "arrived_at": arrived_at,
            }
        )
        key = (options.cache_salt, tuple(token_ids))
        num_cached = len(token_ids) - 1 if self._seen[key] else 0
        self._seen[key] += 1
        limit = sampling.max_tokens or len(self.says or WORDS)
        if self.says:
            limit = min(limit, len(self.says))
        self.started.append(request_id)
        finished = False
        try:
            for count in range(1, limit + 1):
                if count == 2:
                    await self._pause(timeout_s)
                await asyncio.sleep(0)
                finished = count == limit
                self._generated += sampling.n
                self.timeline.num_generation_tokens += sampling.n
                outputs = [
                    self._choice(index, count, limit, sampling) for index in range(sampling.n)
                ]
                yield RequestOutput(
                    request_id=request_id,
                    prompt=prompt if isinstance(prompt, str) else None,
                    prompt_token_ids=token_ids,
                    prompt_logprobs=_prompt_logprobs(token_ids, sampling),
                    outputs=outputs,
                    finished=finished,
                    num_cached_tokens=num_cached,
                )
        finally:
            self.ended.append(request_id)
            if not finished:
                self.aborted.append(request_id)

    def _choice(
        self, index: int, count: int, limit: int, sampling: SamplingParams
    ) -> CompletionOutput:
        choice = _choice(index, count, limit, sampling)
        if not self.says:
            return choice
        ended = "stop" if count == len(self.says) else choice.finish_reason
        return replace(choice, text="".join(self.says[:count]), finish_reason=ended)

    async def _pause(self, timeout_s: float | None) -> None:
        if self.hold is not None:
            try:
                await asyncio.wait_for(self.hold.wait(), timeout_s)
            except TimeoutError:
                raise RequestTimeoutError(timeout_s or 0.0) from None
        if self.fail is not None:
            raise self.fail

    def _check(self, field: str, token_ids: list[int]) -> None:
        if not token_ids:
            raise InvalidRequestError(field, "", "must hold at least one token")
        if len(token_ids) >= MAX_MODEL_LEN:
            limit = f"at most {MAX_MODEL_LEN - 1}"
            raise ContextLengthError(
                field,
                f"{len(token_ids)} tokens",
                limit,
                max_model_len=MAX_MODEL_LEN,
                requested=f"{len(token_ids) + 1} tokens",
            )


def engine_failure() -> EngineError:
    return EngineError("block 17 of the secret pool is on fire")


def words(start: int, count: int) -> list[str]:
    """The words that choice `start` says first."""
    return [WORDS[(start + step) % len(WORDS)] for step in range(count)]


def _choice(index: int, count: int, limit: int, sampling: SamplingParams) -> CompletionOutput:
    said = words(index, count)
    token_ids = [FIRST_WORD_ID + WORDS.index(word) for word in said]
    logprobs = None
    if sampling.logprobs is not None:
        logprobs = [_candidates(token_id, sampling.logprobs) for token_id in token_ids]
    return CompletionOutput(
        index=index,
        text=" ".join(said),
        token_ids=token_ids,
        cumulative_logprob=None,
        logprobs=logprobs,
        finish_reason="length" if count == limit else None,
        stop_reason=None,
        delta=said[-1],
    )


def _candidates(token_id: int, num_top: int) -> dict[int, Logprob]:
    """The chosen token second, behind an impossible likelier one, then ever less likely ones."""
    chosen = {token_id: Logprob(-1.0, 2, WORDS[token_id - FIRST_WORD_ID])}
    others = {1: Logprob(-0.5, 1, "é"), 2: Logprob(float("-inf"), 3, None)}
    kept = list(others.items())[: max(0, num_top)]
    return {**chosen, **dict(kept)}


def _prompt_logprobs(
    token_ids: list[int], sampling: SamplingParams
) -> list[dict[int, Logprob] | None] | None:
    if sampling.prompt_logprobs is None:
        return None
    likelier = {1: Logprob(-0.5, 1, "é"), 2: Logprob(-1.5, 2, "")}
    kept = dict(list(likelier.items())[: sampling.prompt_logprobs])
    own = ({token_id: Logprob(-2.0, 4, chr(token_id))} for token_id in token_ids[1:])
    return [None, *({**each, **kept} for each in own)]
