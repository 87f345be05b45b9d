"""What a KV cache is for, measured on the model: tokens a second with one and without.

    python examples/with_and_without_cache.py [--prompt-tokens 256] [--output-tokens 32]

Without a cache every new token means computing the whole text again, so each costs more than the
one before. With a cache each costs one token's work and the reading of what is kept.
"""

import argparse
import time
from collections.abc import Callable

from pagoda import LLM, SamplingParams

TEXT = "Pages of a book, floors of a tower: what has been worked out once is kept. "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=32)
    args = parser.parse_args()
    llm = LLM(args.model, enable_prefix_caching=False)
    prompt = llm.engine.tokenizer.encode(TEXT * args.prompt_tokens)[: args.prompt_tokens]

    kept, seconds_kept = timed(lambda: generate(llm, prompt, args.output_tokens))
    anew, seconds_anew = timed(lambda: generate_anew(llm, prompt, args.output_tokens))
    same = sum(one == other for one, other in zip(kept, anew, strict=True))
    print(f"with a KV cache     {args.output_tokens / seconds_kept:7.1f} tokens/s")
    print(f"without a KV cache  {args.output_tokens / seconds_anew:7.1f} tokens/s")
    print(f"{seconds_anew / seconds_kept:.1f} times faster; {same} of {len(kept)} tokens alike")


def generate(llm: LLM, prompt: list[int], count: int) -> list[int]:
    """`count` tokens after `prompt`, with the cache."""
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    return list(output.outputs[0].token_ids)


def generate_anew(llm: LLM, prompt: list[int], count: int) -> list[int]:
    """The same tokens, each a new request that computes everything from the start."""
    tokens = list(prompt)
    for _ in range(count):
        tokens += generate(llm, tokens, 1)
    return tokens[len(prompt) :]


def timed(work: Callable[[], list[int]]) -> tuple[list[int], float]:
    """The result, and the seconds it took."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    main()
