"""What tokens are called, of which some are parts of a character."""

from __future__ import annotations

import httpx
import pytest

from pagoda.server.token_names import TokenNames
from server.fake_engine import FIRST_WORD_ID, FakeEngine

pytestmark = pytest.mark.anyio
UNICORN = "🦄".encode()
SPELT = {
    FIRST_WORD_ID: UNICORN[:2],
    FIRST_WORD_ID + 1: UNICORN[2:],
    1: "🧿".encode()[:3],
    2: b" \xff",
    ord("h"): UNICORN[:3],
    ord("i"): UNICORN[3:],
}


@pytest.fixture
def parts(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> dict[int, bytes]:
    """The engine's vocabulary, in which a character has several tokens."""
    spelt = dict(SPELT)
    monkeypatch.setattr(engine.tokenizer, "token_bytes", spelt.__getitem__)
    return spelt


async def test_a_completion_tells_parts_of_a_character_apart(
    client: httpx.AsyncClient, parts: dict[int, bytes]
) -> None:
    body = {"prompt": "hi", "echo": True, "max_tokens": 2, "logprobs": 2}
    [choice] = (await client.post("/v1/completions", json=body)).json()["choices"]
    told = choice["logprobs"]
    others = {r"bytes:\xf0\x9f\xa7": -0.5, r"bytes: \xff": -9999.0}
    assert told["tokens"] == [
        r"bytes:\xf0\x9f\xa6", r"bytes:\x84", r"bytes:\xf0\x9f", r"bytes:\xa6\x84"
    ]  # fmt: skip
    assert told["top_logprobs"][2:] == [
        {r"bytes:\xf0\x9f": -1.0, **others},
        {r"bytes:\xa6\x84": -1.0, **others},
    ]
    pairs = zip(told["tokens"], told["top_logprobs"], strict=True)
    assert [top and top[token] for token, top in pairs] == told["token_logprobs"]


async def test_of_two_tokens_with_one_name_the_chosen_one_is_told(
    client: httpx.AsyncClient, parts: dict[int, bytes]
) -> None:
    parts |= dict.fromkeys((FIRST_WORD_ID, 1, 2), b"a")
    body = {"prompt": "hi", "max_tokens": 1, "logprobs": 2}
    [choice] = (await client.post("/v1/completions", json=body)).json()["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"a": -1.0}]


async def test_the_bytes_of_a_chats_tokens_are_those_of_its_text(
    client: httpx.AsyncClient, parts: dict[int, bytes]
) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = {"messages": messages, "max_tokens": 2, "logprobs": True, "top_logprobs": 2}
    [choice] = (await client.post("/v1/chat/completions", json=body)).json()["choices"]
    first, second = choice["logprobs"]["content"]
    assert bytes([*first["bytes"], *second["bytes"]]) == UNICORN
    assert set(first["token"] + second["token"]) == {"\ufffd"}
    assert bytes(first["top_logprobs"][0]["bytes"]) == parts[1]


async def test_the_bytes_of_a_responses_tokens_are_those_of_its_text(
    client: httpx.AsyncClient, parts: dict[int, bytes]
) -> None:
    body = {"input": "hi", "max_output_tokens": 2, "top_logprobs": 1}
    [message] = (await client.post("/v1/responses", json=body)).json()["output"]
    tokens = message["content"][0]["logprobs"]
    assert b"".join(bytes(each["bytes"]) for each in tokens) == UNICORN


def test_whole_characters_are_called_by_themselves() -> None:
    names = TokenNames({1: " né".encode(), 2: "\ufffd".encode(), 3: b""}.__getitem__)
    assert [names.key(each) for each in (1, 2, 3)] == [" né", "\ufffd", ""]
    assert [names.text(each) for each in (1, 2, 3)] == [" né", "\ufffd", ""]
