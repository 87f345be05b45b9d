"""Perplexity of a text far longer than its model, by what is kept of it (StreamingLLM).

    python benchmarks/streaming.py --text FILE [--tokens 32768] [--retentions streaming:… window:…]

Each retention reads the text once, as one sequence. Told for each quarter of it: perplexity, and
seconds of the quarter; and the cache that it was read with. Beside them the full cache, which
reads each quarter alone, since no more is what the model was made for. A window without sinks loses
the model once the first tokens are gone; with sinks perplexity stays where it was.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from pagoda.engine.build import load_model
from pagoda.engine.options import EngineOptions
from pagoda.lab.method import Method
from pagoda.lab.reader import Reader
from pagoda.lab.subject import Subject
from pagoda.lab.text import TokenText, read_text

USUAL = ["streaming:sinks=4,window=1020", "window:1024"]


def losses(reader: Reader, token_ids: list[int]) -> Iterator[tuple[torch.Tensor, float]]:
    """Negative log-likelihoods of the tokens after each chunk, and the seconds that it took."""
    position, started = 0, time.perf_counter()
    for logits in reader.read(token_ids):
        following = torch.tensor(token_ids[position + 1 : position + 1 + len(logits)])
        rows = logits[: len(following)].log_softmax(1)
        yield -rows[torch.arange(len(following)), following], time.perf_counter() - started
        position, started = position + len(logits), time.perf_counter()


def tell(name: str, reader: Reader, texts: list[list[int]], parts: int) -> None:
    """Print a line for a method: perplexity and seconds of each part, and what the cache takes."""
    told = [each for token_ids in texts for each in losses(reader, token_ids)]
    size = -(-len(told) // parts)
    cells = []
    for first in range(0, len(told), size):
        nll = torch.cat([each for each, _ in told[first : first + size]]).double().mean().item()
        seconds = sum(each for _, each in told[first : first + size])
        cells.append(f"{math.exp(nll):.2f} ({seconds:.1f} s)")
    whole = torch.cat([each for each, _ in told]).double()
    kept = reader.storage.size_bytes / 2**20
    print(
        f"| {name} | {math.exp(whole.mean().item()):.2f} "
        f"| {math.exp(whole[:4096].mean().item()):.2f} | {' | '.join(cells)} | {kept:.0f} MiB |",
        flush=True,
    )


def main() -> None:
    """Read the text by each retention."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", type=Path, action="append", required=True)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--model", default=None)
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--retentions", nargs="+", default=USUAL)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--parts", type=int, default=4)
    args = parser.parse_args()
    options = EngineOptions(model=args.model, quantization="none")
    subject = Subject(load_model(options), options)
    most = subject.model.spec.max_position_embeddings
    tokens = TokenText.of(read_text(args.text), subject.model.tokenizer).token_ids
    token_ids = list(tokens[: args.tokens])
    if len(tokens) < args.tokens:
        raise SystemExit(f"the text has {len(tokens):,} tokens, not {args.tokens:,}")
    print(f"{len(token_ids):,} tokens; the model was made for {most:,}")
    print("| kept | perplexity | of the first 4,096 | by part | cache |")
    for name in args.retentions:
        method = Method(args.kv_cache_dtype, name)
        reader = Reader(subject, method, longest=len(token_ids), chunk=args.chunk)
        tell(str(method), reader, [token_ids], args.parts)
    size = -(-len(token_ids) // args.parts)
    texts = [
        token_ids[first : first + size][: most - 1] for first in range(0, len(token_ids), size)
    ]
    reader = Reader(subject, Method(args.kv_cache_dtype), longest=len(texts[0]), chunk=args.chunk)
    tell("full, each part alone", reader, texts, args.parts)


if __name__ == "__main__":
    main()
