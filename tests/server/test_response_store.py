"""Responses that are kept: for their tenant, within bounds, to be told and gone on from."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from pagoda.errors import InvalidRequestError
from pagoda.server.app import create_app
from pagoda.server.errors import UnknownResponseError
from pagoda.server.keys import KeyRing
from pagoda.server.options import ServerOptions
from pagoda.server.responses_api import store as storing
from pagoda.server.responses_api.input_items import Item, ItemReference, MessageItem
from pagoda.server.responses_api.output_items import OutputMessage, OutputText
from pagoda.server.responses_api.response import ResponseObject
from pagoda.server.responses_api.store import ResponseStore, Shelf
from server.conftest import client_of
from server.fake_engine import FakeEngine
from server.test_responses import HERMES, URL, WEATHER, ask, events, prompt_of
from server.test_server_errors import assert_refused

pytestmark = pytest.mark.anyio
PLENTY = 2**20


class Clock:
    """A clock that is set by hand, in seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def response(response_id: str, text: str = "hello") -> ResponseObject:
    said = OutputMessage(id=f"msg_{response_id}", content=[OutputText(text=text)])
    return ResponseObject(
        id=response_id, created_at=0, output=[said], instructions=None, max_output_tokens=None,
        metadata={}, model="m", parallel_tool_calls=True, previous_response_id=None, store=True,
        temperature=1.0, text={}, tool_choice="auto", tools=[], top_logprobs=0, top_p=1.0,
        user=None,
    )  # fmt: skip


def asked(text: str) -> list[Item]:
    return [MessageItem(role="user", content=text)]


def kept(shelf: Shelf, *ids: str) -> list[str]:
    found = []
    for each in ids:
        try:
            found.append(shelf.get(each).response.id)
        except UnknownResponseError:
            continue
    return found


def size_of_one(clock: Clock) -> int:
    shelf = Shelf(PLENTY, clock)
    shelf.put(response("a"), asked("hi"))
    return shelf.get("a").num_bytes


def test_the_oldest_make_room_in_bytes(clock: Clock) -> None:
    shelf = Shelf(3 * size_of_one(clock), clock)
    for each in "abcd":
        shelf.put(response(each), asked("hi"))
    assert kept(shelf, *"abcd") == ["b", "c", "d"]
    shelf.put(response("e", "x" * 4 * size_of_one(clock)), asked("hi"))
    assert kept(shelf, *"bcde") == ["b", "c", "d"], "what is too large drops nothing else"


def test_bytes_are_given_back(clock: Clock) -> None:
    shelf = Shelf(2 * size_of_one(clock), clock)
    for _ in range(9):
        shelf.put(response("a"), asked("hi"))
        shelf.delete("a")
    shelf.put(response("b"), asked("hi"))
    shelf.put(response("c"), asked("hi"))
    assert kept(shelf, *"abc") == ["b", "c"]


def test_number_and_age_are_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "MAX_RESPONSES", 2)
    shelf = Shelf(PLENTY, clock)
    for each in "abc":
        shelf.put(response(each), asked("hi"))
        clock.now += 1.0
    assert kept(shelf, *"abc") == ["b", "c"]
    clock.now = 1.0 + storing.MAX_AGE_S
    assert kept(shelf, *"abc") == ["b", "c"]
    clock.now += 0.5
    assert kept(shelf, *"abc") == ["c"]


def test_items_go_with_the_last_response_that_has_them(clock: Clock) -> None:
    shelf = Shelf(PLENTY, clock)
    shelf.put(response("a"), asked("hi"))
    reference = ItemReference(id="msg_a")
    [item] = shelf.conversation(None, [reference])
    assert isinstance(item, MessageItem)
    assert item.role == "assistant"
    shelf.put(response("b"), shelf.conversation("a", asked("more")))
    shelf.delete("a")
    assert shelf.conversation(None, [reference]) == [item]
    shelf.delete("b")
    with pytest.raises(InvalidRequestError, match="no such item"):
        shelf.conversation(None, [reference])


def test_nobody_reads_anothers(clock: Clock) -> None:
    store = ResponseStore(PLENTY, clock)
    store.of("alice").put(response("a"), asked("hi"))
    with pytest.raises(UnknownResponseError):
        store.of("bob").get("a")
    with pytest.raises(InvalidRequestError, match="no such item"):
        store.of("bob").conversation(None, [ItemReference(id="msg_a")])
    assert kept(store.of("alice"), "a") == ["a"]


async def test_a_response_is_told_again_and_forgotten(client: httpx.AsyncClient) -> None:
    whole = await ask(client)
    streamed = (await events(client))[-1]["response"]
    for answer in (whole, streamed):
        place = f"{URL}/{answer['id']}"
        assert (await client.get(place)).json() == answer
        assert_refused(await client.get(place, params={"stream": True}), "stream")
        gone = {"id": answer["id"], "object": "response", "deleted": True}
        assert (await client.delete(place)).json() == gone
        for missing in (await client.get(place), await client.delete(place)):
            assert_refused(missing, "response_id", status=404)
        assert_refused(await client.get(f"{place}/input_items"), "response_id", status=404)


async def test_what_is_not_to_be_stored_is_not(engine: FakeEngine) -> None:
    for num_bytes, body in ((PLENTY, {"store": False}), (0, {"store": True})):
        app = create_app(engine, ServerOptions(response_store_bytes=num_bytes))  # type: ignore[arg-type]
        async with client_of(app) as client:
            answer = await ask(client, **body)
            assert answer["store"] is False
            assert (await client.get(f"{URL}/{answer['id']}")).status_code == 404


async def test_a_conversation_goes_on(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.says = ["A"]
    first = await ask(client, input="u", instructions="s")
    second = await ask(client, input="v", previous_response_id=first["id"])
    assert prompt_of(engine) == "<user>u<assistant>A<user>v", "instructions are for one response"
    assert second["previous_response_id"] == first["id"]
    await client.delete(f"{URL}/{first['id']}")
    await ask(client, input="w", previous_response_id=second["id"])
    assert prompt_of(engine) == "<user>u<assistant>A<user>v<assistant>A<user>w"
    referred: list[dict[str, Any]] = [{"type": "item_reference", "id": second["output"][0]["id"]}]
    await ask(client, input=[*referred, {"role": "user", "content": "x"}])
    assert prompt_of(engine) == "<assistant>A<user>x"


async def test_a_conversation_goes_on_with_results(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.says = [HERMES]
    first = await ask(client, tools=[WEATHER])
    [call] = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "warm"}
    await ask(client, input=[result], previous_response_id=first["id"], tools=[WEATHER])
    assert prompt_of(engine) == "<user>hi<assistant><tool>warm"


async def test_input_items_are_listed_by_pages(client: httpx.AsyncClient) -> None:
    said = [{"role": "user", "content": each} for each in "abc"]
    answer = await ask(client, input=said)
    place = f"{URL}/{answer['id']}/input_items"
    page = (await client.get(place)).json()
    assert [item["content"][0]["text"] for item in page["data"]] == ["c", "b", "a"]
    assert page["data"][0]["content"][0]["type"] == "input_text"
    assert (page["object"], page["has_more"]) == ("list", False)
    first = (await client.get(place, params={"order": "asc", "limit": 2})).json()
    assert first["has_more"] is True
    assert first["last_id"] == first["data"][-1]["id"]
    rest = {"order": "asc", "limit": 2, "after": first["last_id"]}
    last = (await client.get(place, params=rest)).json()
    assert [item["content"][0]["text"] for item in last["data"]] == ["c"]
    assert last["has_more"] is False
    assert_refused(await client.get(place, params={"after": "x"}), "after")
    assert_refused(await client.get(place, params={"limit": 101}), "limit")


async def test_tenants_over_http(engine: FakeEngine) -> None:
    keys = KeyRing({"alice-key": "alice", "bob-key-1": "bob"})
    async with client_of(create_app(engine, keys=keys)) as client:  # type: ignore[arg-type]
        client.headers["authorization"] = "Bearer alice-key"
        answer = await ask(client)
        client.headers["authorization"] = "Bearer bob-key-1"
        place = f"{URL}/{answer['id']}"
        for refused in (await client.get(place), await client.delete(place)):
            assert_refused(refused, "response_id", status=404)
        going_on = {"input": "x", "previous_response_id": answer["id"]}
        assert_refused(await client.post(URL, json=going_on), "previous_response_id")
        client.headers["authorization"] = "Bearer alice-key"
        assert (await client.get(place)).status_code == 200
