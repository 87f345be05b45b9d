"""What the compile check compiles of attention; see `launch`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from launch import META, Launch, integers, numbers

from pagoda.kernels.cuda.decode_attention import DecodeWorkspace, decode_attention
from pagoda.kernels.cuda.prefill_attention import prefill_attention


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """Heads and blocks of a layer whose attention is compiled."""

    head_dim: int
    group_size: int
    block_size: int
    window: int | None
    dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        return (
            f"D={self.head_dim} group={self.group_size} block={self.block_size} "
            f"window={self.window} {self.dtype}"
        )


ATTENTION_CASES = (
    AttentionCase(64, 1, 16, None),
    AttentionCase(80, 8, 32, None),
    AttentionCase(128, 4, 16, None),
    AttentionCase(128, 16, 32, 4096),
    AttentionCase(256, 8, 16, 1024),
    AttentionCase(128, 4, 16, None, torch.float16),
    AttentionCase(128, 4, 16, None, torch.float32),
)


def attention_launches() -> Iterator[Launch]:
    """Decode and prefill of all cases, with eight KV heads and 64 sequences of 4,096 tokens."""
    for case in ATTENTION_CASES:
        num_heads = 8 * case.group_size
        query = numbers(64, num_heads, case.head_dim, dtype=case.dtype)
        blocks = numbers(2, 2, 8, case.block_size, case.head_dim, dtype=case.dtype)
        block_tables = integers(64, 4096 // case.block_size)
        workspace = DecodeWorkspace.of(64, num_heads, case.head_dim, META)
        yield Launch(
            f"decode_attention {case}",
            partial(
                decode_attention, query, query, blocks, block_tables, integers(64),
                integers(64), integers(64), 0.1, case.window, workspace,
            ),
        )  # fmt: skip
        yield Launch(
            f"prefill_attention {case}",
            partial(
                prefill_attention, query, query, blocks, block_tables, integers(64),
                integers(65), integers(100, 2), 0.1, case.window,
            ),
        )  # fmt: skip
