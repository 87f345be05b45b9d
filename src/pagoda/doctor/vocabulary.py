"""What each engine calls the things that advice is about; None for what it has not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flags:
    """An engine's flags."""

    memory: str = "--kv-cache-memory-bytes"
    num_blocks: str = "--num-gpu-blocks-override"
    seats: str = "--max-num-seqs"
    prefix_caching: str = "--enable-prefix-caching"
    kv_dtype: str = "--kv-cache-dtype"
    quantization: str = "--quantization"
    speculation: str | None = None
    retention: str | None = None


FLAGS = {
    "pagoda": Flags(retention="--kv-retention"),
    "vllm": Flags(speculation="--speculative-config"),
}
