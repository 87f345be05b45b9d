from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagoda.server.app import create_app
from server.fake_engine import MAX_MODEL_LEN, MODEL, FakeEngine

pytestmark = pytest.mark.anyio


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
    [card] = body["data"]
    assert card.pop("created") > 0
    assert card == {
        "id": MODEL,
        "object": "model",
        "owned_by": "pagoda",
        "max_model_len": MAX_MODEL_LEN,
    }


async def test_one_model(client: httpx.AsyncClient) -> None:
    assert (await client.get(f"/v1/models/{MODEL}")).json()["id"] == MODEL
    missing = await client.get("/v1/models/some/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_metrics_carry_vllms_names(client: httpx.AsyncClient) -> None:
    await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 5})
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(response.text))
    samples = {
        (sample.name, sample.labels.get("finished_reason")): sample.value
        for family in families
        for sample in family.samples
    }
    assert samples == {
        ("pagoda:num_requests_running", None): 0,
        ("pagoda:num_requests_waiting", None): 0,
        ("pagoda:kv_cache_usage_perc", None): 0.25,
        ("pagoda:num_preemptions_total", None): 3,
        ("pagoda:prefix_cache_queries_total", None): 200,
        ("pagoda:prefix_cache_hits_total", None): 150,
        ("pagoda:prompt_tokens_total", None): 120,
        ("pagoda:generation_tokens_total", None): 5,
        ("pagoda:request_success_total", "stop"): 7,
        ("pagoda:request_success_total", "length"): 2,
        ("pagoda:cache_config_info", None): 1,
    }
    labels = [sample.labels for family in families for sample in family.samples]
    assert all(label["model_name"] == MODEL and label["engine"] == "0" for label in labels)


async def test_two_applications_share_no_metrics() -> None:
    for _ in range(2):
        transport = httpx.ASGITransport(create_app(FakeEngine()))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            text = (await client.get("/metrics")).text
            assert text.count("pagoda:num_preemptions_total{") == 1


async def test_the_engine_lives_as_long_as_the_application(engine: FakeEngine) -> None:
    app = create_app(engine)
    async with app.router.lifespan_context(app):
        assert engine.is_running
    assert not engine.is_running


async def test_the_schema_tells_both_apis(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models"} <= set(paths)
