"""Responses that are kept: for their tenant, within bounds, to be told and gone on from."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterable, Sequence
from typing import Any

import httpx
import pytest

from pagoda.errors import InvalidRequestError
from pagoda.server.app import create_app
from pagoda.server.errors import UnknownResponseError
from pagoda.server.keys import KeyRing
from pagoda.server.options import ServerOptions
from pagoda.server.responses_api import store as storing
from pagoda.server.responses_api.input_items import (
    InputItem,
    Item,
    ItemReference,
    MessageItem,
    ReasoningItem,
    TextPart,
)
from pagoda.server.responses_api.kept_items import KeptItem, said_in
from pagoda.server.responses_api.store import ResponseStore, Shelf
from server.conftest import client_of
from server.fake_engine import FakeEngine
from server.test_disconnect import until
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


def put(
    shelf: Shelf, response_id: str, asked: Sequence[Item | KeptItem] = (), text: str = "hello"
) -> None:
    """A response that follows on what was asked, or on nothing in particular."""
    answer = MessageItem(id=f"msg_{response_id}", role="assistant", content=text)
    written = b'{"id": "%s"}' % response_id.encode()
    shelf.put(response_id, asked or said("hi"), written, [answer])


def said(*texts: str) -> list[InputItem]:
    return [MessageItem(role="user", content=text) for text in texts]


def texts(items: Iterable[Item | KeptItem]) -> list[Any]:
    return [getattr(item, "content", item) for item in said_in(items)]


def kept(shelf: Shelf, *ids: str) -> list[str]:
    found = []
    for each in ids:
        try:
            found.append(shelf.get(each).id)
        except UnknownResponseError:
            continue
    return found


def size_of_one(clock: Clock) -> int:
    shelf = Shelf(PLENTY, clock)
    put(shelf, "a")
    return shelf.num_bytes


def test_the_oldest_make_room_in_bytes(clock: Clock) -> None:
    shelf = Shelf(3 * size_of_one(clock), clock)
    for each in "abcd":
        put(shelf, each)
    assert kept(shelf, *"abcd") == ["b", "c", "d"]
    put(shelf, "e", text="x" * 4 * size_of_one(clock))
    assert kept(shelf, *"bcde") == ["b", "c", "d"], "what is too large drops nothing else"


def test_bytes_are_given_back(clock: Clock) -> None:
    shelf = Shelf(2 * size_of_one(clock), clock)
    for _ in range(9):
        put(shelf, "a")
        shelf.delete("a")
    assert shelf.num_bytes == 0
    put(shelf, "b")
    put(shelf, "c")
    assert kept(shelf, *"abc") == ["b", "c"]


def test_bytes_are_those_of_main_memory(clock: Clock) -> None:
    """As objects of Python items would take several times what their text does."""
    shelf = Shelf(PLENTY, clock)
    put(shelf, "warm")
    sound, size = said(*map(str, range(400))), shelf.num_bytes
    tracemalloc.start()
    try:
        put(shelf, "a", said("x" * 100_000))
        put(shelf, "b", sound)
        for number in range(100):
            put(shelf, f"c{number}")
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.6 * (shelf.num_bytes - size) < taken < shelf.num_bytes - size


def test_items_of_one_conversation_count_once_and_are_written_once(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(PLENTY, clock)
    put(shelf, "a", said(*map(str, range(1000))))
    written: list[str] = []
    of = KeptItem.of
    monkeypatch.setattr(KeptItem, "of", lambda *given: written.append(given[1]) or of(*given))
    before = shelf.num_bytes
    put(shelf, "b", shelf.conversation("a", said("more")))
    assert len(written) == 2, "what was said now, and the answer"
    assert shelf.num_bytes - before < before / 10
    assert len(shelf.get("b").input) == 1002


def test_number_and_age_are_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "MAX_RESPONSES", 2)
    shelf = Shelf(PLENTY, clock)
    for each in "abc":
        put(shelf, each)
        clock.now += 1.0
    assert kept(shelf, *"abc") == ["b", "c"]
    clock.now = 1.0 + storing.MAX_AGE_S
    assert kept(shelf, *"abc") == ["b", "c"]
    clock.now += 0.5
    assert kept(shelf, *"abc") == ["c"]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_items_go_with_the_last_response_that_has_them(clock: Clock, order: str) -> None:
    shelf = Shelf(PLENTY, clock)
    put(shelf, "a")
    reference = ItemReference(id="msg_a")
    [item] = shelf.conversation(None, [reference])
    [answer] = said_in([item])
    assert isinstance(answer, MessageItem)
    assert answer.role == "assistant"
    put(shelf, "b", shelf.conversation("a", said("more")))
    shelf.delete(order[0])
    assert shelf.conversation(None, [reference]) == [item]
    shelf.delete(order[1])
    with pytest.raises(InvalidRequestError, match="no such item"):
        shelf.conversation(None, [reference])


def test_an_id_that_a_client_gives_twice_names_the_newest_that_is_there(clock: Clock) -> None:
    shelf = Shelf(PLENTY, clock)
    for each in "ab":
        put(shelf, each, [MessageItem(id="mine", role="user", content=f"in {each}")])
    reference = ItemReference(id="mine")
    assert [each[0].text for each in texts(shelf.conversation(None, [reference]))] == ["in b"]
    shelf.delete("b")
    assert [each[0].text for each in texts(shelf.conversation(None, [reference]))] == ["in a"]


def test_what_was_thought_is_not_kept(clock: Clock) -> None:
    shelf = Shelf(PLENTY, clock)
    thoughts = [ReasoningItem(type="reasoning", id=f"rs_{number}") for number in range(9)]
    assert texts(shelf.conversation(None, [*thoughts, *said("hi"), *thoughts])) == ["hi"]


def test_a_conversation_has_so_many_items_and_parts(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "MAX_PARTS", 6)
    shelf = Shelf(PLENTY, clock)
    parts = [TextPart(type="input_text", text="x") for _ in range(2)]
    put(shelf, "a", [MessageItem(role="user", content=parts)])
    assert len(shelf.conversation("a", said("x", "y"))) == 4
    with pytest.raises(InvalidRequestError, match=r"7 items and parts.*at most 6 with those of"):
        shelf.conversation("a", said("x", "y", "z"))


def test_nobody_reads_anothers(clock: Clock) -> None:
    store = ResponseStore(PLENTY, clock)
    put(store.of("alice"), "a")
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


async def test_what_was_answered_is_listed_as_it_was_told(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.says = ["A"]
    first = await ask(client)
    said = {"role": "assistant", "content": "B"}
    second = await ask(client, input=[said], previous_response_id=first["id"])
    listed = (await client.get(f"{URL}/{second['id']}/input_items?order=asc")).json()["data"]
    assert listed[1] == first["output"][0]
    [part] = listed[2]["content"]
    assert part == {"type": "output_text", "text": "B", "annotations": [], "logprobs": []}
    assert listed[0]["content"] == [{"type": "input_text", "text": "hi"}]
    await ask(client, input="x", previous_response_id=second["id"])
    assert prompt_of(engine) == "<user>hi<assistant>A<assistant>B<assistant>A<user>x"


async def test_items_of_one_id_are_paged_through(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.says = ["A"]
    messages = [{"id": "mine", "role": "user", "content": each} for each in "abc"]
    first = await ask(client, input=messages)
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    answer = await ask(client, input=[reference], previous_response_id=first["id"])
    place = f"{URL}/{answer['id']}/input_items"
    found: list[dict[str, Any]] = []
    more: dict[str, Any] = {"has_more": True}
    while more["has_more"]:
        after = {"after": found[-1]["id"]} if found else {}
        more = (await client.get(place, params={"order": "asc", "limit": 1, **after})).json()
        found += more["data"]
        assert len(found) <= 5
    assert [item["content"][0]["text"] for item in found[:3]] == ["a", "b", "c"]
    assert found[0]["id"] == "mine"
    assert found[3]["content"] == found[4]["content"], "an answer, and what refers to it"
    assert len({item["id"] for item in found}) == 5


async def test_what_was_kept_is_told_at_a_place_of_its_own(engine: FakeEngine) -> None:
    engine.max_num_seqs = 1
    async with client_of(create_app(engine, ServerOptions(max_num_queued_reqs=0))) as client:  # type: ignore[arg-type]
        answer, other = await ask(client), await ask(client)
        place = f"{URL}/{answer['id']}"
        engine.hold = asyncio.Event()
        running = asyncio.create_task(ask(client))
        await until(lambda: len(engine.started) == 3)
        for path in (place, f"{place}/input_items"):
            assert (await client.get(path)).status_code == 503
        assert (await client.delete(f"{URL}/{other['id']}")).status_code == 200  # it makes room
        engine.hold.set()
        await running
        assert (await client.get(place)).json() == answer


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
        refused = await client.post(URL, json=going_on)
        assert_refused(refused, "previous_response_id")
        assert refused.json()["error"]["code"] == "previous_response_not_found"
        client.headers["authorization"] = "Bearer alice-key"
        assert (await client.get(place)).status_code == 200
