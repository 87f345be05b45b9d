"""What a device's memory goes to beside weights and cache: ranges, keyed by release.

    activations   the trial run's tensors, from one to several copies of the logits and the MLP's
    runtime       the driver's context, libraries, and buffers of collectives
    CUDA graphs   set aside since 0.21

None of it can be known before it runs. The bounds hold in the 17 start-ups that tell these figures
(from the V0 engine to 0.28; tests/planning/test_overhead.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.models.config import ModelConfig
from pagoda.planning.fields import language_config, mlp_width
from pagoda.planning.releases import Range, Release
from pagoda.sizing.capacity import GIB

_MIB = 2**20
_LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True)
class TrialRun:
    """What the engine runs once to see how much memory a step takes."""

    max_num_batched_tokens: int
    max_num_seqs: int
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    tensor_parallel_size: int
    dtype_bytes: int = 2


def trial_run(
    config: ModelConfig, batch: tuple[int, int], tensor_parallel_size: int, dtype_bytes: int = 2
) -> TrialRun:
    """The trial run of a model; `batch` is max_num_batched_tokens and max_num_seqs."""
    text = language_config(config)
    hidden = text.integer("hidden_size")
    return TrialRun(
        max_num_batched_tokens=batch[0],
        max_num_seqs=batch[1],
        vocab_size=text.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=mlp_width(text) or 4 * hidden,
        tensor_parallel_size=tensor_parallel_size,
        dtype_bytes=dtype_bytes,
    )


def activation_range(run: TrialRun, release: Release) -> Range:
    """Bytes of the largest tensors of the trial run."""
    logits = run.max_num_seqs * run.vocab_size * _LOGIT_BYTES
    width = -(-run.intermediate_size // run.tensor_parallel_size)
    gate_and_up = run.max_num_batched_tokens * 2 * width * run.dtype_bytes
    hidden = run.max_num_batched_tokens * run.hidden_size * run.dtype_bytes
    low, high = release.logits_copies
    return Range(
        int(low * logits) + gate_and_up // 2,
        int(high * logits) + 3 * gate_and_up + 8 * hidden + 256 * _MIB,
        f"vLLM {release.name} profiles {run.max_num_batched_tokens:,} tokens in "
        f"{run.max_num_seqs:,} sequences; the logits are held {low:g} to {high:g} times",
    )


def runtime_range(num_ranks: int) -> Range:
    """Bytes that no tensor accounts for."""
    if num_ranks == 1:
        return Range(0, 700 * _MIB, "0.01 to 0.25 GiB seen on one device; up to 0.7 allowed for")
    return Range(100 * _MIB, 3 * GIB, "buffers of collectives: 0.1 to 3 GiB with several devices")


def graphs_range(release: Release, *, is_eager: bool = False) -> Range:
    """Bytes set aside for CUDA graphs."""
    if is_eager:
        return Range(0, 0, "none with --enforce-eager")
    if not release.estimates_graphs:
        return Range(0, 0, f"not set aside in {release.name}: taken from what utilization leaves")
    return Range(50 * _MIB, int(2.5 * GIB), "estimates of 0.3 to 2.3 GiB seen; since 0.21")
