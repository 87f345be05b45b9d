"""Small random GGUF files of every covered architecture: Pagoda beside llama.cpp, in float32.

    python benchmarks/random_files.py --peers-dir DIR [--cases deepseek_v3-yarn ...]

Each case of tests/gguf_cases.py is written as llama.cpp's converter lays files out, and both read
96 tokens. The table says how far a log-probability is from llama.cpp's at most, over the whole
vocabulary and all places, and how often the most likely token is the same. DIR is where llama.cpp
was installed to (benchmarks/workers/llama_library.py). Its attention is held to float32: float16
would be most of the difference. What it does not load is named: biases that it does not know.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(WORKERS := Path(__file__).parent / "workers"))
sys.path.append(str(Path(__file__).parent.parent / "tests"))
import llama_library
from llama_logprobs import CONTEXT

from gguf_cases import EVERY_CASE, STORED, stored_model
from gguf_files import ARCHITECTURES, write_gguf
from pagoda.execution.reference import reference_logits
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate

NUM_TOKENS = 96


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers-dir", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", default=list(STORED), choices=list(STORED))
    args = parser.parse_args()
    try:
        library = llama_library.find(args.peers_dir)
    except llama_library.LlamaError as error:
        sys.exit(str(error))
    print("| case | architecture | largest difference | most likely token alike |")
    print("|---|---|---|---|", flush=True)
    for name in args.cases:
        cells = examine(name, library)
        print(f"| {name} | {ARCHITECTURES[EVERY_CASE[name].family]} | {cells} |", flush=True)


def examine(name: str, library: Path) -> str:
    """The last two cells of a case."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(Path(folder) / "random.gguf", stored_model(name))
        own = pagoda_says(path)
        theirs = llama_says(library, path, own.shape[1])
    if theirs is None:
        return "not loaded by llama.cpp | "
    alike = np.mean(own.argmax(-1) == theirs.argmax(-1))
    return f"{np.abs(own - theirs).max():.1e} | {alike:.1%}"


def tokens() -> list[int]:
    return [(place * place * 7) % 251 for place in range(NUM_TOKENS)]


def pagoda_says(path: Path) -> np.ndarray:
    """Log-probabilities after every token but the last, [places, vocabulary]."""
    files = locate(str(path))
    spec = load_spec(files, CONTEXT)
    logits = reference_logits(spec, load_weights(files, spec, "float32"), tokens()[:-1])
    return torch.log_softmax(logits.double(), -1).numpy()


def llama_says(library: Path, path: Path, vocab_size: int) -> np.ndarray | None:
    """The same of llama.cpp; None where it does not load the file."""
    worker = WORKERS / "llama_logprobs.py"
    command = [sys.executable, str(worker), str(library), str(path), "--exact"]
    asked = {"prompt": tokens(), "wanted": [list(range(vocab_size))] * (NUM_TOKENS - 1)}
    done = subprocess.run(command, input=json.dumps(asked) + "\n", capture_output=True, text=True)
    if done.returncode and "does not load" in done.stderr:
        return None
    done.check_returncode()
    return np.array(json.loads(done.stdout)["logprobs"])


if __name__ == "__main__":
    main()
