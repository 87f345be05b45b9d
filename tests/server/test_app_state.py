from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagoda.server.app import create_app
from server.conftest import client_of
from server.fake_engine import MAX_MODEL_LEN, MODEL, OTHER_NAME, FakeEngine

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    """Of an application that has counted nothing yet."""
    async with client_of(create_app(engine)) as client:
        yield client


async def test_health(client: httpx.AsyncClient) -> None:
    response = await client.get("/health")
    assert (response.status_code, response.content) == (200, b"")


async def test_an_engine_that_has_stopped_is_not_healthy(
    engine: FakeEngine, client: httpx.AsyncClient
) -> None:
    engine.is_alive = False
    response = await client.get("/health")
    assert response.status_code == 503
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "engine_stopped")


async def test_models(client: httpx.AsyncClient) -> None:
    body = (await client.get("/v1/models")).json()
    assert body["object"] == "list"
    card, other = body["data"]
    assert other["id"] == OTHER_NAME
    assert card.pop("created") > 0
    assert card == {
        "id": MODEL,
        "object": "model",
        "owned_by": "pagoda",
        "root": MODEL,
        "max_model_len": MAX_MODEL_LEN,
    }


async def test_one_model(client: httpx.AsyncClient) -> None:
    assert (await client.get(f"/v1/models/{MODEL}")).json()["id"] == MODEL
    missing = await client.get("/v1/models/some/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def samples_of(client: httpx.AsyncClient) -> dict[tuple[str, str | None], float]:
    """Figures by name and by the one label that is their own."""
    text = (await client.get("/metrics")).text
    return {
        (sample.name, own_label(sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def own_label(labels: dict[str, str]) -> str | None:
    names = ("finished_reason", "source", "code", "route", "le")
    return next((labels[name] for name in names if name in labels), None)


async def test_metrics_carry_vllms_names(client: httpx.AsyncClient) -> None:
    await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 5})
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(response.text))
    labels = [sample.labels for family in families for sample in family.samples]
    assert all(label["model_name"] == MODEL and label["engine"] == "0" for label in labels)
    samples = await samples_of(client)
    histograms = {family.name for family in families if family.type == "histogram"}
    plain = {
        (name, label): value
        for (name, label), value in samples.items()
        if not name.startswith(tuple(histograms))
    }
    expected = {
        ("pagoda:num_requests_running", None): 0,
        ("pagoda:num_requests_waiting", None): 0,
        ("pagoda:kv_cache_usage_perc", None): 0.25,
        ("pagoda:num_preemptions_total", None): 3,
        ("pagoda:prefix_cache_queries_total", None): 200,
        ("pagoda:prefix_cache_hits_total", None): 150,
        ("pagoda:prompt_tokens_total", None): 120,
        ("pagoda:prompt_tokens_cached_total", None): 70,
        ("pagoda:prompt_tokens_by_source_total", "local_compute"): 50,
        ("pagoda:prompt_tokens_by_source_total", "local_cache_hit"): 70,
        ("pagoda:generation_tokens_total", None): 5,
        ("pagoda:request_success_total", "stop"): 7,
        ("pagoda:request_success_total", "length"): 2,
        ("pagoda:request_success_total", "abort"): 0,
        ("pagoda:cache_config_info", None): 1,
        ("pagoda:http_requests_total", "/v1/completions"): 1,
        ("pagoda:http_requests_total", "/metrics"): 1,
        ("pagoda:requests_rejected_total", "server_shutting_down"): 0,
        ("pagoda:requests_rejected_total", "rate_limit_exceeded"): 0,
        ("pagoda:requests_rejected_total", "server_overloaded"): 0,
    }
    assert {key: plain.get(key) for key in expected} == expected


async def test_the_cache_says_how_it_is_stored(
    engine: FakeEngine, client: httpx.AsyncClient
) -> None:
    async def labels() -> dict[str, str]:
        text = (await client.get("/metrics")).text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        [sample] = families["pagoda:cache_config_info"].samples
        return sample.labels

    coded = await labels()
    assert coded["cache_dtype"] == "int8_per_token_head"
    assert coded["kv_cache_dtype_skip_layers"] == "0,29"
    assert (coded["bytes_per_token"], coded["narrower_cache_dtype"]) == ("12944", "")
    assert coded["kv_retention"] == "window:64"
    assert coded["kv_cache_size_tokens"] == str(engine.stored.num_tokens)
    assert coded["max_model_len"] == str(engine.max_model_len)
    engine.stored = None
    assert (await labels())["cache_dtype"] == ""


async def test_a_histogram_tells_what_was_observed(
    engine: FakeEngine, client: httpx.AsyncClient
) -> None:
    for seconds in (0.0004, 0.012, 0.012, 5000.0):
        engine.timeline.time_to_first_token_seconds.observe(seconds)
    name = "pagoda:time_to_first_token_seconds"
    samples = await samples_of(client)
    assert samples[f"{name}_count", None] == 4
    assert samples[f"{name}_sum", None] == pytest.approx(5000.0244)
    buckets = {label: samples[f"{name}_bucket", label] for label in ("0.001", "0.01", "0.025")}
    assert buckets == {"0.001": 1, "0.01": 1, "0.025": 3}
    assert samples[f"{name}_bucket", "1800.0"] == 3
    assert samples[f"{name}_bucket", "+Inf"] == 4
    assert samples["pagoda:iteration_tokens_total_count", None] == 0


async def test_two_applications_share_no_metrics() -> None:
    for _ in range(2):
        transport = httpx.ASGITransport(create_app(FakeEngine()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            text = (await client.get("/metrics")).text
            assert text.count("pagoda:num_preemptions_total{") == 1


async def test_the_engine_lives_as_long_as_the_application(engine: FakeEngine) -> None:
    app = create_app(engine)
    async with app.router.lifespan_context(app):
        assert engine.is_running
    assert not engine.is_running


async def test_the_schema_tells_both_apis(client: httpx.AsyncClient) -> None:
    """And no page, nor what pages ask for themselves. What it refers to is there."""
    schema = await client.get("/openapi.json")
    paths, described = schema.json()["paths"], schema.json()["components"]["schemas"]
    referred = re.findall(r'"#/components/schemas/([^"]+)"', schema.text)
    assert {"ErrorResponse", "MessagesErrorResponse"} <= set(referred) <= set(described)
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models"} <= set(paths)
    pages = re.compile("/(page.*|plan|cache|cache/(page.*|events))?")
    assert not list(filter(pages.fullmatch, paths))


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_probes_may_use_either_name_and_method(path: str, engine: FakeEngine) -> None:
    async with client_of(create_app(engine)) as client:
        for method in ("GET", "HEAD") + (("POST",) if path == "/ping" else ()):
            response = await client.request(method, path)
            assert (response.status_code, response.content) == (200, b"")
        engine.is_alive = False
        for method in ("GET", "HEAD"):
            assert (await client.request(method, path)).status_code == 503


async def test_head_is_get_without_the_body(client: httpx.AsyncClient) -> None:
    for route in ("/v1/models", "/metrics", "/", "/version"):
        whole, head = await client.get(route), await client.head(route)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
        assert head.headers["content-length"]
    assert (await client.head("/v1/completions")).status_code == 405
    assert (await client.head("/nothing")).status_code == 404
    metrics = (await client.get("/metrics")).text
    assert 'method="HEAD",model_name="fake-model",route="/v1/models",status="200"' in metrics
