"""What quantised weights, or activations, cost in quality: perplexity on prose.

    python benchmarks/perplexity.py [FILE.gguf ...] [--model MODEL] [--quantization stored q8_0 ...]
        [--activation-dtype auto int8] [--text FILE] [--windows 24] [--json FILE]

The reference is MODEL (the default model without it) in bfloat16, its weights de-quantised: the
default model is a Q4_1 file itself, so the table says what a second quantisation costs, not what
the first one did. Each further row is

    MODEL with each --quantization (stored: as its file has it); where that is a type which plain
    weights are quantised to, of the reference, written as a checkpoint in safetensors
    each FILE.gguf as it is stored; benchmarks/stored_files.py makes some of MODEL

with each --activation-dtype. All read the same windows of 512 tokens and are asked how likely each
token but the first 64 was; the change of perplexity is that of pairs, with the interval in which
95% of draws of as many windows lie. FILE of --text may be compressed (.gz). Its paragraphs count,
without what is shorter than 20 words: headings, lists of contents.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pagoda import LLM, SamplingParams
from pagoda.errors import RefusedError
from pagoda.lab.change import paired_change
from pagoda.lab.text import prose
from pagoda.models.locate import locate
from pagoda.models.tokenizer import Tokenizer

TEXT = Path("/usr/share/doc/debian/FAQ/debian-faq.en.txt.gz")
PACKAGE = "debian-faq"
WINDOW = 512
CONTEXT = 64
Windows = list[list[int]]
Losses = NDArray[np.float64]
"""Of each window, minus the mean logarithm of its tokens' probabilities."""


@dataclass(frozen=True)
class Setting:
    """What one row of the table was measured with."""

    name: str
    model: str | None
    quantization: str | None = "none"
    activation_dtype: str = "auto"

    def open(self) -> LLM:
        options = {"quantization": self.quantization}
        if self.activation_dtype != "auto":
            options["activation_dtype"] = self.activation_dtype
        return LLM(
            self.model, dtype="bfloat16", max_model_len=WINDOW + 1, enable_prefix_caching=False,
            kv_cache_memory_bytes=2**29, **options,
        )  # fmt: skip


def main() -> None:
    args = arguments()
    try:
        show(args)
    except RefusedError as error:
        sys.exit(str(error))


def show(args: argparse.Namespace) -> None:
    """Measure and print row after row. Raises `RefusedError`."""
    windows = windows_of(args.text, args.model, args.windows)
    print(f"{len(windows)} windows, {len(windows) * (WINDOW - CONTEXT):,} tokens counted\n")
    print("| weights | perplexity | change | 95% of draws |\n|---|---|---|---|", flush=True)
    lines, losses = [], []
    with ExitStack() as stack:
        for setting in settings(args, stack):
            losses.append(measure(setting, windows))
            row = compare(setting.name, losses[-1], losses[0])
            lines.append(json.dumps(row) + "\n")
            print(markdown(row), flush=True)
            if args.json:
                args.json.write_text("".join(lines))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--quantization", nargs="+", default=[])
    parser.add_argument("--activation-dtype", nargs="+", default=["auto"])
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.windows < 2:
        parser.error("--windows must be at least 2")
    if not args.text.exists():
        how = f": `apt-get install {PACKAGE}`, or name another" if args.text == TEXT else ""
        parser.error(f"there is no {args.text}{how}")
    for path in args.files:
        if not path.is_file():
            parser.error(f"there is no file {path}")
    return args


# ---- text ------------------------------------------------------------------------------------


def windows_of(text: Path, model: str | None, count: int) -> Windows:
    """As many windows as wanted of a text's tokens, or as there are."""
    data = text.read_bytes()
    words = (gzip.decompress(data) if text.suffix == ".gz" else data).decode("utf-8", "replace")
    tokens = Tokenizer(locate(model)).encode(prose(words))
    found = [tokens[first : first + WINDOW] for first in range(0, len(tokens) - WINDOW + 1, WINDOW)]
    if len(found) < 2:
        sys.exit(f"{text} has {len(tokens)} tokens of prose; two windows take {2 * WINDOW}")
    return found[:count]


# ---- settings --------------------------------------------------------------------------------


def settings(args: argparse.Namespace, stack: ExitStack) -> Iterator[Setting]:
    """The reference, then the others; a checkpoint that is written for them goes with `stack`."""
    yield Setting("de-quantised", args.model)
    plain: str | None = None
    for activation in args.activation_dtype:
        suffix = "" if activation == "auto" else f", {activation} activations"
        for name in args.quantization:
            if name in ("stored", "none"):
                quantization = None if name == "stored" else name
                yield Setting(f"{name}{suffix}", args.model, quantization, activation)
                continue
            plain = plain or plain_checkpoint(args.model, stack)
            yield Setting(f"{name}{suffix}", plain, name, activation)
        for path in args.files:
            yield Setting(f"{path.stem}{suffix}", str(path), None, activation)


def plain_checkpoint(model: str | None, stack: ExitStack) -> str:
    """The model as a directory of safetensors; a GGUF file's weights are written, in bfloat16."""
    files = locate(model)
    if files.kind == "directory":
        return str(files.path)
    # imported here: they take long, and few runs need them
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder = stack.enter_context(tempfile.TemporaryDirectory())
    given = {"gguf_file": files.path.name}
    plain = GgufConfig(dequantize=True)
    of_file = AutoModelForCausalLM.from_pretrained(
        files.path.parent, dtype=torch.bfloat16, quantization_config=plain, **given
    )
    of_file.save_pretrained(folder)
    AutoTokenizer.from_pretrained(files.path.parent, **given).save_pretrained(folder)
    return folder


# ---- figures ---------------------------------------------------------------------------------


def measure(setting: Setting, windows: Windows) -> Losses:
    """Each window's loss."""
    llm = setting.open()
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, prompt_alone=True)
    losses = []
    for output in llm.generate(windows, params, use_tqdm=False):
        likely = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
        losses.append(-np.mean([entry[token].logprob for token, entry in list(likely)[CONTEXT:]]))
    del llm
    gc.collect()
    return np.array(losses)


def compare(name: str, losses: Losses, reference: Losses) -> dict[str, object]:
    """A row: perplexity, its change by the reference's, and the interval of that."""
    change = paired_change(losses, reference)
    return {
        "name": name,
        "perplexity": float(np.exp(losses.mean())),
        "change": change.mean,
        "low": change.low,
        "high": change.high,
        "is_same": bool(np.array_equal(losses, reference)),
    }


def markdown(row: dict[str, object]) -> str:
    interval = f"{row['low']:+.2%} to {row['high']:+.2%}"
    if row["is_same"]:
        return f"| {row['name']} | {row['perplexity']:.3f} | none, to the last bit | |"
    return f"| {row['name']} | {row['perplexity']:.3f} | {row['change']:+.2%} | {interval} |"


if __name__ == "__main__":
    main()
