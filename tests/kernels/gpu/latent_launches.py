"""What the compile check compiles of attention to latents; see `launch`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from launch import META, Launch, integers, numbers

from pagoda.codecs import LATENT_CODECS
from pagoda.kernels.gpu.head_product import head_product
from pagoda.kernels.gpu.latent_decode import latent_decode
from pagoda.kernels.gpu.latent_form import LatentForm
from pagoda.kernels.gpu.latent_prefill import latent_prefill
from pagoda.kernels.gpu.latent_rows import rotate_and_store_latents
from pagoda.kernels.gpu.partial_sums import PartialSums
from pagoda.kernels.gpu.parts import LATENT_PARTS
from pagoda.kernels.gpu.prefill_tiling import TILE_NUMBERS, AttentionKind, PrefillTiling, Round


@dataclass(frozen=True, slots=True)
class LatentCase:
    """Heads and blocks of a layer whose attention is compiled."""

    num_heads: int
    rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16
    codec: str | None = None

    def __str__(self) -> str:
        return (
            f"latents={self.rank}+{self.rope_dim} heads={self.num_heads} "
            f"block={self.block_size} {self.dtype}{f' codes={self.codec}' if self.codec else ''}"
        )

    @property
    def form(self) -> LatentForm | None:
        """Of codes."""
        if self.codec is None:
            return None
        code = LATENT_CODECS[self.codec].code(self.rank, self.rope_dim)
        return LatentForm.of(code, self.block_size, code.token_bytes * self.block_size)

    @property
    def blocks(self) -> torch.Tensor:
        """Two of them."""
        if self.form is not None:
            return numbers(2, self.form.block_bytes, dtype=torch.uint8)
        return numbers(2, self.block_size, self.rank + self.rope_dim, dtype=self.dtype)


LATENT_CASES = (
    LatentCase(16, 512, 128, 64, 128),  # DeepSeek-V2-Lite
    LatentCase(128, 512, 128, 64, 128, block_size=64),  # DeepSeek-V3
    LatentCase(40, 256, 64, 32, 64),  # MiniCPM3
    LatentCase(24, 384, 96, 48, 80, dtype=torch.float16),
    LatentCase(16, 512, 128, 64, 128, dtype=torch.float32),
    LatentCase(128, 512, 128, 64, 128, codec="fp8_per_group"),
    LatentCase(40, 256, 64, 32, 64, codec="int8_per_group"),
)


def latent_launches() -> Iterator[Launch]:
    """All of attention to latents, with 64 sequences of 4,096 tokens."""
    for case in LATENT_CASES:
        heads, rank, width, dtype = (
            case.num_heads, case.rank, case.rank + case.rope_dim, case.dtype
        )  # fmt: skip
        query, out = numbers(64, heads, width, dtype=dtype), numbers(64, heads, rank, dtype=dtype)
        blocks, form = case.blocks, case.form
        block_tables, slots = integers(64, 4096 // case.block_size), numbers(64, dtype=torch.int64)
        partial_sums = PartialSums.of(LATENT_PARTS, rank, META)
        tiling = PrefillTiling(
            AttentionKind(heads, 1), integers(100, TILE_NUMBERS), integers(5, 4),
            (Round(0, 100, 0, 5),),
        )  # fmt: skip
        yield Launch(
            f"latent_decode {case}",
            partial(
                latent_decode, out, query, blocks, block_tables, integers(64), integers(64),
                integers(64), 0.1, partial_sums, form,
            ),
        )  # fmt: skip
        yield Launch(
            f"latent_prefill {case}",
            partial(
                latent_prefill, out, query, blocks, block_tables, tiling, 0.1, partial_sums, form
            ),
        )
        rows = numbers(64, heads, case.nope_dim + case.rope_dim, dtype=dtype)
        angles = numbers(4096, case.rope_dim // 2, dtype=torch.float32)
        yield Launch(
            f"rotate_and_store_latents {case}",
            partial(
                rotate_and_store_latents, query, rows, numbers(64, width, dtype=dtype), blocks,
                integers(64), slots, angles, angles, numbers(rank, dtype=dtype), 1e-6,
                form,
            ),
        )  # fmt: skip
        if form is not None:
            continue
        key_up = numbers(heads, case.nope_dim, rank, dtype=dtype)
        value_up = numbers(heads, case.value_dim, rank, dtype=dtype)
        values = numbers(64, heads, case.value_dim, dtype=dtype)
        yield Launch(
            f"head_product keys {case}",
            partial(head_product, query[:, :, :rank], rows[:, :, : case.nope_dim], key_up),
        )
        yield Launch(f"head_product values {case}", partial(head_product, values, out, value_up.mT))
