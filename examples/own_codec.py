"""A codec of one's own in the real cache: its bytes a token, and what it costs on a text.

    python examples/own_codec.py [--tokens 1024] [--model DIR]

Keys are rotated and kept in five bits, values in four, even steps. Nothing has to be registered: a
codec's name says all of it, so `pagoda serve --kv-cache-dtype NAME`, `pagoda plan` and `pagoda lab`
take it as well.
"""

import argparse
import math
import pydoc_data.topics

from pagoda import LLM, SamplingParams
from pagoda.codecs import Codec, VectorCodec, name_of

MINE = Codec(
    key=VectorCodec("levels", 5, "float16", fit="norm", turns="hadamard"),
    value=VectorCodec("levels", 4, "float16", has_offset=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=1024)
    args = parser.parse_args()
    print("K and V, bytes a token, perplexity, likeliest tokens that are the same")
    likeliest: list[int] = []
    for name in ("auto", name_of(MINE)):
        llm = LLM(args.model, kv_cache_dtype=name, max_model_len=args.tokens + 1)
        logprob, ranked = read(llm, args.tokens)
        likeliest = likeliest or ranked
        same = sum(one == other for one, other in zip(ranked, likeliest, strict=True))
        print(
            f"{name}  {llm.engine.stored.bytes_per_token:,.0f}  {math.exp(-logprob):.3f}  "
            f"{same / len(ranked):.1%}"
        )


def read(llm: LLM, num_tokens: int) -> tuple[float, list[int]]:
    """A text's mean log-probability of a token, and the likeliest token at each place."""
    text = "".join(pydoc_data.topics.topics.values())[: 20 * num_tokens]  # Python's own manual
    tokens = llm.get_tokenizer().encode(text)[:num_tokens]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    (output,) = llm.generate([tokens], params, use_tqdm=False)
    told = list(zip(tokens, output.prompt_logprobs, strict=True))[1:]
    logprobs = [entry[token].logprob for token, entry in told]
    first = [min(entry, key=lambda token: entry[token].rank) for _, entry in told]
    return sum(logprobs) / len(logprobs), first


if __name__ == "__main__":
    main()
