"""Traces that tests make up."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pagoda.replay.faults import Faults
from pagoda.replay.recorded import RecordedSetting
from pagoda.replay.trace import TracedRequest

UNIT = 4


def asked(
    ids: Sequence[int],
    *,
    rest: int = 0,
    output: int = 0,
    at: float = 0.0,
    answer_ids: Sequence[int] = (),
    num_known: int | None = None,
    **more: Any,
) -> TracedRequest:
    """A request of full units, and `rest` tokens behind them; its answer's units may have ids."""
    unit_ids = array("Q", [*ids, *answer_ids])
    return TracedRequest(
        arrival_s=at,
        num_prompt_tokens=len(ids) * UNIT + rest,
        num_output_tokens=output,
        unit_ids=unit_ids,
        unit_size=UNIT,
        num_known_tokens=len(unit_ids) * UNIT if num_known is None else num_known,
        **more,
    )


def prefixes(seed: int, num_requests: int, deepest: int = 5, width: int = 3) -> list[list[int]]:
    """Ids of units that begin alike at random: walks down a tree."""
    source = random.Random(seed)
    walks = []
    for _ in range(num_requests):
        name, walk = 0, []
        for _ in range(source.randint(1, deepest)):
            name = name * width + source.randint(1, width)
            walk.append(name)
        walks.append(walk)
    return walks


class ListedTrace:
    """A trace of requests that lie in a list."""

    name = "listed"
    unit_size = UNIT
    recorded: RecordedSetting | None = None

    def __init__(self, requests: Sequence[TracedRequest]) -> None:
        self.requests = requests
        self.faults = Faults()
        self.num_requests = len(requests)

    def __iter__(self) -> Iterator[TracedRequest]:
        return iter(self.requests)


def mooncake_row(ids: Sequence[int], prompt: int, output: int = 1, at_ms: float = 0) -> str:
    row = {
        "timestamp": at_ms,
        "input_length": prompt,
        "output_length": output,
        "hash_ids": list(ids),
    }
    return json.dumps(row) + "\n"


def write_mooncake(path: Path, num_requests: int = 60, seed: int = 1) -> Path:
    """A file of Mooncake's rows."""
    rows = prefixes(seed, num_requests)
    path.write_text(
        "".join(
            mooncake_row(ids, len(ids) * 512 - 100, 20 + at, at * 100.0)
            for at, ids in enumerate(rows)
        ),
        "utf-8",
    )
    return path
