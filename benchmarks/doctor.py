"""Stage situations on a live server, and see what `pagoda doctor` says of each.

    pagoda serve --num-gpu-blocks-override 512 --max-model-len 2048 --port 8000 &
    python benchmarks/doctor.py http://127.0.0.1:8000 [--situation NAME ...] [--seconds 20]

The server is Pagoda's or vLLM's, with a cache of some 8,000 tokens: `thrash` needs one that
answers can outgrow, and `queue`, which is staged only when it is named, a server with
`--max-num-seqs 4`. Clients ask in a closed loop. `stable` is `prefix` mended, and should come out
healthy. `--record DIR` keeps what was read, each family's values in a row, as the tests have it.
Prints for each situation what bounds the server, what its cache does, what should change, tokens a
second and preemptions, then one JSON line. A situation is watched from its first answer on, until
as many answers came as there are clients: a slow machine takes longer to fill the cache, and to
show what follows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from pagoda.doctor import Scrape, Window, examine, read_scrape
from pagoda.doctor.scrape import Series
from pagoda.errors import RefusedError

Watch = Callable[[httpx.AsyncClient, Callable[[], bool]], Awaitable[Any]]
"""Reads until the second one says that enough was answered."""
_SETTLE_S = 4.0
"""Clients ask for so long before the first scrape, at least."""
_FIRST_ID, _LAST_ID = 100, 47_999
_WORDS = (
    "You help people who rent boats on the lakes. Answer from the rules below and be brief. "
    "Rule {n}: a boat of class {n} may stay out for {n} hours, wants {n} life vests on board, "
    "and is handed back at pier {n} with a full tank. "
)


@dataclass(frozen=True, slots=True)
class Situation:
    """What each of `num_clients` asks, again and again."""

    num_clients: int
    route: str
    body: Callable[[random.Random], dict[str, Any]]


def _ids(source: random.Random, count: int) -> list[int]:
    return [source.randrange(_FIRST_ID, _LAST_ID) for _ in range(count)]


def _completion(
    least: int, most: int, output_tokens: int
) -> Callable[[random.Random], dict[str, Any]]:
    """A completion of a prompt of random tokens, of any length between two."""
    return lambda source: {
        "prompt": _ids(source, source.randint(least, most)),
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
    }


def _chat(system: Callable[[str, str], str]) -> Callable[[random.Random], dict[str, Any]]:
    """A chat behind a long system prompt; `system` puts a time and the rules together."""
    rules = "".join(_WORDS.format(n=number) for number in range(1, 11))

    def body(source: random.Random) -> dict[str, Any]:
        question = f"May I take boat {source.randrange(10**6)} out at {source.randrange(24)}?"
        return {
            "messages": [
                {"role": "system", "content": system(datetime.now().isoformat(), rules)},
                {"role": "user", "content": question},
            ],
            "max_tokens": 16,
            "temperature": 0,
        }

    return body


SITUATIONS = {
    "prefill": Situation(4, "/v1/completions", _completion(150, 1400, 4)),
    "decode": Situation(8, "/v1/completions", _completion(16, 64, 256)),
    "thrash": Situation(48, "/v1/completions", _completion(24, 72, 400)),
    "prefix": Situation(
        4, "/v1/chat/completions", _chat(lambda now, rules: f"The time is {now}. {rules}")
    ),
    "stable": Situation(
        4, "/v1/chat/completions", _chat(lambda now, rules: f"{rules} The time is {now}.")
    ),
    "queue": Situation(16, "/v1/completions", _completion(16, 64, 128)),
}
_STAGED = [name for name in SITUATIONS if name != "queue"]


async def _client(
    http: httpx.AsyncClient,
    model: str,
    situation: Situation,
    source: random.Random,
    answers: list[float],
) -> None:
    """Ask; `answers` gets the time of each answer."""
    while True:
        body = {"model": model, **situation.body(source)}
        answer = await http.post(situation.route, json=body)
        answer.raise_for_status()
        answers.append(time.monotonic())


async def under(url: str, name: str, seed: int, watch: Watch) -> Any:
    """What `watch` returns, run while the clients of a situation ask."""
    situation, answers = SITUATIONS[name], list[float]()
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits()) as http:
        models = (await http.get("/v1/models")).raise_for_status().json()
        model = models["data"][0]["id"]
        sources = [random.Random(f"{seed}/{number}") for number in range(situation.num_clients)]
        clients = [
            asyncio.create_task(_client(http, model, situation, source, answers))
            for source in sources
        ]
        watching = asyncio.create_task(_settled(http, answers, situation.num_clients, watch))
        try:
            await asyncio.wait([watching, *clients], return_when=asyncio.FIRST_COMPLETED)
            for task in clients:
                if task.done():
                    task.result()
            return await watching
        finally:
            for task in (watching, *clients):
                task.cancel()
            await asyncio.gather(watching, *clients, return_exceptions=True)


async def _settled(
    http: httpx.AsyncClient, answers: list[float], num_clients: int, watch: Watch
) -> Any:
    await asyncio.sleep(_SETTLE_S)
    while not answers:
        await asyncio.sleep(0.1)
    wanted = len(answers) + num_clients
    return await watch(http, lambda: len(answers) >= wanted)


async def _read(
    http: httpx.AsyncClient, is_over: Callable[[], bool], seconds: float, interval: float
) -> list[Scrape]:
    scrapes = []
    start = time.monotonic()
    while True:
        text = (await http.get("/metrics")).text
        scrapes.append(read_scrape(text, time.monotonic() - start, str(http.base_url)))
        if scrapes[-1].time_s >= seconds and is_over():
            return scrapes
        await asyncio.sleep(interval)


def _in_rows(scrapes: list[Scrape]) -> str:
    """JSON of the families that the doctor reads, a series a line; one value if never changed."""
    rows: dict[str, list[float]] = {}
    for scrape in scrapes:
        for key, value in scrape.values.items():
            if key.name.startswith(_READ) and not key.name.endswith(_UNREAD):
                rows.setdefault(_written(scrape.engine, key), []).append(round(value, 4))
    whole = {name: row for name, row in rows.items() if len(row) == len(scrapes)}
    series = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(row if len(set(row)) > 1 else row[0])}"
        for name, row in whole.items()
    )
    times = json.dumps([round(scrape.time_s, 3) for scrape in scrapes])
    return f'{{"times": {times},\n"series": {{\n{series}\n}}}}\n'


def _written(engine: str, key: Series) -> str:
    """A series as Prometheus writes it; a model that is called by a path keeps its last part."""
    kept = {name: value for name, value in key.labels if name in _LABELS}
    labels = {"engine": key.engine, "model_name": key.model_name.rpartition("/")[2], **kept}
    inside = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()) if value)
    return f"{engine}:{key.name}{{{inside}}}"


_READ = (
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"),
    *("num_preemptions_total", "prefix_cache_", "generation_tokens_total", "kv_block_"),
    *("prompt_tokens_by_source_total", "request_success_total", "iteration_tokens_total"),
    *("request_prompt_tokens", "request_generation_tokens", "time_to_first_token_seconds_count"),
    *("request_queue_time", "request_prefill_time", "request_decode_time"),
)
_UNREAD = ("_created", "_by_reason", "seconds_bucket", "generation_tokens_bucket")
_LABELS = (
    *("le", "source", "finished_reason", "block_size", "num_gpu_blocks", "num_gpu_blocks_override"),
    *("cache_dtype", "enable_prefix_caching", "gpu_memory_utilization", "kv_cache_size_tokens"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--situation", nargs="+", default=_STAGED, choices=SITUATIONS)
    parser.add_argument("--seconds", type=float, default=20, help="at least, for each situation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    said = {}
    for name in args.situation:
        read = partial(_read, seconds=args.seconds, interval=1.0)
        try:
            scrapes = asyncio.run(under(args.url, name, args.seed, read))
        except (httpx.HTTPError, httpx.InvalidURL, json.JSONDecodeError, RefusedError) as error:
            sys.exit(f"{args.url}: cannot be asked: {str(error) or type(error).__name__}")
        if args.record:
            args.record.mkdir(parents=True, exist_ok=True)
            path = args.record / f"{scrapes[0].engine}-{name}.json"
            path.write_text(_in_rows(scrapes))
        said[name] = _told(name, Window(scrapes))
        time.sleep(3)  # until the server has noticed that its clients went away
    print(json.dumps({"url": args.url, "said": said}))


def _told(name: str, window: Window) -> dict[str, Any]:
    """Tokens a second are told to hold a situation against itself once advice was followed."""
    diagnosis = examine(window)
    per_s = (window.increase("generation_tokens_total") or 0.0) / window.duration_s
    num_preemptions = window.increase("num_preemptions_total") or 0.0
    said = {answer.question: answer.verdict for answer in diagnosis.answers}
    codes = [f.code for f in diagnosis.findings if f.severity == "change"]
    print(
        f"{name:8} {said['bound']:8} {said['cache']:10} {' '.join(codes) or 'healthy'}; "
        f"{per_s:.0f} tokens/s, {num_preemptions:.0f} preemptions"
    )
    print(f"         {diagnosis.answer('next').summary}")
    figures = {"generated_per_s": round(per_s, 1), "preemptions": num_preemptions}
    return {**said, "change": codes, **figures}


if __name__ == "__main__":
    main()
