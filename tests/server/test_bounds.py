"""What a short request may ask for, and what is kept of it: nothing freezes or fills the server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, ValidationError

from pagoda.engine.checked_tokenizer import CheckedTokenizer
from pagoda.errors import ContextLengthError, InvalidRequestError
from pagoda.models.chat_options import ChatOptions
from pagoda.request import RequestOptions, SamplingParams
from pagoda.server import chunked_answer, completions
from pagoda.server.chat_request import ChatCompletionRequest
from pagoda.server.completion_request import CompletionRequest
from pagoda.server.json_parts import items_json, list_json, object_json
from pagoda.server.logprob_bound import MAX_TOLD_LOGPROBS, bounded
from pagoda.server.responses import PromptTokensDetails, Usage
from server.fake_engine import FakeEngine
from server.sse import events_of

pytestmark = pytest.mark.anyio
COMPLETIONS = "/v1/completions"
IDS = [97] * 60
HELLO = [{"role": "user", "content": "hi"}]


# ---- log-probabilities ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("extra", "writer"),
    [
        ({"prompt_logprobs": 1}, (chunked_answer, "prompt_logprobs")),
        ({"echo": True, "logprobs": 1}, (completions, "echoed_logprobs")),
    ],
)
async def test_those_of_a_prompt_are_written_once_for_all_choices(
    extra: dict[str, Any],
    writer: tuple[Any, str],
    stream: bool,
    client: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    write = getattr(*writer)
    monkeypatch.setattr(
        *writer, lambda *given, **named: calls.append(given) or write(*given, **named)
    )
    body = {"prompt": ["ab", "cd"], "n": 5, "max_tokens": 2, "stream": stream, **extra}
    answer = await client.post(COMPLETIONS, json=body)
    assert len(calls) == 2
    chunks = events_of(answer.text) if stream else [answer.json()]
    told = [choice for chunk in chunks for choice in chunk["choices"]]
    field = "prompt_logprobs" if "prompt_logprobs" in extra else "logprobs"
    assert len({choice["index"] for choice in told if choice.get(field)}) == 10


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt_logprobs": 20, "max_tokens": 1}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 20, "max_tokens": 1}, "logprobs"),
        ({"logprobs": 20, "max_tokens": 60}, "logprobs"),
    ],
)
async def test_more_than_anybody_reads_are_refused(
    fields: dict[str, Any], named: str, client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    body = {"prompt": [IDS] * 128, "n": 8, **fields}
    answer = await client.post(COMPLETIONS, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, named)
    assert f"{MAX_TOLD_LOGPROBS:,}" in error["message"]
    assert not engine.started


async def test_texts_are_counted_in_tokens_before_they_are_refused() -> None:
    engine, prompts = FakeEngine(), ["é" * 25] * 128  # two bytes and one token each
    sampling = SamplingParams(prompt_logprobs=20, n=7)
    assert await bounded(sampling, prompts, engine, None, "") is sampling  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="prompt_logprobs"):
        await bounded(sampling, [text * 2 for text in prompts], engine, None, "")  # type: ignore[arg-type]


async def test_an_answer_without_a_limit_ends_where_its_logprobs_do() -> None:
    engine = FakeEngine()
    sampling = SamplingParams(max_tokens=None, logprobs=20, n=128)
    assert await bounded(sampling, [IDS], engine, None, "") is sampling  # type: ignore[arg-type]
    engine.max_model_len = 8192
    shorter = await bounded(sampling, [IDS], engine, None, "")  # type: ignore[arg-type]
    assert shorter.max_tokens == MAX_TOLD_LOGPROBS // (128 * 21)


@pytest.mark.parametrize("stream", [False, True])
async def test_much_is_written_beside_the_event_loop(
    stream: bool, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()
    write = chunked_answer.prompt_logprobs

    def noted(given: Sequence[Any], num_top: int) -> bytes:
        threads.add(threading.get_ident())
        return write(given, num_top)

    monkeypatch.setattr(chunked_answer, "prompt_logprobs", noted)
    body = {"prompt": IDS, "prompt_logprobs": 1, "n": 16, "max_tokens": 2, "stream": stream}
    assert (await client.post(COMPLETIONS, json=body)).status_code == 200
    assert threads
    assert threading.get_ident() not in threads


def test_json_in_parts_is_json() -> None:
    items = [{"a": [number, None], "b": "é,"} for number in range(200)]
    assert json.loads(b"[%s]" % items_json(items)) == items
    assert items_json([]) == b""
    usage = Usage(
        prompt_tokens=1,
        completion_tokens=2,
        total_tokens=3,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=0),
    )
    told = json.loads(object_json(usage, total_tokens=list_json([b"1", b"2"])))
    assert told == {**usage.model_dump(), "total_tokens": [1, 2]}


# ---- wrong and unknown values --------------------------------------------------------------------

MANY = {str(number): None for number in range(1000)}


def num_errors(body: type[BaseModel], given: dict[str, Any]) -> int:
    try:
        body.model_validate(given)
    except ValidationError as error:
        return error.error_count()
    return 0


@pytest.mark.parametrize("body", [CompletionRequest, ChatCompletionRequest])
@pytest.mark.parametrize("wrong", [[None] * 1000, MANY, [MANY] * 1000, [[None] * 9] * 1000])
def test_of_many_wrong_values_the_first_is_told(body: type[CompletionRequest], wrong: Any) -> None:
    sound = {"prompt": "x", "messages": HELLO}
    counts = {name: num_errors(body, {**sound, name: wrong}) for name in body.model_fields}
    assert max(counts.values()) < 20, counts


async def test_the_entry_that_is_wrong_is_named(client: httpx.AsyncClient) -> None:
    body = {"prompt": "x", "logit_bias": {"1": 2.0, "7": "much", "8": "more"}}
    answer = await client.post(COMPLETIONS, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("logit_bias.7='much'")


def test_a_large_value_is_not_written_out_to_show_a_line_of_it() -> None:
    class Unwritten:
        def __repr__(self) -> str:
            raise AssertionError("written out")

    for value in ({"a": [[Unwritten()] * 300]}, [[Unwritten()] * 150] * 2):
        told = str(InvalidRequestError("tools", value, "must be small"))
        assert told == f"tools=<{type(value).__name__} too long to show>: must be small"
    assert str(InvalidRequestError("n", [[1], {"a": 2}], "no")) == "n=[[1], {'a': 2}]: no"


def test_nothing_is_kept_of_fields_that_do_not_matter() -> None:
    given = {"prompt": "x", "junk": [[]] * 1000, "suffix": "y"}
    body = CompletionRequest.model_validate(given)
    assert body.model_extra == {"suffix": "y"}
    with pytest.raises(InvalidRequestError, match="suffix"):
        body.refuse_uncovered()


async def test_a_salt_may_be_so_long(client: httpx.AsyncClient) -> None:
    with pytest.raises(InvalidRequestError, match="at most 256 characters"):
        RequestOptions(cache_salt="x" * 257)
    for size, status in ((256, 200), (257, 400)):
        body = {"prompt": "x", "cache_salt": "x" * size}
        assert (await client.post(COMPLETIONS, json=body)).status_code == status


# ---- texts and tokens ----------------------------------------------------------------------------


def test_a_text_that_is_said_often_is_measured_before_it_is_rendered() -> None:
    class Unasked:
        def chat(self, *given: object, **named: object) -> list[int]:
            raise AssertionError("rendered before it was measured")

    tokenizer = CheckedTokenizer(Unasked(), vocab_size=10, max_model_len=64)  # type: ignore[arg-type]
    text = {"role": "user", "content": "word " * 200}
    for messages in ([text] * 7, [{"role": "user", "content": ""}] * 64):
        with pytest.raises(ContextLengthError):
            tokenizer.chat(messages)


class Renderer:
    """A tokenizer whose template writes much around little."""

    def count(self, text: str) -> int:
        return len(text)

    def chat(
        self,
        messages: Sequence[object],
        tools: Sequence[object],
        options: ChatOptions,
        *,
        check_text: Callable[[str], None],
        check_count: Callable[[int], None],
    ) -> list[int]:
        text = "x" * 50 * (len(messages) + len(tools))
        check_text(text)
        assert len(text) <= 100 * 64, "tokenised before it was measured"
        check_count(len(text))
        raise AssertionError("copied before it was counted")


@pytest.mark.parametrize("num", [5, 130])
def test_a_chat_is_measured_as_it_is_written(num: int) -> None:
    tokenizer = CheckedTokenizer(Renderer(), vocab_size=10, max_model_len=64)  # type: ignore[arg-type]
    empty = {"role": "user", "content": ""}
    for messages, tools in (([empty] * num, []), ([empty], [{}] * num)):
        with pytest.raises(ContextLengthError) as refused:
            tokenizer.chat(messages, tools)
        assert refused.value.field == "messages"


def test_no_more_tokens_become_text_than_a_text_may_have() -> None:
    tokenizer = CheckedTokenizer(Renderer(), vocab_size=10, max_model_len=64)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="at most 512 tokens"):
        tokenizer.decode([1] * 513)
