"""Whether weights as stored change an answer, and how far it and llama.cpp are from float32.

    python benchmarks/stored_answers.py FILE.gguf ... [--peers-dir DIR] [--prompts 12] [--tokens 12]
        [--activation-dtype int8]

Each file is answered with `quantization="none"`, every prompt alone, and then as it is stored in
all the ways of tests/engine/test_promises.py: alone, in a crowd, missed, found in the cache, in
chunks and preempted. Tokens and log-probabilities, of answers and of prompts, must be the same to
the last bit; exit code 1 where one is not. With activations of int8, which are no longer those of
the de-quantised model, all ways are held to the answers as stored, alone.

With DIR, which holds llama.cpp (benchmarks/stored_files.py makes files with it), both are compared
with the same file computed in float32, over the tokens of the prompts: how often their most likely
next token is that of float32, and Kullback and Leibler's divergence from it in nats, over its 20
most likely tokens and all others together. llama.cpp computes as it does without options.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import PIPE

from likelihoods import Likely, distance

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
Logprobs = list[dict[int, Logprob] | None]


@dataclass(frozen=True)
class Answer:
    """Of one prompt."""

    tokens: list[int]
    logprobs: Logprobs | None
    prompt_logprobs: Logprobs | None

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
    headings = ["file", "as stored", "answers and prompts compared", "the same"]
    if library is not None:
        of_both = ("best is float32's", "KL, mean", "KL, most")
        headings += [f"{each}: {who}" for each in of_both for who in ("as stored", "llama.cpp")]
    for line in (headings, ["---"] * len(headings)):
        print(markdown(line), flush=True)
    num_other = 0
    for path in args.files:
        cells, others = examine(path, args, library)
        num_other += others
        print(markdown(cells), flush=True)
    if num_other:
        sys.exit(f"{num_other} answers are other ones")


def examine(path: Path, args: argparse.Namespace, library: Path | None) -> tuple[list[str], int]:
    """A file's row, and how many of its answers are other than they should be."""
    stored = EngineOptions(model=str(path), activation_dtype=args.activation_dtype)
    plain = replace(stored, quantization="none", activation_dtype="auto")
    model = load_model(stored if args.activation_dtype == "int8" else plain)
    prompts = [model.tokenizer.encode(prompt) for prompt in PROMPTS[: args.prompts]]
    expected = alone(model, prompts, args.tokens)
    model = load_model(stored)
    others = compare(ways(model, prompts, args.tokens), expected)
    cells = [path.stem, model.held.stored_as or "nothing"]
    cells += [str(len(_WAYS) * len(prompts)), verdict(others)]
    if library is not None:
        exact = float32(path, prompts)
        own = distance([Likely.of(answer.prompt_logprobs[1:]) for answer in expected], exact)
        theirs = distance(llama_says(library, path, prompts, exact), exact)
        cells += [cell for pair in zip(own, theirs, strict=True) for cell in pair]
    return cells, sum(others.values())


def compare(found: Iterable[list[Answer]], expected: list[Answer]) -> dict[str, int]:
    """How many answers are other ones, by the way; more than are expected are company alone."""
    return {
        way: sum(not own.is_that_of(wanted) for own, wanted in zip(each, expected, strict=False))
        for way, each in zip(_WAYS, found, strict=True)
    }


def verdict(others: Mapping[str, int]) -> str:
    differing = [f"{count} differ {way}" for way, count in others.items() if count]
    return ", ".join(differing) or "all"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--peers-dir", type=Path)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--activation-dtype", default="auto", choices=("auto", "int8"))
    args = parser.parse_args()
    for path in args.files:
        if not path.is_file():
            parser.error(f"there is no file {path}")
    return args


def markdown(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


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


# ---- how far from float32 ---------------------------------------------------------------------


def float32(path: Path, prompts: Prompts) -> list[Likely]:
    """What the file says in float32, which agrees with transformers."""
    model = load_model(EngineOptions(model=str(path), dtype="float32"))
    return [
        Likely.of(answer.prompt_logprobs[1:])
        for answer in answers(engine(model), prompts, num_tokens=1)
    ]


def llama_says(
    library: Path, path: Path, prompts: Prompts, asked: Sequence[Likely]
) -> list[Likely]:
    """What llama.cpp makes of the tokens that are asked about."""
    lines = [
        json.dumps({"prompt": prompt, "wanted": [list(place) for place in each.logprobs]}) + "\n"
        for prompt, each in zip(prompts, asked, strict=True)
    ]
    command = [sys.executable, str(WORKERS / "llama_logprobs.py"), str(library), str(path)]
    done = subprocess.run(command, input="".join(lines), stdout=PIPE, text=True, check=True)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        Likely(
            each["best"],
            [
                dict(zip(place, logprobs, strict=True))
                for place, logprobs in zip(wanted.logprobs, each["logprobs"], strict=True)
            ],
        )
        for each, wanted in zip(said, asked, strict=True)
    ]


if __name__ == "__main__":
    main()
