"""What other sizes of a live server's cache would find: to operators alone."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from checkpoints import CASES, write_checkpoint
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.options import EngineOptions
from pagoda.server.keys import KeyRing
from server.live import live_server

NUM_BLOCKS = 40
KEYS = {"key-of-ann": "ann", "key-of-bob": "bob", "key-of-the-house": "house"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), CASES["llama-gqa"])


def engine_of(checkpoint: Path, **options: Any) -> AsyncEngine:
    return AsyncEngine.load(
        EngineOptions(
            str(checkpoint),
            max_model_len=128,
            num_gpu_blocks_override=NUM_BLOCKS,
            block_size=4,
            threads=1,
            **options,
        )
    )


def client_of(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"x-api-key": key}, timeout=60)


def cached(client: httpx.Client, prompt: list[int]) -> int:
    body = {"prompt": prompt, "max_tokens": 1}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_the_curve_of_a_live_server(checkpoint: Path) -> None:
    engine = engine_of(checkpoint, eviction_policy="slru")
    keys = KeyRing(KEYS, operators=["key-of-the-house"])
    with live_server(engine, keys=keys) as url:
        ann, bob, house = (client_of(url, key) for key in KEYS)
        empty = house.get("/cache/curve").json()
        assert {row["hit_rate"] for row in empty["rows"]} == {None}
        assert "prefix_cache_hit_rate_at{" not in house.get("/metrics").text

        prompts = [[start + 1] * 60 for start in range(4)]
        asked = [(ann, prompt) for prompt in prompts] + [(bob, prompts[0]), (ann, prompts[0])]
        found = sum(cached(client, prompt) for client, prompt in asked)

        told = house.get("/cache/curve").json()
        assert (told["num_blocks"], told["block_size"], told["policy"]) == (NUM_BLOCKS, 4, "slru")
        assert (told["requests"], told["tokens"]) == (6, 360)
        assert told["sampling_rate"] == 1
        assert told["sampled_tokens"] == 360
        rates = {(row["policy"], row["multiple"]): row["hit_rate"] for row in told["rows"]}
        assert set(rates) == {(p, m) for p in ("slru", "lru") for m in (0.25, 0.5, 1, 2, 4, 8)}
        # Bob shares nothing with Ann. Her first prompt is there again where 75 blocks fit.
        assert found == 0
        for (policy, multiple), rate in rates.items():
            expected = 60 / told_tokens(told) if multiple >= 2 else 0
            assert rate == pytest.approx(expected, abs=0.03), (policy, multiple)

        text = house.get("/metrics").text
        pattern = r'pagoda:prefix_cache_hit_rate_at\{.*?multiple="2".*?policy="lru".*?\} (\S+)'
        [rate] = re.findall(pattern, text)
        assert float(rate) == rates["lru", 2]
        [evicted] = re.findall(r"pagoda:kv_block_lifetime_seconds_count\{.*?\} (\S+)", text)
        [idle] = re.findall(r"pagoda:kv_block_idle_before_evict_seconds_count\{.*?\} (\S+)", text)
        [counted] = re.findall(r"pagoda:kv_cache_evictions_total\{.*?\} (\S+)", text)
        assert float(evicted) == float(idle) == float(counted) > 0

        for client in (ann, bob):
            refused = client.get("/cache/curve")
            assert refused.status_code == 403
            assert refused.json()["error"]["code"] == "operators_only"


def told_tokens(told: dict[str, Any]) -> float:
    """Tokens looked up lately: each prompt of 60 counts the less, the more came after it."""
    half_life = told["half_life_tokens"]
    return sum(60 * 0.5 ** (60 * number / half_life) for number in range(6))


def test_one_tenant_alone_is_an_operator(checkpoint: Path) -> None:
    with live_server(engine_of(checkpoint), keys=KeyRing({"key-of-ann": "ann"})) as url:
        ann = client_of(url, "key-of-ann")
        cached(ann, [1] * 20)
        assert cached(ann, [1] * 20) == 19
        told = ann.get("/cache/curve").json()
        assert {row["policy"] for row in told["rows"]} == {"density", "lru"}
        own, _ = (row for row in told["rows"] if row["multiple"] == 1)
        assert own["num_blocks"] == NUM_BLOCKS
        assert 0.4 < own["hit_rate"] < 0.55


def test_without_prefix_caching_there_is_nothing_to_tell(checkpoint: Path) -> None:
    engine = engine_of(checkpoint, enable_prefix_caching=False)
    with live_server(engine) as url, httpx.Client(base_url=url, timeout=60) as client:
        assert cached(client, [1] * 20) == 0
        told = client.get("/cache/curve").json()
        assert told["requests"] == 0
        assert {row["hit_rate"] for row in told["rows"]} == {None}


def test_where_a_tenant_has_a_quota_the_reason_is_told_that_there_is_none(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = KeyRing(KEYS, operators=["key-of-the-house"], quotas={"bob": "floor=10%"})
    engine = engine_of(checkpoint, tenant_quotas=keys.quotas)
    with live_server(engine, keys=keys) as url:
        told = client_of(url, "key-of-the-house").get("/cache/curve")
    error = told.json()["error"]
    assert (told.status_code, error["code"]) == (409, "curve_not_followed")
    assert error["type"] == "invalid_request_error"
    assert "quotas" in error["message"]
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
