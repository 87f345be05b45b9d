"""Formats of the KV cache on the workloads, in turn, and the ratios to the first of them.

    python benchmarks/cache_formats.py [--formats auto int8_per_token_head fp8 int4 int3]
        [--workload "first token" longbatch] [--model FILE] [--repeat 5]

All are in one process and take turns, round after round: on some machines whole processes are
quicker or slower than others by more than formats are. Weights are bfloat16. `first token` is the
prompt of `long`, and one token. Seconds are the best of all rounds, after one that is not counted;
in brackets is the middle one of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median

from peers import tell

from pagoda import LLM, RefusedError, SamplingParams
from pagoda.roofline import WORKLOADS, Work, WorkItem, draw

_FIRST_TOKEN = "first token"
_CACHE_BYTES = 1 << 29
_MAX_MODEL_LEN = 4352


def main() -> None:
    args = arguments()
    options = {
        "quantization": "none", "dtype": "bfloat16", "max_model_len": _MAX_MODEL_LEN,
        "kv_cache_memory_bytes": _CACHE_BYTES, "enable_prefix_caching": False,
    }  # fmt: skip
    try:
        engines = {name: LLM(args.model, kv_cache_dtype=name, **options) for name in args.formats}
    except RefusedError as error:
        sys.exit(str(error))
    times: dict[str, dict[str, list[float]]] = {}
    for name in args.workload:
        own = times[name] = {format_name: [] for format_name in engines}
        for number in range(args.repeat + 1):
            for format_name, llm in engines.items():
                seconds = timed(llm, work(name))
                tell(f"{name}, round {number}: {format_name} {seconds:.2f} s")
                if number > 0:
                    own[format_name].append(seconds)
    print(markdown(times))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--formats", nargs="+", default=["auto", "int8_per_token_head", "fp8", "int4", "int3"]
    )
    parser.add_argument(
        "--workload", nargs="+", default=[_FIRST_TOKEN, "longbatch"],
        choices=[_FIRST_TOKEN, *WORKLOADS],
    )  # fmt: skip
    parser.add_argument("--model")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    if args.repeat < 1:
        parser.error("--repeat must be at least 1")
    return args


def work(name: str) -> Work:
    if name != _FIRST_TOKEN:
        return draw(name, 0)
    return [WorkItem(item.prompt_token_ids, 1) for item in draw("long", 0)]


def timed(llm: LLM, items: Work) -> float:
    """Seconds until all of it is answered."""
    prompts = [{"prompt_token_ids": list(item.prompt_token_ids)} for item in items]
    params = [
        SamplingParams(temperature=0, max_tokens=item.num_output_tokens, ignore_eos=True)
        for item in items
    ]
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start


def markdown(times: dict[str, dict[str, list[float]]]) -> str:
    """A row for each format: seconds of each workload, and what they are of the first format's."""
    headings = ["format", *(text for name in times for text in (f"{name}, s", "to the first"))]
    lines = [headings, ["---"] * len(headings)]
    for name in next(iter(times.values())):
        line = [name]
        for seconds in times.values():
            own, first = seconds[name], next(iter(seconds.values()))
            middle = median(a / b for a, b in zip(own, first, strict=True))
            line += [f"{min(own):.2f}", f"{min(own) / min(first):.3f} ({middle:.3f})"]
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
