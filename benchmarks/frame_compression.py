"""What compression without loss saves of real keys and values, and what it takes.

    python benchmarks/frame_compression.py [--model MODEL] [--kv-cache-dtype auto int8 …]
        [--tokens 2048] [--json FILE]

The model reads the lab's text, and each block that its pool then holds is compressed by itself, as
a tier's frames are: as it is and with its bytes sorted into planes, by zstd of several levels and,
where the package lz4 is installed, by LZ4. Ratio: bytes of payloads ÷ bytes of bodies. Speeds are
bytes of payloads a second of the core's own time, which other programs do not change much.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zstandard

from pagoda.engine.build import load_model
from pagoda.engine.options import EngineOptions
from pagoda.lab.method import Method
from pagoda.lab.reader import Reader
from pagoda.lab.subject import Subject
from pagoda.lab.text import TokenText, default_text
from pagoda.tiers.compression import from_planes, to_planes

LEVELS = (-5, -1, 1, 3)
CHUNK = 512


@dataclass(frozen=True)
class Packer:
    """A way to compress bytes, and back."""

    name: str
    pack: Callable[[Any], bytes]
    unpack: Callable[[bytes], bytes]


@dataclass(frozen=True)
class Row:
    """What one packer did to all blocks of one cache."""

    kv_cache_dtype: str
    packer: str
    item_bytes: int
    ratio: float
    pack_mb_s: float
    unpack_mb_s: float


def packers() -> list[Packer]:
    """Those that are installed."""
    found = [
        Packer(
            f"zstd {level}",
            lambda data, level=level: zstandard.ZstdCompressor(level=level).compress(data),  # type: ignore[misc]
            lambda body: zstandard.ZstdDecompressor().decompress(body),
        )
        for level in LEVELS
    ]
    try:
        import lz4.block  # type: ignore[import-not-found]
    except ImportError:
        return found
    found.append(Packer("lz4", lz4.block.compress, lz4.block.decompress))
    return found


def blocks_of(subject: Subject, dtype: str, token_ids: Sequence[int]) -> list[Any]:
    """The content of each full block that holds those tokens."""
    reader = Reader(subject, Method(dtype), longest=len(token_ids), chunk=CHUNK)
    blocks: list[Any] = []
    for _ in reader.read(token_ids):
        blocks = [reader.storage.export_block(block_id) for block_id in reader.block_ids]
    return blocks


def measured(dtype: str, blocks: list[Any], packer: Packer, item_bytes: int) -> Row:
    """Each block through a packer and back."""
    began = time.process_time()
    bodies = [packer.pack(to_planes(block.data, item_bytes)) for block in blocks]
    packed = time.process_time()
    given = [from_planes(packer.unpack(body), item_bytes) for body in bodies]
    unpacked = time.process_time()
    assert all(bytes(each) == block.tobytes() for each, block in zip(given, blocks, strict=True))
    num_bytes = sum(len(block) for block in blocks)
    return Row(
        dtype,
        packer.name,
        item_bytes,
        num_bytes / sum(map(len, bodies)),
        num_bytes / (packed - began) / 1e6,
        num_bytes / (unpacked - packed) / 1e6,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model")
    parser.add_argument("--kv-cache-dtype", nargs="+", default=["auto", "int8_per_token_head"])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    options = EngineOptions(**({"model": args.model} if args.model else {}))
    model = load_model(options)
    text = TokenText.of(default_text(), model.tokenizer)
    (window,) = text.windows(1, args.tokens)
    subject, rows = Subject(model, options), []
    for dtype in args.kv_cache_dtype:
        blocks = blocks_of(subject, dtype, window)
        print(f"{dtype}: {len(blocks)} blocks of {len(blocks[0]):,} bytes", file=sys.stderr)
        for packer in packers():
            for item_bytes in (1, 2):
                row = measured(dtype, blocks, packer, item_bytes)
                rows.append(row)
                print(
                    f"{dtype:22} {packer.name:8} planes of {item_bytes}  ratio {row.ratio:.3f}  "
                    f"{row.pack_mb_s:6.0f} MB/s there {row.unpack_mb_s:6.0f} MB/s back"
                )
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
