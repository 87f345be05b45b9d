"""One answer of many tokens over HTTP: memory and time a token, as it grows.

    python benchmarks/endless.py [--tokens 100000] [--retention streaming:sinks=4,window=1020]

Starts `pagoda serve`, asks for a streamed answer that long and prints, for each tenth of it,
milliseconds a token and the server's resident memory.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import psutil


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(base: str, server: subprocess.Popen[bytes]) -> None:
    """Until it answers."""
    while True:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}")
        try:
            if httpx.get(f"{base}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)


def tokens(base: str, prompt: str, count: int) -> Iterator[int]:
    """How many tokens there are, after each event of the stream."""
    body = {
        "prompt": prompt, "max_tokens": count, "temperature": 1.0, "seed": 1, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip
    with httpx.stream("POST", f"{base}/v1/completions", json=body, timeout=None) as response:
        if response.status_code != 200:
            raise SystemExit(response.read().decode())
        for line in response.iter_lines():
            if line.startswith("data: {"):
                usage = json.loads(line[6:]).get("usage") or {}
                yield usage.get("completion_tokens", 0)


def main() -> None:
    """Serve, ask and tell."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--retention", default="streaming:sinks=4,window=1020")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--memory", default="64MiB", help="of the cache; it fills up with time")
    args = parser.parse_args()
    port = free_port()
    command = [
        *(sys.executable, "-m", "pagoda", "serve", "--model", args.model, "--port", str(port)),
        *("--kv-retention", args.retention, "--max-model-len", str(args.tokens + 1000)),
        *("--quantization", "none", "--kv-cache-memory-bytes", args.memory),
        *("--request-timeout", "0"),
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        base, process = f"http://127.0.0.1:{port}", psutil.Process(server.pid)
        wait_for(base, server)
        print("| tokens | ms a token | resident MiB |")
        step, due, started, before = args.tokens // 10, args.tokens // 10, time.perf_counter(), 0
        for count in tokens(base, "Once upon a time", args.tokens):
            if count >= due:
                took = (time.perf_counter() - started) * 1e3 / (count - before)
                resident = process.memory_info().rss / 2**20
                print(f"| {count:,} | {took:.2f} | {resident:.1f} |", flush=True)
                due, started, before = due + step, time.perf_counter(), count
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
