"""Whether weights as stored change an answer, and how far llama.cpp is from it.

    python benchmarks/stored_answers.py FILE.gguf ... [--peers-dir DIR] [--prompts 12] [--tokens 12]

Each file is answered with `quantization="none"`, every prompt alone, and then as it is stored in
all the ways of tests/engine/test_promises.py: alone, in a crowd, missed, found in the cache, in
chunks and preempted. Tokens and log-probabilities, of answers and of prompts, must be the same to
the last bit; a cell says "=", or how many answers are other ones. Exit code 1 where one is.

With DIR, which holds llama.cpp (benchmarks/stored_files.py makes files with it), its logits of the
same file and prompts are beside them: how often its most likely token is ours, and the divergence
of its probabilities from ours, in nats, over our 20 most likely tokens and all others together.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.engine.outputs import Logprob, RequestOutput
from pagoda.request import SamplingParams

sys.path.append(str(WORKERS := Path(__file__).parent / "workers"))
sys.path.append(str(Path(__file__).parent.parent / "tests"))
import llama_library

from prompts import PROMPTS

BLOCK_SIZE = 8
NUM_BLOCKS = 1024
_LONGEST = 512
_TOP = 20
Prompts = list[list[int]]
Likely = list[dict[int, Logprob] | None]


@dataclass(frozen=True)
class Answer:
    """Of one prompt."""

    tokens: list[int]
    logprobs: Likely | None
    prompt_logprobs: Likely | None

    @classmethod
    def of(cls, output: RequestOutput) -> Answer:
        (choice,) = output.outputs
        return cls(choice.token_ids, choice.logprobs, output.prompt_logprobs)

    def is_that_of(self, other: Answer) -> bool:
        """To the last bit; where prompts were not asked about, but for them."""
        if self.prompt_logprobs is None:
            other = replace(other, prompt_logprobs=None)
        return self == other


def main() -> None:
    args = arguments()
    library = None
    if args.peers_dir is not None:
        try:
            library = llama_library.find(args.peers_dir)
        except llama_library.LlamaError as error:
            sys.exit(str(error))
    headings = ["file", "as stored", *_WAYS]
    if library is not None:
        headings += ["llama.cpp's best is ours", "KL mean", "KL most", "log-probability most"]
    for line in (headings, ["---"] * len(headings)):
        print(markdown(line), flush=True)
    num_other = 0
    for path in args.files:
        expected, prompts = dequantised(path, args.prompts, args.tokens)
        model = load_model(EngineOptions(model=str(path)))
        cells = [path.stem, model.held.stored_as or "nothing"]
        for answer in ways(model, prompts, args.tokens):
            pairs = zip(answer, expected, strict=False)
            other = sum(not found.is_that_of(wanted) for found, wanted in pairs)
            num_other += other
            cells.append(f"{other} differ" if other else "=")
        if library is not None:
            cells += list(distance(library, path, prompts, expected))
        print(markdown(cells), flush=True)
    if num_other:
        sys.exit(f"{num_other} answers are other than those of the de-quantised model")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--peers-dir", type=Path)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=12)
    return parser.parse_args()


def markdown(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def dequantised(path: Path, num_prompts: int, num_tokens: int) -> tuple[list[Answer], Prompts]:
    """Each prompt's answer, alone and from nothing that was cached; and the prompts."""
    model = load_model(EngineOptions(model=str(path), quantization="none"))
    prompts = [model.tokenizer.encode(prompt) for prompt in PROMPTS[:num_prompts]]
    return alone(model, prompts, num_tokens), prompts


_WAYS = ("alone", "crowd", "miss", "hit", "by 7", "by 64", "by 512", "preempted")


def ways(model: Model, prompts: Prompts, num_tokens: int) -> Iterator[list[Answer]]:
    """The answers to all prompts, in the order of `_WAYS`."""
    yield alone(model, prompts, num_tokens)
    crowd = [*prompts, *(prompt[::-1] for prompt in prompts)]
    yield answers(engine(model, max_num_seqs=len(crowd)), crowd, num_tokens)

    llm = engine(model)
    yield answers(llm, prompts, num_tokens, reads_prompts=False)
    cold = llm.stats().prefix_cache_hits
    yield answers(llm, prompts, num_tokens, reads_prompts=False)
    assert llm.stats().prefix_cache_hits > cold, "nothing was found in the cache"

    for budget in (7, 64, 512):
        yield answers(engine(model, max_num_batched_tokens=budget), prompts, num_tokens)

    demands = [-(-(len(prompt) + num_tokens) // BLOCK_SIZE) for prompt in prompts]
    num_blocks = max(*demands, sum(demands) // 4)
    llm = engine(model, max(demands) * BLOCK_SIZE, num_gpu_blocks_override=num_blocks)
    yield answers(llm, prompts, num_tokens)
    assert llm.stats().num_preemptions > 0, "nothing was preempted: ask for more prompts"


def alone(model: Model, prompts: Prompts, num_tokens: int) -> list[Answer]:
    llm = engine(model, enable_prefix_caching=False)
    return [answers(llm, [prompt], num_tokens)[0] for prompt in prompts]


def engine(model: Model, max_model_len: int = _LONGEST, **options: object) -> LLM:
    defaults = {"num_gpu_blocks_override": NUM_BLOCKS, "block_size": BLOCK_SIZE}
    return LLM.from_engine(
        connect(replace(model, max_model_len=max_model_len), EngineOptions(**(defaults | options)))
    )


def answers(
    llm: LLM, prompts: Prompts, num_tokens: int, *, reads_prompts: bool = True
) -> list[Answer]:
    """`reads_prompts`: with their log-probabilities, which takes nothing from the cache."""
    params = SamplingParams(
        temperature=0,
        max_tokens=num_tokens,
        ignore_eos=True,
        logprobs=_TOP,
        prompt_logprobs=_TOP if reads_prompts else None,
    )
    return [Answer.of(output) for output in llm.generate(prompts, params, use_tqdm=False)]


# ---- llama.cpp's -----------------------------------------------------------------------------


def distance(
    library: Path, path: Path, prompts: Prompts, expected: Sequence[Answer]
) -> Iterator[str]:
    """Four cells: how far llama.cpp's probabilities of the prompts' tokens are from ours."""
    ours = [answer.prompt_logprobs[1:] for answer in expected]
    asked = [
        {"prompt": prompt, "wanted": [list(entry) for entry in entries]}
        for prompt, entries in zip(prompts, ours, strict=True)
    ]
    command = [sys.executable, str(WORKERS / "llama_logprobs.py"), str(library), str(path)]
    lines = "".join(json.dumps(each) + "\n" for each in asked)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    agree, divergences, differences = [], [], []
    for entries, line in zip(ours, done.stdout.splitlines(), strict=True):
        theirs = json.loads(line)
        for entry, best, logprobs in zip(entries, theirs["best"], theirs["logprobs"], strict=True):
            own = [each.logprob for each in entry.values()]
            agree.append(entry[best].rank == 1 if best in entry else False)
            divergences.append(divergence(own, logprobs))
            differences += [abs(a - b) for a, b in zip(own, logprobs, strict=True)]
    yield f"{statistics.mean(agree):.1%} of {len(agree)}"
    yield f"{statistics.mean(divergences):.5f}"
    yield f"{max(divergences):.4f}"
    yield f"{max(differences):.3f}"


def divergence(own: Sequence[float], other: Sequence[float]) -> float:
    """Kullback and Leibler's, of log-probabilities of some outcomes; the rest is one more."""
    named = sum(math.exp(a) * (a - b) for a, b in zip(own, other, strict=True))
    rest, rest_other = (max(1 - math.fsum(map(math.exp, each)), 1e-12) for each in (own, other))
    return named + rest * math.log(rest / rest_other)


if __name__ == "__main__":
    main()
