"""The server that a trace was recorded from, as far as a replay needs to know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordedSetting:
    """Cache and scheduler of the recorded server; the names are those of its options."""

    num_blocks: int
    block_size: int
    eviction_policy: str
    enable_prefix_caching: bool
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    scheduling_policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    steps_ahead: int = 0
    """Steps that were outstanding while another was decided: 1 on a GPU, 0 on a CPU."""
