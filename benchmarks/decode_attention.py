"""How fast decoding reads the cache, for several block sizes, beside what the memory can give.

Every layer of a model has K and V of its own, far more than any processor cache holds; blocks lie
in random order. Timed is attention alone, of all layers one after the other as in a step. The best
of several rounds counts, since other work on the machine only ever slows a round down. How fast
memory can be read from end to end is measured before and after each case, and the better of both
is its limit; beside it stands how fast the same blocks are read in the same order when nothing else
is done with them.

    python benchmarks/decode_attention.py --block-sizes 16 32 64 128
    python benchmarks/decode_attention.py --block-sizes 16 --formats bfloat16 int8_per_token_head
    python benchmarks/decode_attention.py --block-sizes 16 --layers 4 --new-tokens 512 --formats …
    python benchmarks/decode_attention.py --rank 512 --heads 16 --clock cpu --formats …

Formats are those of `--kv-cache-dtype`, timed in turn; "to the first" is what one takes of the
time of the first. With a rank layers keep latents. Where others use the machine, `--clock cpu` on
one core (`taskset -c 0`, NUMBA_NUM_THREADS=1) counts the time that this process had.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from itertools import pairwise

import numba
import numpy as np
import torch
from numba import njit, prange

from pagoda.cache.latent import LatentLayerSpec, latent_format
from pagoda.cache.spec import CacheSpec
from pagoda.codecs import CALIBRATED, Codec, codec_of
from pagoda.codecs.calibrate import Observed, calibrate
from pagoda.engine.devices.machine import best_seconds, read_bandwidth
from pagoda.execution.batch import Batch, GroupPages
from pagoda.execution.cpu.attention_tiler import tile_attention
from pagoda.execution.cpu.layer_codes import code_fields, page_form
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.attention_alone import CodedBlocks, paged_attention
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.number import integer_at
from pagoda.storage.cpu_storage import STORED_FORMATS, STORED_LATENTS, CPUStorage, as_array

CASES = ((8, 2048), (1, 8192))
"""Sequences and tokens in the cache of each."""
FORMATS = dict.fromkeys((*STORED_FORMATS, *STORED_LATENTS))


def _case(text: str) -> tuple[int, int]:
    sequences, context = map(int, text.split("x"))
    return sequences, context


def batch_of(num_sequences: int, context: int, block_size: int, num_blocks: int, new: int) -> Batch:
    """So many new tokens for each sequence; their blocks are drawn at random."""
    per_sequence = -(-context // block_size)
    rng = np.random.default_rng(0)
    tables = rng.permutation(num_blocks)[: num_sequences * per_sequence]
    tables = tables.reshape(num_sequences, per_sequence).astype(np.int32)
    positions = np.tile(np.arange(context - new, context, dtype=np.int32), num_sequences)
    rows = np.repeat(np.arange(num_sequences), new)
    blocks = tables[rows, positions // block_size].astype(np.int64)
    return Batch(
        token_ids=np.zeros(len(rows), np.int64),
        positions=positions,
        query_starts=np.arange(num_sequences + 1, dtype=np.int32) * new,
        context_lens=np.full(num_sequences, context, np.int32),
        groups=(GroupPages.seeing_all(tables, blocks * block_size + positions % block_size),),
        logit_rows=np.arange(num_sequences),
        copy_sources=np.empty(0, np.int64),
        copy_targets=np.empty(0, np.int64),
    )


@njit(parallel=True)
def _read_blocks(layers: Array, tables: Array, block_bytes: int, sums: Array) -> None:
    """Add up all numbers of some blocks of each layer; sums: a row for each thread."""
    for thread in prange(len(sums)):
        total = 0
        for layer in layers:
            for place in range(thread, len(tables), len(sums)):
                block = layer + tables[place] * block_bytes
                for i in range(block_bytes // 8):
                    total += integer_at(block, i, 64)
        sums[thread, 0] = total


def _codec(form: str, num_kv_heads: int, head_dim: int) -> Codec | None:
    """That of a format; what is calibrated takes vectors for random ones."""
    if form not in CALIBRATED:
        return codec_of(form)
    shape = (num_kv_heads, 256, head_dim)
    even = np.tile(np.eye(head_dim), (num_kv_heads, 1, 1))
    drawn = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return Codec(*(calibrate(widths, Observed(even, even, drawn)) for widths in CALIBRATED[form]))


def _spec(args: argparse.Namespace, form: str, block_size: int) -> CacheSpec:
    if args.rank:
        layer = LatentLayerSpec(args.rank, args.rope_dim, latent_format(form))
        return CacheSpec((layer,) * args.layers, block_size)
    return CacheSpec.uniform(
        num_layers=args.layers,
        num_kv_heads=args.kv_heads,
        head_size=args.head_dim,
        dtype=form,
        block_size=block_size,
    )


def _shape(args: argparse.Namespace, block_size: int) -> HeadShape:
    if args.rank:
        return HeadShape(1, args.heads, args.rank + args.rope_dim, block_size, args.rank)
    group_size = args.heads // args.kv_heads
    return HeadShape(args.kv_heads, group_size, args.head_dim, block_size, args.head_dim)


class Case:
    """The cache of one format, and a decode step that reads it."""

    def __init__(
        self, args: argparse.Namespace, form: str, block_size: int, sequences: int, context: int
    ) -> None:
        spec, self.shape = _spec(args, form, block_size), _shape(args, block_size)
        self.form, self.size = form, sequences * context * spec.block_bytes // block_size
        self.size //= args.layers
        num_blocks = sequences * spec.num_blocks(context)
        codec = None if args.rank else _codec(form, args.kv_heads, args.head_dim)
        self.storage = CPUStorage(spec, num_blocks, [codec] * args.layers)
        batch = batch_of(sequences, context, block_size, num_blocks, args.new_tokens)
        self.num_threads = numba.get_num_threads()
        decodes = bool(args.rank) or self.storage.layers[0].codec is not None
        self.tables = batch.groups[0].block_tables
        self.tiling = tile_attention(
            batch, self.shape, decodes=decodes, num_threads=self.num_threads
        )
        head_dim, rows = self.shape.head_dim, (batch.num_tokens, args.heads)
        queries = np.random.default_rng(0).normal(size=(*rows, head_dim)) * head_dim**-0.5
        self.queries = queries.reshape(len(queries), -1).astype(np.float32)
        out = torch.empty((*rows, self.shape.value_dim), dtype=torch.bfloat16)
        self.out = as_array(out.flatten(1))
        self.blocks = [layer.array for layer in self.storage.layers]
        self.coded, self.kept = self._fill()

    def _fill(self) -> tuple[CodedBlocks, list[Array]]:
        """Random numbers, or codes with scales of 0; how they are read, and what that points to."""
        first, kept = self.storage.layers[0], []
        for layer in self.storage.layers:
            if layer.blocks.dtype.is_floating_point:
                layer.blocks.normal_()
            else:
                layer.blocks.random_(0, 120)
                layer.content[:, layer.layout.key_scales :] = 0
        form = page_form(first, is_paired=True)
        return CodedBlocks(form, first.layout, code_fields(first, form, kept)), kept

    def attend(self) -> None:
        """Of all layers, one after the other."""
        paged_attention(
            self.out, self.queries, self.blocks, self.tiling, self.shape, 1.0, self.num_threads,
            self.coded,
        )  # fmt: skip

    def read(self) -> None:
        """The same blocks in the same order, and nothing done with them."""
        places = np.array([each.ctypes.data for each in self.blocks])
        sums = np.zeros((self.num_threads, 8), np.int64)
        _read_blocks(places, self.tables.ravel(), self.blocks[0][0].nbytes, sums)


def process_seconds(run: Callable[[], object], num_rounds: int) -> float:
    """As `best_seconds`, of the time that this process had on all cores."""
    run()
    times = [time.process_time()]
    for _ in range(num_rounds):
        run()
        times.append(time.process_time())
    return min(end - start for start, end in pairwise(times))


CLOCKS = {"wall": best_seconds, "cpu": process_seconds}


def layer_seconds(cases: list[Case], rounds: int, clock: str) -> list[tuple[float, float]]:
    """Seconds of one layer's attention and of reading its blocks, of each case, in turn."""
    best = CLOCKS[clock]
    times = [[(best(case.attend, 2), best(case.read, 2)) for case in cases] for _ in range(rounds)]
    return [
        tuple(min(seconds) / len(case.blocks) for seconds in zip(*each, strict=True))
        for case, each in zip(cases, zip(*times, strict=True), strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--rank", type=int, default=0, help="of latents; 0: keys and values")
    parser.add_argument("--rope-dim", type=int, default=64, help="of the key beside a latent")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["bfloat16"])
    parser.add_argument("--cases", type=_case, nargs="+", default=CASES, help="like 8x2048")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--new-tokens", type=int, default=1, help="of each sequence, a prompt's")
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    results = []
    print(f"{os.cpu_count()} cores; GB/s of memory from end to end, of these blocks, of attention")
    print(
        "| format | block size | sequences | us a layer | memory | blocks | attention | of memory |"
        " to the first |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for block_size in args.block_sizes:
        for sequences, context in args.cases:
            limit = read_bandwidth()
            cases = [Case(args, form, block_size, sequences, context) for form in args.formats]
            times = layer_seconds(cases, args.rounds, args.clock)
            limit = max(limit, read_bandwidth())
            for case, (seconds, reading_s) in zip(cases, times, strict=True):
                read, attended = case.size / reading_s / 1e9, case.size / seconds / 1e9
                print(
                    f"| {case.form} | {block_size} | {sequences} x {context:,} |"
                    f" {seconds * 1e6:.0f} | {limit / 1e9:.1f} | {read:.1f} | {attended:.1f} |"
                    f" {case.size / seconds / limit:.0%} |"
                    f" {seconds / times[0][0]:.2f} |",
                    flush=True,
                )
                results.append(
                    {
                        "format": case.form,
                        "block_size": block_size,
                        "sequences": sequences,
                        "context": context,
                        "microseconds_per_layer": seconds * 1e6,
                        "memory_gigabytes_per_second": limit / 1e9,
                        "blocks_gigabytes_per_second": read,
                        "attention_gigabytes_per_second": attended,
                    }
                )
    print(json.dumps({"results": results}))


if __name__ == "__main__":
    main()
