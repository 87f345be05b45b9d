"""`pagoda doctor` beside a real server over a tiny model, in situations that cannot be mistaken."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from checkpoints import Case, write_checkpoint
from pagoda.cli.main import run
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.options import EngineOptions
from server.live import live_server

LONGEST = 512
SYSTEM = [number % 200 + 1 for number in range(300)]
Body = Callable[[random.Random], dict[str, Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama of two small layers over bytes."""
    config = {"max_position_embeddings": LONGEST, "num_hidden_layers": 2}
    return str(write_checkpoint(tmp_path_factory.mktemp("doctor"), Case("llama", config)))


@contextmanager
def serving(model: str, num_blocks: int) -> Iterator[str]:
    options = EngineOptions(
        model=model, max_model_len=LONGEST, num_gpu_blocks_override=num_blocks, threads=1
    )
    with live_server(AsyncEngine.load(options)) as url:
        yield url


@contextmanager
def asking(url: str, num_clients: int, body: Body) -> Iterator[None]:
    """Clients that ask again and again; at least one answer has come when the block begins."""
    done, answered = threading.Event(), threading.Event()

    def ask(number: int) -> None:
        source = random.Random(number)
        with httpx.Client(base_url=url, timeout=60) as client:
            while not done.is_set():
                client.post("/v1/completions", json=body(source)).raise_for_status()
                answered.set()

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(num_clients)]
    for client in clients:
        client.start()
    try:
        assert answered.wait(60)
        yield
    finally:
        done.set()
        for client in clients:
            client.join(60)


def doctor(url: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = run(["doctor", url, "--watch", "1.5", "--interval", "0.15", "--json"])
    return code, json.loads(capsys.readouterr().out)


def verdict(said: dict[str, Any], question: str) -> str:
    [answer] = [answer for answer in said["answers"] if answer["question"] == question]
    return str(answer["verdict"])


def completion(prompt: list[int], max_tokens: int) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}


def test_a_pool_that_thrashes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    def body(source: random.Random) -> dict[str, Any]:
        return completion([source.randrange(1, 200) for _ in range(16)], 150)

    # 40 blocks hold 640 tokens, and eight clients want 166 each.
    with serving(model, 40) as url, asking(url, 8, body):
        code, said = doctor(url, capsys)
    assert code == 1
    assert verdict(said, "cache") == "thrashing"
    assert [finding["code"] for finding in said["findings"]] == ["preemptions"]
    proposed = {advice["flag"]: advice["proposed"] for advice in said["advice"]}
    # 4 × (16 + 150 / 2 + 8) + 2 × 150 / √12 × √4 is below 95% of 640, for 5 it is not.
    assert proposed["--max-num-seqs"] == "4"
    assert 40 < int(proposed["--num-gpu-blocks-override"]) <= 8 * 11 / 0.95 + 2
    [narrower] = [one for one in said["advice"] if one["flag"] == "--kv-cache-dtype"]
    # A head's 16 numbers in float32, and in int8 with a scale: 64 bytes and 20.
    assert narrower["proposed"] == "int8_per_token_head"
    assert "would hold 3.2 times as much" in narrower["effect"]


@pytest.mark.parametrize(("at_front", "code"), [(True, 1), (False, 0)])
def test_a_number_before_the_shared_prompt_or_behind(
    at_front: bool, code: int, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = itertools.count()

    def body(source: random.Random) -> dict[str, Any]:
        number = [next(numbers) // 200**place % 200 + 1 for place in range(3)]
        question = [source.randrange(1, 200) for _ in range(source.randint(10, 40))]
        prompt = [*number, *SYSTEM] if at_front else [*SYSTEM, *number]
        return completion([*prompt, *question], 2)

    with serving(model, 1000) as url, asking(url, 2, body):
        seen, said = doctor(url, capsys)
    assert seen == code
    assert verdict(said, "cache") == ("unused" if at_front else "fine")
    found = [finding["code"] for finding in said["findings"]]
    # Of what there is to find again half the pool would find as much.
    assert found == (["unstable_prefix"] if at_front else ["large_cache"])


def test_a_server_at_rest(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(model, 40) as url:
        code, said = doctor(url, capsys)
    assert code == 0
    assert verdict(said, "bound") == "idle"
