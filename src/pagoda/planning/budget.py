"""What the devices have left for the cache."""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.errors import InvalidOptionError
from pagoda.planning.memory import MemoryPart, StageMemory, part_of
from pagoda.planning.overhead import activation_range, graphs_range, runtime_range, trial_run
from pagoda.planning.pagoda import StepFacts
from pagoda.planning.subject import Subject
from pagoda.planning.weights import loaded_bytes
from pagoda.sizing.capacity import format_gib


def stage_memories(subject: Subject) -> tuple[StageMemory, ...]:
    """One rank of each stage; nothing where no memory was named."""
    total = subject.device_bytes
    if total is None:
        return ()
    share = (
        subject.request.gpu_memory_utilization or subject.engine.release.utilization
        if subject.pagoda is None
        else subject.pagoda.share(subject.request.cache_size)
    )
    stored = list(subject.weights.rank_bytes(subject.options))
    if subject.draft_weights is not None:
        size = subject.options.tensor_parallel_size
        stored[-1] += subject.draft_weights.total_bytes // size
    others = _overheads(subject)
    return tuple(StageMemory(total, share, (_weights(own), *others)) for own in stored)


def cache_bytes(subject: Subject, stages: tuple[StageMemory, ...], *, least: bool) -> int:
    """Bytes for the cache on the stage that holds fewest blocks: stages differ in their layers."""
    pool = subject.pool
    if subject.pagoda is not None:
        asked = subject.request.cache_size
        return subject.pagoda.cache_bytes(
            stages[0], asked, pool, subject.max_model_len, least=least
        )
    left = [stage.cache_low if least else stage.cache_high for stage in stages]
    if len(stages) == 1:
        return max(0, left[0])
    return max(0, min(_stage_blocks(subject, left)) * pool.block_bytes)


def narrowest_stage(subject: Subject, stages: tuple[StageMemory, ...]) -> int:
    """Which stage holds fewest blocks where everything else takes most."""
    blocks = _stage_blocks(subject, [stage.cache_low for stage in stages])
    return blocks.index(min(blocks))


def require_room(subject: Subject, stages: tuple[StageMemory, ...], num_blocks: int) -> None:
    """Raises `InvalidOptionError` for a cache that was named and a stage cannot hold."""
    request = subject.request
    stated = request.cache_size.option
    # No memory was named where there are no stages.
    for stage, block_bytes in zip(stages, subject.pool.stage_block_bytes, strict=False):
        left = stage.total_bytes - sum(part.low for part in stage.parts)
        cache = num_blocks * block_bytes
        if cache > left:
            limit = (
                f"{format_gib(max(0, left))} GiB are left on {subject.devices} beside the "
                f"weights: {format_gib(cache - left)} GiB too much"
            )
            raise InvalidOptionError(stated, getattr(request, stated), limit)


def _stage_blocks(subject: Subject, left: Sequence[int]) -> list[int]:
    """Blocks that each stage's memory holds; a stage may have no cache at all."""
    sizes = subject.pool.stage_block_bytes
    return [own // max(1, size) for own, size in zip(left, sizes, strict=True)]


def _weights(stored: int) -> MemoryPart:
    return MemoryPart("weights", stored, loaded_bytes(stored), "numbers × bits; 1% for the loader")


def _overheads(subject: Subject) -> tuple[MemoryPart, ...]:
    if subject.pagoda is not None:
        return subject.pagoda.parts(step_facts(subject))
    release = subject.engine.release
    run = trial_run(
        subject.facts.config,
        subject.batch,
        subject.options.tensor_parallel_size,
        dtype_bytes=4 if subject.dtype == "float32" else 2,
    )
    parts = (
        part_of("activations", activation_range(run, release)),
        part_of("runtime", runtime_range(subject.request.num_devices)),
    )
    graphs = part_of("CUDA graphs", graphs_range(release, is_eager=subject.request.enforce_eager))
    return parts if subject.on_cpu else (*parts, graphs)


def step_facts(subject: Subject) -> StepFacts:
    """What the memory of a step of Pagoda's follows from."""
    return StepFacts(
        config=subject.facts.config,
        model=subject.model,
        limits=subject.batch,
        dtype=subject.dtype,
        max_model_len=subject.max_model_len,
        block_size=subject.pool.block_size,
        enforce_eager=subject.request.enforce_eager,
        retention=subject.request.retention,
        requests_choose=subject.request.request_kv_retention,
        num_groups=len(subject.pool.groups),
    )
