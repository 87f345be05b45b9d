"""The half of a comparison that runs in an engine's own interpreter; the standard library alone.

stdin holds one JSON list a line: the requests of a workload, each [token ids, output tokens].
stdout gets one JSON object a line: what the engine is, once it is ready, then for each workload
the seconds it took and the tokens that came out. What the engine itself prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

Work = list[tuple[list[int], int]]
"""Prompt token ids, and how many tokens to generate."""

KV_CACHE_BYTES = 2 * 2**30
MAX_MODEL_LEN = 8192
MAX_NUM_SEQS = 64

# Ids that no workload has.
_WARM_UP: Work = [(list(range(50, 100)), 8)]

_started = time.perf_counter()


class Engine(Protocol):
    """An engine that is loaded."""

    version: str

    def reset(self) -> None:
        """Empty the prefix cache."""
        ...

    def run(self, work: Work) -> int:
        """Answer all requests at once, greedily and to their full length; tokens that came out."""
        ...


def serve(load: Callable[..., Engine]) -> None:
    """Load the model that the command line names, and time each workload that stdin brings.

    What else the command line has is the engine's own.
    """
    # Libraries print where they like: stdout itself becomes ours alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = load(*sys.argv[1:])
    engine.run(_WARM_UP)
    ready = {"version": engine.version, "ready_seconds": time.perf_counter() - _started}
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        work = [(ids, count) for ids, count in json.loads(line)]
        engine.reset()
        # Others ran in between: what belongs to this engine comes back into the processor's caches.
        engine.run(_WARM_UP)
        start = time.perf_counter()
        output_tokens = engine.run(work)
        answer = {"seconds": time.perf_counter() - start, "output_tokens": output_tokens}
        print(json.dumps(answer), file=answers, flush=True)
