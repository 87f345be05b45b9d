"""What llama.cpp says of prompts, in a process of its own; with NumPy.

    python llama_logprobs.py LIBRARY MODEL.gguf [--exact]

stdin holds one JSON object a line: `prompt`, token ids, and `wanted`, for each of them but the last
the token ids that might come next. stdout gets one a line: `best`, the most likely next token of
each, and `logprobs`, the natural logarithms of the probabilities of the wanted ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from llama_library import Llama, steps

CONTEXT = 2048


def main() -> None:
    library, model, *options = sys.argv[1:]
    llama = Llama(
        Path(library),
        model,
        num_sequences=1,
        context=CONTEXT,
        is_exact="--exact" in options,
    )
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(say(llama, asked["prompt"], asked["wanted"])), flush=True)


def say(llama: Llama, prompt: list[int], wanted: list[list[int]]) -> dict[str, list]:
    llama.clear()
    best, logprobs = [], []
    entries = [(token, place, 0, True) for place, token in enumerate(prompt[:-1])]
    for step in steps(entries):
        llama.decode(step)
        for row, (_, place, _, _) in enumerate(step):
            logits = np.ctypeslib.as_array(llama.logits(row), (llama.vocab_size,))
            logits = logits.astype(np.float64)
            best.append(int(logits.argmax()))
            top = logits.max()
            total = top + np.log(np.exp(logits - top).sum())
            logprobs.append((logits[wanted[place]] - total).tolist())
    return {"best": best, "logprobs": logprobs}


if __name__ == "__main__":
    main()
