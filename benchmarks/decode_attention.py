"""How fast decoding reads the cache, for several block sizes, beside what the memory can give.

Every layer of a model has K and V of its own, far more than any processor cache holds; blocks lie
in random order. Timed is attention alone, of all layers one after the other as in a step. The best
of several rounds counts, since other work on the machine only ever slows a round down. How fast
memory can be read from end to end is measured before and after each case, and the better of both
is its limit; beside it stands how fast the same blocks are read in the same order when nothing else
is done with them.

    python benchmarks/decode_attention.py --block-sizes 16 32 64 128
"""

from __future__ import annotations

import argparse
import json
import os

import numba
import numpy as np
import torch
from numba import njit, prange

from pagoda.cache.spec import CacheSpec
from pagoda.engine.devices.machine import best_seconds, read_bandwidth
from pagoda.execution.batch import Batch
from pagoda.execution.cpu.attention_tiler import tile_attention
from pagoda.kernels.array import Array
from pagoda.kernels.cpu.attention_alone import paged_attention
from pagoda.kernels.cpu.heads import HeadShape
from pagoda.kernels.cpu.number import integer_at
from pagoda.storage.cpu_storage import TORCH_DTYPES, CPUStorage, as_array

CASES = ((8, 2048), (1, 8192))
"""Sequences and tokens in the cache of each."""


def decode_batch(num_sequences: int, context: int, block_size: int, num_blocks: int) -> Batch:
    """One new token for each sequence; their blocks are drawn at random."""
    per_sequence = -(-context // block_size)
    rng = np.random.default_rng(0)
    tables = rng.permutation(num_blocks)[: num_sequences * per_sequence]
    tables = tables.reshape(num_sequences, per_sequence).astype(np.int32)
    positions = np.full(num_sequences, context - 1, np.int32)
    return Batch(
        token_ids=np.zeros(num_sequences, np.int64),
        positions=positions,
        slot_mapping=tables[:, -1].astype(np.int64) * block_size + (context - 1) % block_size,
        query_starts=np.arange(num_sequences + 1, dtype=np.int32),
        context_lens=positions + 1,
        block_tables=tables,
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


def layer_seconds(
    args: argparse.Namespace, block_size: int, sequences: int, context: int
) -> tuple[float, float]:
    """Seconds of one layer's attention in a decode step, and of reading its blocks plainly."""
    spec = CacheSpec.uniform(
        num_layers=args.layers,
        num_kv_heads=args.kv_heads,
        head_size=args.head_dim,
        dtype=args.dtype,
        block_size=block_size,
    )
    num_blocks = sequences * spec.num_blocks(context)
    storage = CPUStorage(spec, num_blocks)
    for layer in storage.layers:
        layer.blocks.normal_()
    shape = HeadShape(args.kv_heads, args.heads // args.kv_heads, args.head_dim, block_size)
    batch = decode_batch(sequences, context, block_size, num_blocks)
    tiling = tile_attention(batch, shape)
    queries = np.random.default_rng(0).normal(size=(sequences, args.heads * args.head_dim))
    queries = queries.astype(np.float32)
    out = as_array(torch.empty(queries.shape, dtype=TORCH_DTYPES[args.dtype]))
    scale, window = args.head_dim**-0.5, 2**31 - 1

    blocks, num_threads = [layer.array for layer in storage.layers], numba.get_num_threads()

    def step() -> None:
        paged_attention(out, queries, blocks, tiling, shape, scale, window, num_threads)

    places = np.array([each.ctypes.data for each in blocks])
    sums = np.zeros((num_threads, 8), np.int64)

    def read() -> None:
        _read_blocks(places, batch.block_tables.ravel(), blocks[0][0].nbytes, sums)

    rounds = [(best_seconds(step, 2), best_seconds(read, 2)) for _ in range(args.rounds)]
    attention_s, reading_s = (min(times) / args.layers for times in zip(*rounds, strict=True))
    return attention_s, reading_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", choices=list(TORCH_DTYPES), default="bfloat16")
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    bytes_per_token = 2 * args.kv_heads * args.head_dim * TORCH_DTYPES[args.dtype].itemsize
    results = []
    print(f"{os.cpu_count()} cores; GB/s of memory from end to end, of these blocks, of attention")
    print("| block size | sequences | us a layer | memory | blocks | attention | of memory |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for block_size in args.block_sizes:
        for sequences, context in CASES:
            limit = read_bandwidth()
            seconds, reading_s = layer_seconds(args, block_size, sequences, context)
            limit = max(limit, read_bandwidth())
            size = sequences * context * bytes_per_token
            print(
                f"| {block_size} | {sequences} x {context:,} | {seconds * 1e6:.0f} |"
                f" {limit / 1e9:.1f} | {size / reading_s / 1e9:.1f} | {size / seconds / 1e9:.1f} |"
                f" {size / seconds / limit:.0%} |",
                flush=True,
            )
            results.append(
                {
                    "block_size": block_size,
                    "sequences": sequences,
                    "context": context,
                    "microseconds_per_layer": seconds * 1e6,
                    "memory_gigabytes_per_second": limit / 1e9,
                    "blocks_gigabytes_per_second": size / reading_s / 1e9,
                    "attention_gigabytes_per_second": size / seconds / 1e9,
                }
            )
    print(json.dumps({"results": results}))


if __name__ == "__main__":
    main()
