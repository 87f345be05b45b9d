"""What the compile check compiles of attention; see `launch`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from launch import META, Launch, integers, numbers

from pagoda.codecs import CALIBRATED, CODECS, CalibratedCodec, Codec
from pagoda.codecs.calibrated import path_widths
from pagoda.codecs.levels import gaussian_levels
from pagoda.execution.gpu.layer_codes import page_codes
from pagoda.kernels.gpu.code_form import PageCodes
from pagoda.kernels.gpu.coded_rotary import rotate_and_encode
from pagoda.kernels.gpu.decode_attention import decode_attention
from pagoda.kernels.gpu.head_norms import HeadNorms
from pagoda.kernels.gpu.partial_sums import PartialSums
from pagoda.kernels.gpu.parts import PREFILL_PARTS, decode_parts
from pagoda.kernels.gpu.prefill_attention import prefill_attention
from pagoda.kernels.gpu.prefill_tiling import TILE_NUMBERS, AttentionKind, PrefillTiling, Round
from pagoda.kernels.gpu.turn import turn_heads
from pagoda.kernels.gpu.windows import SinkQueries, Windows


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """Heads and blocks of a layer whose attention is compiled."""

    head_dim: int
    group_size: int
    block_size: int
    sees: str
    """all, a window, or a window and sinks: kernels know no more of them beforehand."""
    dtype: torch.dtype = torch.bfloat16
    codec: str | None = None
    logit_cap: float | None = None
    sink_logits: bool = False
    norms_rows: bool = False
    """Before a cache of codes."""

    def __str__(self) -> str:
        return (
            f"D={self.head_dim} group={self.group_size} block={self.block_size} "
            f"sees={self.sees} {self.dtype}{f' codes={self.codec}' if self.codec else ''}"
            f"{f' cap={self.logit_cap}' if self.logit_cap else ''}"
            f"{' sink logits' if self.sink_logits else ''}"
            f"{' normed rows' if self.norms_rows else ''}"
        )

    def windows(self, query: torch.Tensor) -> Windows | None:
        """Of 64 sequences."""
        if self.sees == "all":
            return None
        return Windows(integers(64, 2), query if self.sees == "sinks" else None)

    @property
    def softmax(self) -> dict[str, Any]:
        """What is done to scores beside scaling them."""
        sink_logits = numbers(8 * self.group_size, dtype=self.dtype) if self.sink_logits else None
        return {"logit_cap": self.logit_cap, "sink_logits": sink_logits}

    def codes(self) -> PageCodes | None:
        """Of eight KV heads."""
        if self.codec is None:
            return None
        codec = CODECS.get(self.codec) or unfitted_codec(self.codec, 8, self.head_dim)
        return page_codes(codec, 8, self.head_dim, self.block_size, META)


def unfitted_codec(name: str, num_kv_heads: int, head_dim: int) -> Codec:
    """In place of one that is calibrated for a model: of its shapes."""
    matrices = np.zeros((num_kv_heads, head_dim, head_dim), np.float32)

    def side(widths: tuple[int, ...]) -> CalibratedCodec:
        levels = {width: gaussian_levels(width) for width in widths}
        paths = {
            width: np.arange(-(2**width), 2**width).astype(np.int8) for width in path_widths(widths)
        }
        return CalibratedCodec(widths, matrices, matrices, matrices[:, 0], levels, paths, 1.0)

    return Codec(*map(side, CALIBRATED[name]))


ATTENTION_CASES = (
    AttentionCase(64, 1, 16, "all", torch.float16),  # as bfloat16: a number is as wide
    AttentionCase(80, 8, 32, "all"),
    AttentionCase(128, 4, 16, "all"),
    AttentionCase(128, 16, 32, "sinks"),
    AttentionCase(256, 8, 16, "window"),
    AttentionCase(128, 4, 16, "all", torch.float32),
    AttentionCase(256, 2, 16, "window", logit_cap=50.0),
    AttentionCase(64, 8, 16, "window", sink_logits=True),
    AttentionCase(
        128,
        2,
        16,
        "sinks",
        codec="int8_per_token_head",
        logit_cap=50.0,
        sink_logits=True,
        norms_rows=True,
    ),
    AttentionCase(128, 4, 16, "sinks", codec="int8_per_token_head"),
    AttentionCase(64, 3, 16, "all", torch.float16, codec="turboquant_k8v4"),
    AttentionCase(128, 8, 32, "all", codec="turboquant_k3v4_nc", norms_rows=True),
    AttentionCase(256, 8, 16, "sinks", codec="int4_per_token_head"),
    AttentionCase(128, 4, 16, "all", codec="int3"),
)


def attention_launches() -> Iterator[Launch]:
    """Decode and prefill of all cases, with eight KV heads and 64 sequences of 4,096 tokens."""
    for case in ATTENTION_CASES:
        num_heads = 8 * case.group_size
        query = numbers(64, num_heads, case.head_dim, dtype=case.dtype)
        blocks = numbers(2, 2, 8, case.block_size, case.head_dim, dtype=case.dtype)
        codes = case.codes()
        if codes is not None:
            blocks = numbers(2, codes.form.block_bytes, dtype=torch.uint8)
        block_tables = integers(64, 4096 // case.block_size)
        num_parts = max(decode_parts(64, num_heads), PREFILL_PARTS)
        partial_sums = PartialSums.of(num_parts, case.head_dim, META)
        windows, kind = case.windows(query), AttentionKind(num_heads, 8)
        tiles = integers(100, TILE_NUMBERS)
        tiling = PrefillTiling(kind, tiles, integers(5, 4), (Round(0, 100, 0, 5),))
        yield Launch(
            f"decode_attention {case}",
            partial(
                decode_attention, query, query, blocks, block_tables, integers(64),
                integers(64), integers(64), 0.1, windows, partial_sums, codes,
                **case.softmax,
            ),
        )  # fmt: skip
        yield Launch(
            f"prefill_attention {case}",
            partial(
                prefill_attention, query, query, blocks, block_tables, tiling, 0.1, windows,
                partial_sums, codes, **case.softmax,
            ),
        )  # fmt: skip
        if codes is not None:
            yield from coded_launches(case, codes, query, blocks)


def coded_launches(
    case: AttentionCase, codes: PageCodes, query: torch.Tensor, blocks: torch.Tensor
) -> Iterator[Launch]:
    """What stands before and behind attention where a cache is of codes, with norms."""
    num_heads, dim = 8 * case.group_size, case.head_dim
    qkv = numbers(64, (num_heads + 16) * dim, dtype=case.dtype)
    norms = HeadNorms(*[numbers(dim, dtype=case.dtype)] * 2, 1e-6)
    if case.norms_rows:
        widths = (num_heads * dim, 8 * dim)
        norms = HeadNorms(*(numbers(width, dtype=case.dtype) for width in widths), 1e-6, 1.0, True)
    angles = numbers(4096, dim // 2, dtype=torch.float32)
    sinks = SinkQueries(query, integers(64)) if case.sees == "sinks" else None
    yield Launch(
        f"rotate_and_encode {case}",
        partial(
            rotate_and_encode, query, qkv, blocks, integers(64), numbers(64, dtype=torch.int64),
            angles, angles, norms, codes, sinks,
        ),
    )  # fmt: skip
    if codes.output_turn is not None:
        yield Launch(f"turn_heads {case}", partial(turn_heads, query, codes.output_turn))
