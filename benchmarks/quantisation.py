"""What quantising plain weights at load costs in quality, and how long it takes.

    python benchmarks/quantisation.py [--text FILE ...] [--tokens 4096] [--types NAME=TYPE ...]

The default model's numbers, as plain as they can be had (its file has them in Q4_1 and Q8_0), are
quantised by each name of `--quantization`, and read the text: perplexity, and how far the
log-probability of each of its tokens is from that of the plain model. The text is this project's
documentation where no other is named. `--types` tries other types: `head=Q4_0 rest=Q8_0`.

Then random matrices are quantised to each type: million numbers a second of one core's time, and
the error beside that of the gguf package's own quantiser, where it has one. Prints
tables, then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from pagoda import LLM, SamplingParams
from pagoda.engine.build import Model, connect
from pagoda.engine.devices.cpu_backend import CPUBackend
from pagoda.engine.options import EngineOptions
from pagoda.execution.cpu.quantised_rows import keeps_as
from pagoda.kernels.array import Array
from pagoda.kernels.block_types import row_bytes
from pagoda.kernels.cpu.quantise import quantise
from pagoda.kernels.cpu.quantised_forms import QUANTISED_FORMS
from pagoda.models.gguf_checkpoint import GGUFCheckpoint
from pagoda.models.load import load_spec
from pagoda.models.locate import locate
from pagoda.models.names import GGUF_NAMES
from pagoda.models.stored_rows import StoredRows
from pagoda.models.tokenizer import Tokenizer
from pagoda.models.weight_parts import DecoderParts
from pagoda.models.weights import load_decoder
from pagoda.sizing.held_weights import hold
from pagoda.sizing.quantised_weights import RECIPES, quantised_types

ROOT = Path(__file__).parent.parent
WINDOW = 512
"""Tokens that are read at a time."""


class PlainCheckpoint(GGUFCheckpoint):
    """A GGUF file whose matrices pretend to be float32."""

    def stored(self, name: str, head_dim: int | None) -> StoredRows | None:
        rows = super().stored(name, head_dim)
        if rows is None:
            return None
        kind = gguf.GGMLQuantizationType[rows.type]

        def blocks(first: int, count: int) -> Array:
            return gguf.quants.dequantize(rows.blocks(first, count), kind).view(np.uint8)

        return replace(rows, type="F32", blocks=blocks)


class Reader:
    """Reads the text with the default model, its weights being of whatever types."""

    def __init__(self, text: str, num_tokens: int) -> None:
        self.files = locate()
        self.spec = load_spec(self.files)
        self.parts = DecoderParts.of(self.spec, GGUF_NAMES)
        self.tokenizer = Tokenizer(self.files)
        tokens = self.tokenizer.encode(text)[:num_tokens]
        self.windows = [tokens[at : at + WINDOW] for at in range(0, len(tokens), WINDOW)]

    def read(self, types: Mapping[str, str]) -> tuple[list[float], int]:
        """Log-probabilities of all tokens but the first of each window, and bytes of weights."""
        source = PlainCheckpoint(self.files.gguf)
        loaded = load_decoder(self.spec, source, GGUF_NAMES, "bfloat16", keeps=keeps_as(types))
        options = EngineOptions(device="cpu", dtype="bfloat16", kv_cache_memory_bytes=2**28)
        held = hold(self.parts, "bfloat16", {}, keeps_stored=True, quantised=types)
        model = Model(
            name="quantised",
            tokenizer=self.tokenizer,
            max_model_len=self.spec.max_position_embeddings,
            loaded=CPUBackend().hold(self.spec, loaded, "bfloat16"),
            held=held,
        )
        llm = LLM.from_engine(connect(model, options))
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
        outputs = llm.generate(self.windows, params, use_tqdm=False)
        found = [
            place[token].logprob
            for tokens, output in zip(self.windows, outputs, strict=True)
            for token, place in zip(tokens, output.prompt_logprobs or (), strict=True)
            if place is not None
        ]
        return found, held.total_bytes


def quality(reader: Reader, choices: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    """A row for each choice of types, the first of which is what others are compared with."""
    rows: list[dict[str, Any]] = []
    plain: list[float] = []
    for name, types in choices.items():
        found, num_bytes = reader.read(types)
        plain = plain or found
        off = np.abs(np.array(found) - np.array(plain))
        row = {
            "types": name,
            "bytes": num_bytes,
            "perplexity": math.exp(-float(np.mean(found))),
            "mean_difference": float(off.mean()),
        }
        rows.append(row)
        print(
            f"{name:24} {num_bytes / 2**20:7.1f} MiB  perplexity {row['perplexity']:8.4f}  "
            f"|difference| of log-probability {row['mean_difference']:.4f}",
            flush=True,
        )
    return rows


def chosen(reader: Reader, texts: list[str]) -> dict[str, Mapping[str, str]]:
    """Plain, every name, and what was asked for."""
    choices: dict[str, Mapping[str, str]] = {"bfloat16": {}}
    choices |= {name: quantised_types(reader.parts, {}, name) for name in RECIPES}
    head = (reader.parts.lm_head or reader.parts.embedding)[0].name
    for text in texts:
        wanted = dict(part.split("=") for part in text.split(","))
        matrices = (part.name for parts in reader.parts.matrices for part in parts)
        types = dict.fromkeys(matrices, wanted.get("rest"))
        types[head] = wanted.get("head")
        choices[text] = {name: kind for name, kind in types.items() if kind is not None}
    return choices


def speed_and_error() -> list[dict[str, Any]]:
    """A row for each type: normal numbers, and some with heavy tails."""
    rng = np.random.default_rng(0)
    drawn = {"normal": rng.normal(size=(2048, 2048)), "heavy": rng.standard_t(5, (2048, 2048))}
    numbers = {name: each.astype(np.float32) * 0.02 for name, each in drawn.items()}
    return [{"type": name, **_of_type(name, numbers)} for name in QUANTISED_FORMS]


def _of_type(name: str, numbers: Mapping[str, Array]) -> dict[str, Any]:
    kind, row = gguf.GGMLQuantizationType[name], {}
    for drawn, values in numbers.items():
        target = np.empty((len(values), row_bytes(name, values.shape[1])), np.uint8)
        seconds = min(_seconds(partial(quantise, name, values, target)) for _ in range(3))
        error = _error(values, gguf.quants.dequantize(target, kind))
        row[drawn] = {"million_a_second": values.size / seconds / 1e6, "error": error}
        line = (
            f"{name}  {drawn:7} {values.size / seconds / 1e6:6.0f} M/s  relative error {error:.3e}"
        )
        try:
            theirs = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
        except NotImplementedError:
            print(line)
            continue
        row[drawn]["of_theirs"] = error / _error(values, theirs)
        print(f"{line}, {row[drawn]['of_theirs']:.2f} of that of the gguf package")
    return row


def _seconds(function: Any) -> float:
    """Of all cores together."""
    started = time.process_time()
    function()
    return time.process_time() - started


def _error(values: Array, found: Array) -> float:
    """Mean square, relative to that of the numbers."""
    off = np.square(values - found, dtype=np.float64).mean()
    return float(off / np.square(values, dtype=np.float64).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, nargs="*")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--types", nargs="*", default=[], metavar="head=TYPE,rest=TYPE")
    args = parser.parse_args()
    paths = args.text or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    reader = Reader("\n\n".join(path.read_text() for path in paths), args.tokens)
    result = {"quality": quality(reader, chosen(reader, args.types)), "types": speed_and_error()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
