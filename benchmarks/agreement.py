"""How far bfloat16 is from float32, and whether anything but the dtype changes an answer.

    python benchmarks/agreement.py [--tokens 64]

The prompts of tests/prompts.py are answered greedily in float32, which agrees with transformers
token for token (tests/engine/test_promises.py). Then, in bfloat16:

1. the same text is read again and each token's log-probability compared: the noise of the dtype;
2. the prompts are answered alone, in a crowd, in chunks and from the cache: the noise of the way.

Prints two tables, then one JSON line.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from itertools import takewhile
from pathlib import Path

from pagoda import LLM, SamplingParams

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from prompts import PROMPTS

WAYS = {
    "together": {},
    "chunks of 7": {"max_num_batched_tokens": 7},
    "chunks of 64": {"max_num_batched_tokens": 64},
    "blocks of 64": {"block_size": 64},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    greedy = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)

    exact = make("float32")
    prompts = [exact.engine.tokenizer.encode(prompt) for prompt in PROMPTS]
    answers = answer(exact, prompts, greedy)
    texts = [prompt + tokens for prompt, tokens in zip(prompts, answers, strict=True)]
    expected = read(exact, texts, prompts)
    del exact
    gc.collect()

    noise = dtype_noise(expected, read(make("bfloat16"), texts, prompts))
    print(f"bfloat16 reading {noise['tokens']} tokens that float32 chose")
    print(f"  most likely in bfloat16 too         {noise['top_1']:.2%}")
    print(
        f"  |difference| of log-probability  mean {noise['mean']:.4f}, largest {noise['max']:.3f}"
    )

    alone = alone_each(prompts, greedy)
    ways = {"float32": agreement(alone, answers)}
    for name, options in WAYS.items():
        llm = make("bfloat16", **options)
        ways[name] = agreement(alone, answer(llm, prompts, greedy))
        if name == "together":
            ways["from the cache"] = agreement(alone, answer(llm, prompts, greedy))
        del llm
        gc.collect()
    print("bfloat16 answers, each prompt alone, against          tokens alike   answers alike")
    for name, (tokens, whole) in ways.items():
        print(f"  {name:<50} {tokens:11.2%}   {whole:6} of {len(prompts)}")
    print(json.dumps({"benchmark": "agreement", "dtype": noise, "ways": ways}))


def make(dtype: str, **options: object) -> LLM:
    return LLM(dtype=dtype, max_model_len=1024, kv_cache_memory_bytes=2**29, **options)


def answer(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def alone_each(prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    llm = make("bfloat16", enable_prefix_caching=False)
    return [answer(llm, [prompt], params)[0] for prompt in prompts]


def read(llm: LLM, texts: list[list[int]], prompts: list[list[int]]) -> list[tuple[float, int]]:
    """Log-probability and rank of every token that follows a prompt."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    found = []
    for prompt, output in zip(prompts, llm.generate(texts, params, use_tqdm=False), strict=True):
        assert output.prompt_logprobs is not None
        for position in range(len(prompt), output.num_prompt_tokens):
            entry = (output.prompt_logprobs[position] or {})[output.prompt_token_ids[position]]
            found.append((entry.logprob, entry.rank))
    return found


def dtype_noise(
    expected: list[tuple[float, int]], found: list[tuple[float, int]]
) -> dict[str, float]:
    differences = [abs(a[0] - b[0]) for a, b in zip(expected, found, strict=True)]
    return {
        "tokens": len(found),
        "top_1": statistics.mean(rank == 1 for _, rank in found),
        "mean": statistics.mean(differences),
        "max": max(differences),
    }


def agreement(one: list[list[int]], other: list[list[int]]) -> tuple[float, int]:
    """Share of tokens before the first difference of their answer, and answers alike."""
    alike = sum(
        sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(a, b, strict=True)))
        for a, b in zip(one, other, strict=True)
    )
    return alike / sum(map(len, one)), sum(a == b for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    main()
