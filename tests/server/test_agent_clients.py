"""Libraries that people build agents with, and the `llm` command, as they are.

Where no answer has to end by itself the model has two layers: what it says means nothing, but is
what the server says without a library.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import httpx
import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.build import Model, connect
from pagoda.engine.options import EngineOptions
from server.live import live_server

if TYPE_CHECKING:  # where they are used they are imported: not in every process that collects tests
    import openai

pytestmark = [pytest.mark.model, pytest.mark.anyio]
MODEL = "SmolLM2-135M-Instruct"
KEY = "no key is needed"
QUESTION = "What is the capital of France?"
MOST_TOKENS = 12


class Weather(BaseModel):
    """What is asked of a model that must answer by a schema."""

    city: Literal["Paris", "Rome"]
    is_warm: bool


@contextmanager
def serving(model: Model) -> Iterator[str]:
    engine = AsyncEngine(connect(model, EngineOptions(kv_cache_memory_bytes=2**25)))
    with live_server(engine) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def url(shallow_model: Model) -> Iterator[str]:
    with serving(shallow_model) as url:
        yield url


@pytest.fixture(scope="module")
def knowing_url(default_model: Model) -> Iterator[str]:
    with serving(default_model) as url:
        yield url


def said(url: str) -> str:
    """The answer to the question, asked without any library."""
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": MOST_TOKENS}
    answer = httpx.post(f"{url}/chat/completions", json=body, timeout=60).json()
    text: str = answer["choices"][0]["message"]["content"]
    assert len(text) > 20
    return text


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """What OpenAI's agents ask too, where no model class is named."""
    import openai
    from agents import set_default_openai_client, set_tracing_disabled

    set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
        set_default_openai_client(client, use_for_tracing=False)
        yield client


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with asking(url) as client:
        yield client


@pytest.fixture
async def knowing(knowing_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with asking(knowing_url) as client:
        yield client


async def test_openais_agents_answer(knowing: openai.AsyncOpenAI) -> None:
    from agents import Agent, ModelSettings, Runner

    settings = ModelSettings(temperature=0, max_tokens=32)
    agent = Agent(name="guide", instructions="Be brief.", model=MODEL, model_settings=settings)
    assert "Paris" in (await Runner.run(agent, QUESTION)).final_output


async def test_openais_agents_stream(knowing: openai.AsyncOpenAI) -> None:
    from agents import Agent, ModelSettings, Runner

    settings = ModelSettings(temperature=0, max_tokens=16)
    agent = Agent(name="guide", model=MODEL, model_settings=settings)
    run = Runner.run_streamed(agent, QUESTION)
    kinds = [
        event.data.type async for event in run.stream_events() if event.type == "raw_response_event"
    ]
    assert kinds[0] == "response.created"
    assert "response.output_text.delta" in kinds
    assert kinds[-1] in ("response.completed", "response.incomplete")


async def test_openais_agents_call_a_tool(client: openai.AsyncOpenAI) -> None:
    from agents import Agent, ModelSettings, Runner, function_tool

    asked = []

    @function_tool
    def weather(city: Literal["Paris", "Rome"]) -> str:
        """The weather in a city."""
        asked.append(city)
        return "sunny"

    agent = Agent(
        name="guide",
        model=MODEL,
        tools=[weather],
        tool_use_behavior="stop_on_first_tool",
        model_settings=ModelSettings(temperature=0, tool_choice="required", max_tokens=64),
    )
    assert (await Runner.run(agent, "What is the weather in Paris?")).final_output == "sunny"
    assert asked[0] in ("Paris", "Rome")


@pytest.mark.parametrize("kind", ["OpenAIChatModel", "OpenAIResponsesModel"])
async def test_pydantic_ai(kind: str, client: openai.AsyncOpenAI, url: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models import openai as models
    from pydantic_ai.providers.openai import OpenAIProvider

    model = getattr(models, kind)(MODEL, provider=OpenAIProvider(openai_client=client))
    settings = {"temperature": 0.0, "max_tokens": MOST_TOKENS}
    plain = Agent(model, model_settings=settings)  # type: ignore[arg-type]
    assert (await plain.run(QUESTION)).output == await asyncio.to_thread(said, url)
    settings["max_tokens"] = 64
    typed = Agent(model, output_type=Weather, model_settings=settings)  # type: ignore[arg-type]
    assert isinstance((await typed.run("Is it warm in Rome?")).output, Weather)


def test_langchains_responses(url: str) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        base_url=url, api_key=KEY, model=MODEL, temperature=0, max_tokens=MOST_TOKENS,
        use_responses_api=True,
    )  # type: ignore[arg-type,call-arg]  # fmt: skip
    expected = said(url)
    assert model.invoke(QUESTION).text == expected
    assert "".join(chunk.text for chunk in model.stream(QUESTION)) == expected
    model.max_tokens = 64
    found = model.with_structured_output(Weather, method="json_schema").invoke(
        "Is it warm in Rome?"
    )
    assert isinstance(found, Weather)


def test_llm_follows_a_schema(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which has loaded most of what it imports."""
    known = {"model_id": "pagoda", "model_name": MODEL, "api_base": url, "supports_schema": True}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([known]))
    schema = json.dumps(Weather.model_json_schema())
    options = ["-o", "temperature", "0", "-o", "max_tokens", "64", "--key", KEY]
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    monkeypatch.setenv("LLM_LOAD_PLUGINS", "")
    from llm.cli import cli

    done = CliRunner().invoke(cli, ["-m", "pagoda", "--schema", schema, *options, QUESTION])
    assert done.exit_code == 0, done.output
    Weather.model_validate_json(done.stdout)
