"""Why prompts were missed, told by a live server: each cause staged, and nothing across tenants."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from checkpoints import CASES, write_checkpoint
from pagoda.cli.main import run
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.options import EngineOptions
from pagoda.engine.transfers.transfers import NoTransfers
from pagoda.server.keys import KeyRing
from server.live import live_server, wait_until

NUM_BLOCKS = 40
TEXT = "a pagoda on a hill, and the bells of evening "
FILL = "z" * 100
OWN_ID = "job#7?/a%b"
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


class Clients:
    """A client of each tenant, and an operator."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ann, self.bob, self.house = (
            httpx.Client(base_url=url, headers={"x-api-key": key}, timeout=60) for key in KEYS
        )


@pytest.fixture
def clients(checkpoint: Path) -> Iterator[Clients]:
    keys = KeyRing(KEYS, operators=["key-of-the-house"])
    with live_server(engine_of(checkpoint, request_kv_retention=True), keys=keys) as url:
        yield Clients(url)


def completion(client: httpx.Client, prompt: object, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 1, "explain_cache": True, **fields}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def explained(client: httpx.Client, prompt: object, **fields: Any) -> dict[str, Any]:
    answer = completion(client, prompt, **fields)
    [told] = answer["usage"]["cache_explanation"]
    assert told["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert told["found_tokens"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert sum(told["missed_tokens"].values()) + told["found_tokens"] == told["prompt_tokens"]
    result: dict[str, Any] = told
    return result


def test_each_cause(clients: Clients) -> None:
    ann = clients.ann
    assert explained(ann, TEXT)["cause"] == "never_seen"
    assert explained(ann, TEXT)["cause"] == "remainder"
    told = explained(ann, TEXT[:11] + "X" + TEXT[12:])
    place = told["diverged"]
    assert told["cause"] == "diverged"
    assert (place["after"] + place["cached"]) in TEXT
    assert place["prompt"].startswith("X")
    assert place["position"] - told["found_tokens"] in range(4)
    assert explained(ann, TEXT, echo=True, logprobs=1)["cause"] == "prompt_logprobs"
    assert explained(ann, TEXT, kv_retention="window:16")["kept_apart_by"] == ["retention"]
    explained(ann, FILL)
    explained(ann, FILL[::-1] + "y")
    told = explained(ann, TEXT)
    assert (told["cause"], told["evicted"]["to_make_room_for"]) == ("evicted", "your own requests")
    assert 0 <= told["evicted"]["seconds_ago"] < 60


def test_caching_that_is_off(checkpoint: Path) -> None:
    with live_server(engine_of(checkpoint, enable_prefix_caching=False)) as url:
        client = httpx.Client(base_url=url, timeout=60)
        assert [explained(client, TEXT)["cause"] for _ in range(2)] == ["caching_off"] * 2


def test_what_was_found_may_have_gone_through_a_lossy_form(checkpoint: Path) -> None:
    engine = engine_of(checkpoint)
    assert isinstance(engine.transfers, NoTransfers)
    engine.transfers.lossy_form = "kvtc-5x"
    with live_server(engine) as url:
        client = httpx.Client(base_url=url, timeout=60)
        assert "lossy_form" not in explained(client, TEXT), "nothing was found"
        answer = completion(client, TEXT)
        [told] = answer["usage"]["cache_explanation"]
        [kept] = client.get(f"/cache/explanations/{answer['id']}").json()["prompts"]
        asked = client.post("/cache/explain", json={"prompt": TEXT}).json()
        assert {each["lossy_form"] for each in (told, kept, asked)} == {"kvtc-5x"}


def test_a_tenant_is_told_nothing_of_another(clients: Clients) -> None:
    fresh = explained(clients.bob, TEXT[::-1])
    explained(clients.ann, TEXT)
    told = explained(clients.bob, TEXT)
    counts = ("prompt_tokens", "found_tokens", "missed_tokens", "explanation")
    assert {**told, **dict.fromkeys(counts)} == {**fresh, **dict.fromkeys(counts)}
    assert told["cause"] == "never_seen"
    assert explained(clients.ann, TEXT, cache_salt="of one user")["cause"] == "never_seen"
    told = explained(clients.house, TEXT)
    assert (told["cause"], told["kept_apart_by"]) == ("not_shared", ["tenant"])


def test_for_whom_a_block_went_is_an_operators_to_know(clients: Clients) -> None:
    completion(clients.ann, TEXT)
    for number in range(3):
        completion(clients.bob, f"{number}{FILL}")
    answer = completion(clients.ann, TEXT)
    [told] = answer["usage"]["cache_explanation"]
    assert told["evicted"]["to_make_room_for"] == "others' requests"
    assert "bob" not in json.dumps(told)
    assert told["evicted"]["seconds_ago"] == round(told["evicted"]["seconds_ago"])
    [told] = clients.house.get(f"/cache/explanations/{answer['id']}").json()["prompts"]
    assert told["evicted"]["to_make_room_for"] == "requests of bob"


def test_afterwards_by_either_id(clients: Clients) -> None:
    completion(clients.ann, TEXT)
    body = {"prompt": [TEXT, TEXT[:20] + "!" * 9], "max_tokens": 1}
    response = clients.ann.post("/v1/completions", json=body, headers={"x-request-id": "mine/1"})
    for name in ("mine/1", response.json()["id"]):
        told = clients.ann.get(f"/cache/explanations/{name}").json()
        assert told["id"] == name
        assert [each["cause"] for each in told["prompts"]] == ["remainder", "diverged"]
        assert "diverged" not in clients.house.get(f"/cache/explanations/{name}").json()
    of_house = clients.house.get("/cache/explanations/mine/1").json()["prompts"][1]
    assert (of_house["cause"], "diverged" in of_house) == ("diverged", False)
    assert "!" not in json.dumps(of_house)


@pytest.mark.parametrize("name", ["cmpl-0", "mine", "x" * 500])
def test_anothers_request_is_as_unknown_as_none(clients: Clients, name: str) -> None:
    headers = {"x-request-id": "mine"}
    clients.bob.post("/v1/completions", json={"prompt": TEXT, "max_tokens": 1}, headers=headers)
    answer = clients.ann.get(f"/cache/explanations/{name}")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["param"] == "request_id"
    told, reason = error["message"].split(": ")
    assert told.startswith(f"request_id='{name[:60]}")
    assert reason == "none of your last requests; the server remembers 1,024 of all tenants"


def test_what_would_be_found_now(clients: Clients) -> None:
    def told(**body: Any) -> dict[str, Any]:
        answer = clients.ann.post("/cache/explain", json=body)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    for _ in range(2):  # asking changes nothing
        assert told(prompt=TEXT)["cause"] == "never_seen"
    completion(clients.ann, TEXT)
    assert told(prompt=TEXT, temperature=0.5, max_tokens=3)["cause"] == "remainder"
    assert told(prompt=TEXT, cache_salt="of one user")["found_tokens"] == 0
    before = clients.house.get("/metrics").text
    told(prompt=TEXT)
    after = clients.house.get("/metrics").text
    assert _missed(after) == _missed(before)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 600}, "prompt"),
        ({"prompt": TEXT, "kv_retention": "sometimes"}, "kv_retention"),
        ({"prompt": TEXT, "cache_salt": 5}, "cache_salt"),
    ],
)
def test_what_cannot_be_looked_up(clients: Clients, body: dict[str, Any], field: str) -> None:
    answer = clients.ann.post("/cache/explain", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_a_stream_ends_with_it(clients: Clients) -> None:
    body = {"prompt": TEXT, "max_tokens": 2, "stream": True, "explain_cache": True}
    lines = clients.ann.post("/v1/completions", json=body).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if '"choices"' in line]
    told = [chunk["usage"]["cache_explanation"] for chunk in chunks if "usage" in chunk]
    assert [each["cause"] for [each] in told] == ["never_seen"]


def test_unasked_nothing_is_told(clients: Clients) -> None:
    usage = completion(clients.ann, TEXT, explain_cache=False)["usage"]
    assert "cache_explanation" not in usage


def test_tokens_are_counted_by_cause(clients: Clients) -> None:
    for client in (clients.ann, clients.ann, clients.bob):
        num_tokens = explained(client, TEXT)["prompt_tokens"]
    counts = _missed(clients.house.get("/metrics").text)
    left = num_tokens % 4 or 1
    assert counts["never_seen"] == counts["not_shared"] == num_tokens
    assert counts["remainder"] == left
    assert sum(counts.values()) == 2 * num_tokens + left


def test_the_log_tells_causes_and_no_text(
    clients: Clients, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pagoda.access"):
        explained(clients.ann, TEXT)
        explained(clients.ann, TEXT[:-8] + "elsewhere")
        wait_until(lambda: len(_lines_of_misses(caplog)) == 2)  # written once an answer is sent
    first, second = _lines_of_misses(caplog)
    assert "missed=never_seen:" in first
    assert "missed=diverged:" in second
    assert "pagoda on" not in caplog.text


def _lines_of_misses(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "missed=" in line]


def test_the_command(clients: Clients, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = completion(clients.ann, TEXT)
    flags = ["--url", clients.url, "--api-key", "key-of-ann"]
    assert run(["explain", answer["id"], *flags]) == 0
    assert "nothing that goes on like this has been seen" in capsys.readouterr().out
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"prompt": TEXT, "model": None, "max_tokens": 7}))
    assert run(["explain", str(body), *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cause"] == "remainder"
    named = {**clients.ann.headers, "x-request-id": OWN_ID}
    completion(httpx.Client(base_url=clients.url, headers=named), TEXT)
    assert run(["explain", OWN_ID, *flags]) == 0
    assert "44 of 45 tokens were found" in capsys.readouterr().out
    prompt = tmp_path / "prompt"
    prompt.write_text(TEXT[:20] + "?" * 9)
    assert run(["explain", str(prompt), *flags]) == 0
    assert "“????" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("request_id", "key", "words"),
    [
        ("cmpl-1", "key-of-ann", "id=cmpl-1: the server says: request_id"),
        ("job#7?x", "key-of-ann", "id=job#7?x: the server says: request_id=job#7?x"),
        ("x" * 4096, "key-of-ann", "an id of 1 to 1,024 characters"),
        ("\udcff", "key-of-ann", "the server says: request_id"),
        ("-", "key-of-ann", "must be utf-8 text"),
        ("cmpl-1", "no-key-at-all", "a valid API key is needed; give it as --api-key"),
        ("missing.json", "key-of-ann", "file=missing.json: is not there"),
    ],
)
def test_the_command_names_what_is_wrong(
    clients: Clients,
    request_id: str,
    key: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    assert run(["explain", request_id, "--url", clients.url, "--api-key", key]) == 2
    assert words in capsys.readouterr().err.replace("'", "")


def _missed(metrics: str) -> dict[str, float]:
    lines = (line for line in metrics.splitlines() if "miss_tokens_total{" in line)
    return {line.split('cause="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
