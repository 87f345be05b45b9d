"""The flags of `pagoda replay`, and the settings that they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Protocol

from pagoda.byte_size import parse_byte_size
from pagoda.cache.evictions import DEFAULT_POLICY
from pagoda.cli.flags import LISTED, SWITCH, TEXT, TOKENS, WHOLE, WHOLES, Flag, FlagGroup
from pagoda.errors import InvalidOptionError

if TYPE_CHECKING:
    from pagoda.replay.schedule_what_if import SchedulerSetting
    from pagoda.replay.step_cost import StepCost
    from pagoda.replay.trace import Trace
    from pagoda.replay.what_if import CacheSetting

_AUTO = ("auto",)


class StoredAs(Protocol):
    """Whose keys and values a pool holds, and in which formats."""

    @property
    def dtypes(self) -> Sequence[str]: ...

    def blocks_in(self, memory_bytes: int, block_size: int, dtype: str) -> int: ...


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The caches that are tried; None: as the recorded server's."""

    cache_only: bool = False
    format: str | None = None
    num_blocks: tuple[int, ...] | None = None
    kv_cache_memory_bytes: Sequence[str] = ()
    block_size: tuple[int, ...] | None = None
    eviction_policy: Sequence[str] = ()
    full_blocks_only: bool = False
    no_optimum: bool = False

    def caches(self, trace: Trace, stored: StoredAs) -> list[CacheSetting]:
        """Sizes in bytes are of a model and of formats that are `stored`.

        Raises `RefusedError` for what cannot be, and where no size is known.
        """
        from pagoda.replay.what_if import settings_of

        if self.kv_cache_memory_bytes and self.num_blocks:
            limit = "says how many blocks there are, as --kv-cache-memory-bytes does: give one"
            raise InvalidOptionError("num_blocks", self.num_blocks, limit)
        recorded = trace.recorded
        num_blocks, block_sizes = self.num_blocks, self.block_size
        policies = tuple(self.eviction_policy)
        if recorded is not None:
            num_blocks = num_blocks or (recorded.num_blocks,)
            block_sizes = block_sizes or (recorded.block_size,)
            policies = policies or (recorded.eviction_policy,)
        sizes = block_sizes or (trace.unit_size,)
        if self.kv_cache_memory_bytes:
            memories = [
                parse_byte_size("kv_cache_memory_bytes", each)
                for each in self.kv_cache_memory_bytes
            ]
            return [
                each
                for size, dtype in product(sizes, stored.dtypes)
                for each in settings_of(
                    [stored.blocks_in(memory, size, dtype) for memory in memories],
                    [size], policies or (DEFAULT_POLICY,), trace.unit_size, dtype,
                )
            ]  # fmt: skip
        if len(stored.dtypes) > 1:
            limit = "are several: then --kv-cache-memory-bytes says what each of them may take"
            raise InvalidOptionError("kv_cache_dtype", ",".join(stored.dtypes), limit)
        if num_blocks is None:
            limit = "how many blocks the pool has: 5000, or 2000,5000,10000; or its bytes, by "
            limit += "--kv-cache-memory-bytes and --model"
            raise InvalidOptionError("num_blocks", None, limit)
        return settings_of(num_blocks, sizes, policies or (DEFAULT_POLICY,), trace.unit_size)


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """The schedulers that are tried, and how long their steps take; None: as recorded."""

    max_num_batched_tokens: tuple[int, ...] | None = None
    max_num_seqs: tuple[int, ...] | None = None
    max_model_len: int | None = None
    scheduling_policy: str | None = None
    long_prefill_token_threshold: int | None = None
    step_cost: str | None = None
    model: str | None = None
    gpu: str | None = None
    tensor_parallel_size: int = 1
    quantization: str | None = None
    kv_cache_dtype: Sequence[str] = ()

    @property
    def dtypes(self) -> Sequence[str]:
        """Formats of keys and values that are tried."""
        return tuple(self.kv_cache_dtype) or _AUTO

    def blocks_in(self, memory_bytes: int, block_size: int, dtype: str) -> int:
        """Blocks of the model's that a memory holds. Raises `RefusedError` for what cannot be."""
        from pagoda.cli.plan_model import find_facts
        from pagoda.replay.pool_memory import blocks_in

        if self.model is None:
            limit = "whose keys and values --kv-cache-memory-bytes is to hold, as for `pagoda plan`"
            raise InvalidOptionError("model", None, limit)
        return blocks_in(find_facts(self.model), memory_bytes, block_size, dtype)

    def schedulers(self, trace: Trace) -> list[SchedulerSetting]:
        """Each that is asked for."""
        from pagoda.replay.schedule_what_if import SchedulerSetting

        recorded = trace.recorded
        usual = SchedulerSetting()
        if recorded is not None:
            usual = SchedulerSetting(
                max_num_batched_tokens=recorded.max_num_batched_tokens,
                max_num_seqs=recorded.max_num_seqs,
                max_model_len=recorded.max_model_len,
                scheduling_policy=recorded.scheduling_policy,
                long_prefill_token_threshold=recorded.long_prefill_token_threshold,
                steps_ahead=recorded.steps_ahead,
                tenant_quotas=recorded.tenant_quotas,
                quota_num_blocks=recorded.num_blocks,
                streams_step_aside=recorded.streams_step_aside,
            )
        budgets = self.max_num_batched_tokens or (usual.max_num_batched_tokens,)
        seats = self.max_num_seqs or (usual.max_num_seqs,)
        threshold = self.long_prefill_token_threshold
        return [
            SchedulerSetting(
                max_num_batched_tokens=budget,
                max_num_seqs=num_seqs,
                max_model_len=self.max_model_len or usual.max_model_len,
                scheduling_policy=self.scheduling_policy or usual.scheduling_policy,
                long_prefill_token_threshold=(
                    usual.long_prefill_token_threshold if threshold is None else threshold
                ),
                steps_ahead=usual.steps_ahead,
                tenant_quotas=usual.tenant_quotas,
                quota_num_blocks=usual.quota_num_blocks,
                streams_step_aside=usual.streams_step_aside,
            )
            for budget, num_seqs in product(budgets, seats)
        ]

    def cost(self, dtype: str | None = None) -> StepCost:
        """How long steps take where keys and values are of `dtype`; None: as is said of all.

        Raises `RefusedError` for what cannot be.
        """
        from pagoda.replay.step_cost import USUAL_COST, FloorCost
        from pagoda.replay.step_fit import read_cost

        if self.gpu is None and (self.model is None or dtype is not None):
            return USUAL_COST if self.step_cost is None else read_cost(self.step_cost)
        if self.step_cost is not None:
            limit = "--gpu and --model say how long steps take as well: give one of the two"
            raise InvalidOptionError("step_cost", self.step_cost, limit)
        if self.gpu is None:
            raise InvalidOptionError("gpu", None, "where the model runs: H100, L4, MI300X …")
        if self.model is None:
            raise InvalidOptionError("model", None, "what runs there, as for `pagoda plan`")
        from pagoda.cli.plan_model import find_facts
        from pagoda.planning.request import PlanRequest
        from pagoda.planning.step_floor import step_floor
        from pagoda.planning.tables import find_accelerator

        find_accelerator(self.gpu, instead="--step-cost")
        request = PlanRequest(
            gpu=self.gpu,
            tensor_parallel_size=self.tensor_parallel_size,
            quantization=self.quantization,
            kv_cache_dtype=dtype or self.dtypes[0],
        )
        return FloorCost(step_floor(find_facts(self.model), request))


REPLAY_FLAGS = FlagGroup(
    "options",
    ReplayOptions,
    (
        Flag(
            "cache_only",
            SWITCH,
            "One request after another, without a scheduler; answers that no id of the trace "
            "stands for take no room.",
        ),
        Flag("format", TEXT, "mooncake, pagoda, requests …; found by the first rows."),
        Flag("num_blocks", WHOLES, "Blocks of the pool; several are tried one after another."),
        Flag(
            "kv_cache_memory_bytes",
            LISTED,
            "In place of blocks: what they take, like 2GiB,4GiB; with --model.",
        ),
        Flag("block_size", WHOLES, "Tokens of a block; by default those that an id stands for."),
        Flag("eviction_policy", LISTED, "Which cached blocks go first; density if not given."),
        Flag(
            "full_blocks_only",
            SWITCH,
            "With --cache-only: a prompt's unfinished last block is found by nobody, as in a "
            "server; else it counts as a block where the trace has an id for it.",
        ),
        Flag("no_optimum", SWITCH, "Leave out what knowing the future would find."),
    ),
    defaults={"eviction_policy": [], "kv_cache_memory_bytes": []},
)

SCHEDULE_FLAGS = FlagGroup(
    "schedule",
    ScheduleOptions,
    (
        Flag("max_num_batched_tokens", WHOLES, "Tokens of a step; 8192 if not given."),
        Flag("max_num_seqs", WHOLES, "Requests that run at once; 256 if not given."),
        Flag("max_model_len", TOKENS, "Longer requests are refused; what the pool holds."),
        Flag("scheduling_policy", TEXT, "fcfs or priority."),
        Flag("long_prefill_token_threshold", WHOLE, "Most tokens of one request in a step."),
        Flag(
            "step_cost",
            TEXT,
            "Seconds of a step, as step=0.004,token=0.0004,context=0,pair=0, or a file of what "
            "`pagoda bench --json` printed.",
        ),
        Flag("model", TEXT, "With --gpu: steps take the least time that this model could."),
        Flag("gpu", TEXT, "Accelerator by name, as for `pagoda plan`."),
        Flag("tensor_parallel_size", WHOLE, "Accelerators that the model is split over."),
        Flag("quantization", TEXT, "Weights as for `pagoda plan`."),
        Flag(
            "kv_cache_dtype",
            LISTED,
            "K and V as for `pagoda plan`; with --kv-cache-memory-bytes several, like auto,int4.",
        ),
    ),
    defaults={"kv_cache_dtype": []},
)
