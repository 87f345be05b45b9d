"""Clients of the Responses API as they are, over an engine whose answers are known."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from server.fake_engine import MODEL, FakeEngine
from server.live import live_server
from server.test_responses import HERMES, PLACE, ROME, WEATHER

if TYPE_CHECKING:  # where they are used they are imported: not in every process that collects tests
    import openai

pytestmark = pytest.mark.anyio


class Place(BaseModel):
    city: str


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def url(engine: FakeEngine) -> Iterator[str]:
    with live_server(engine) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=url, api_key="none", max_retries=0)


@pytest.fixture
async def own_client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """One that is closed in the event loop that used it."""
    import openai

    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def test_text_kept_and_gone_on_from(client: openai.OpenAI, engine: FakeEngine) -> None:
    import openai

    engine.says = ["Hel", "lo"]
    first = client.responses.create(model=MODEL, input="hi", instructions="be")
    assert first.output_text == "Hello"
    second = client.responses.create(model=MODEL, input="x", previous_response_id=first.id)
    assert second.usage is not None
    assert second.usage.input_tokens == len("<user>hi<assistant>Hello<user>x")
    assert client.responses.retrieve(first.id).output_text == "Hello"
    assert [item.type for item in client.responses.input_items.list(second.id)] == ["message"] * 3
    assert client.responses.input_tokens.count(model=MODEL, input="hi").input_tokens == 8
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="x", background=True)
    assert refused.value.param == "background"


def test_parsed_text(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.says = [ROME[:5], ROME[5:]]
    parsed = client.responses.parse(model=MODEL, input="where?", text_format=Place)
    assert parsed.output_parsed == Place(city="Rome")
    with client.responses.stream(model=MODEL, input="where?", text_format=Place) as stream:
        deltas = [each.delta for each in stream if each.type == "response.output_text.delta"]
        assert stream.get_final_response().output_parsed == Place(city="Rome")
    assert deltas == [ROME[:5], ROME[5:]]


def test_calls_of_tools(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.says = ["See. ", HERMES]
    with client.responses.stream(model=MODEL, input="w?", tools=[WEATHER]) as stream:  # type: ignore[list-item]
        for _ in stream:
            pass
        message, call = stream.get_final_response().output
    assert message.type == "message"
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("weather", ROME)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "warm"}
    engine.says = ["Warm."]
    answer = client.responses.create(
        model=MODEL,
        input=[{"role": "user", "content": "w?"}, message, call, result],  # type: ignore[list-item]
        tools=[WEATHER],  # type: ignore[list-item]
    )
    assert answer.output_text == "Warm."


def test_a_stream_that_is_cut(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.says = ["Hel", "lo"]
    stream = client.responses.create(model=MODEL, input="hi", stream=True, max_output_tokens=1)
    last = list(stream)[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


def test_langchain(url: str, engine: FakeEngine) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=url, api_key="none", model=MODEL, use_responses_api=True)  # type: ignore[arg-type]
    engine.says = ["Hel", "lo"]
    assert model.invoke("hi").text == "Hello"
    assert "".join(chunk.text for chunk in model.stream("hi")) == "Hello"
    engine.says = [HERMES]
    function = {"name": "weather", "parameters": PLACE}
    with_tools = model.bind_tools([{"type": "function", "function": function}])
    called = with_tools.invoke("w?")
    [call] = called.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Rome"})
    engine.says = ["Warm."]
    result = ToolMessage("warm", tool_call_id=call["id"])
    assert with_tools.invoke([HumanMessage("w?"), called, result]).text == "Warm."


def warmth(city: str) -> str:
    """How warm it is."""
    return f"warm in {city}"


@pytest.fixture
def calling(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """The engine calls `warmth`, unless it has been told what came of that."""
    generate = engine.generate

    def generate_for(prompt: Sequence[int], *args: Any, **options: Any) -> Any:
        knows = "<tool>" in "".join(map(chr, prompt))
        call = HERMES.replace("weather", "warmth")
        engine.says = ["It is ", "warm."] if knows else ["See. ", call]
        return generate(prompt, *args, **options)

    monkeypatch.setattr(engine, "generate", generate_for)
    return engine


async def test_openai_agents(own_client: openai.AsyncOpenAI, calling: FakeEngine) -> None:
    import agents

    model = agents.OpenAIResponsesModel(MODEL, own_client)
    tools: list[agents.Tool] = [agents.function_tool(warmth)]
    agent = agents.Agent(name="a", instructions="be", model=model, tools=tools)
    settings = agents.RunConfig(tracing_disabled=True)
    whole = await agents.Runner.run(agent, "w?", run_config=settings)
    streamed = agents.Runner.run_streamed(agent, "w?", run_config=settings)
    async for _ in streamed.stream_events():
        pass
    assert whole.final_output == streamed.final_output == "It is warm."


async def test_pydantic_ai(own_client: openai.AsyncOpenAI, calling: FakeEngine) -> None:
    import pydantic_ai
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(openai_client=own_client)
    agent = pydantic_ai.Agent(OpenAIResponsesModel(MODEL, provider=provider), instructions="be")
    agent.tool_plain(warmth)
    assert (await agent.run("w?")).output == "It is warm."
