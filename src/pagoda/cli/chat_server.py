"""A server as a partner of `pagoda chat`: Pagoda's, vLLM's, or another that speaks OpenAI's API."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from pagoda.cli.chat_partner import Message, Said, ServerError
from pagoda.cli.figures import Figures
from pagoda.cli.half_characters import joined, without_half
from pagoda.cli.server_client import key_headers, server_url, told_error
from pagoda.models.chat_options import DEFAULT_CHAT_OPTIONS, ChatOptions
from pagoda.request import SamplingParams

_TIMEOUT = httpx.Timeout(600.0, connect=10.0)
_NO_EVENT = ("", "[DONE]")
_DEFAULTS = SamplingParams(max_tokens=None)


class ServerPartner:
    """A model of the server at `url`, the first that it names if it is not given."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        options: ChatOptions = DEFAULT_CHAT_OPTIONS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Raises `InvalidOptionError` for what is no address or no key."""
        self._url = server_url(url)
        self._model = model
        self._headers = key_headers(api_key)
        self._transport = transport
        self._template_kwargs = dict(options.template_kwargs)

    @property
    def name(self) -> str:
        return self._model or self._url

    async def open(self) -> None:
        """Finds out the model's name. Raises `ServerError`."""
        async with self._client() as client:
            models = await client.get("models")
        if models.is_error:
            raise ServerError(_reason(models.content, models.status_code))
        if self._model is None:
            self._model = _first_model(models)

    async def close(self) -> None:
        """Nothing is held open between answers."""

    async def answer(
        self, messages: Sequence[Message], sampling: SamplingParams
    ) -> AsyncGenerator[Said, None]:
        """Raises `ServerError`."""
        body = _body(self.name, messages, sampling)
        if self._template_kwargs:
            body["chat_template_kwargs"] = self._template_kwargs
        async with (
            self._client() as client,
            client.stream("POST", "chat/completions", json=body) as response,
        ):
            if response.is_error:
                raise ServerError(_reason(await response.aread(), response.status_code))
            async for said in _said(response):
                yield said

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client for one request. Raises `ServerError` where the server is not to be reached."""
        try:
            async with httpx.AsyncClient(
                base_url=f"{self._url}/v1/",
                headers=self._headers,
                timeout=_TIMEOUT,
                transport=self._transport,
            ) as client:
                yield client
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise ServerError(f"{self._url} does not answer: {reason}") from None


def _first_model(models: httpx.Response) -> str:
    try:
        return str(models.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ServerError("the server names no model: name one beside --url") from None


def _body(model: str, messages: Sequence[Message], sampling: SamplingParams) -> dict[str, Any]:
    """What is sent; parameters that have their default stay unsaid, as other servers lack some."""
    given = {field.name: getattr(sampling, field.name) for field in dataclasses.fields(sampling)}
    asked = {name: value for name, value in given.items() if value != getattr(_DEFAULTS, name)}
    return {
        **asked,
        "model": model,
        "messages": list(messages),
        "temperature": sampling.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def _said(response: httpx.Response) -> AsyncGenerator[Said, None]:
    """Raises `ServerError` for what is no stream of a chat's events.

    Half of a surrogate pair at the end of a text waits for the other half.
    """
    said, data = None, ""
    async for line in response.aiter_lines():
        field, _, content = line.partition(":")
        content = content.removeprefix(" ")
        if field == "data" and content not in _NO_EVENT:
            data = content
            said = _with_event(said or Said("", None, None), data, response.status_code)
            yield dataclasses.replace(
                said, text=without_half(said.text), thought=without_half(said.thought)
            )
    if said is None:
        raise ServerError("the server's answer has no events: it does not stream chats")
    if any(text != without_half(text) for text in (said.text, said.thought)):
        raise _no_event(data)


def _with_event(said: Said, data: str, status: int) -> Said:
    """The answer with what an event adds. Raises `ServerError` for what is none, or an error."""
    try:
        event = json.loads(data)
        if event.get("error"):
            raise ServerError(_reason(data.encode(), status))
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
            said = Said(
                joined(said.text, delta.get("content") or ""),
                choice.get("finish_reason") or said.finish_reason,
                said.figures,
                joined(said.thought, thought),
            )
        if event.get("usage"):
            said = dataclasses.replace(said, figures=_figures(event["usage"]))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise _no_event(data) from None
    return said


def _no_event(data: str) -> ServerError:
    return ServerError(f"the server sends what is no event of a chat: {data[:80]!r}")


def _figures(usage: dict[str, Any]) -> Figures:
    """Raises `TypeError` and the like for a usage of other than whole numbers."""
    details = usage.get("prompt_tokens_details") or {}
    return Figures(
        num_prompt_tokens=_whole(usage["prompt_tokens"]),
        num_cached_tokens=_whole(details.get("cached_tokens") or 0),
        num_new_tokens=_whole(usage["completion_tokens"]),
        duration_s=0.0,
    )


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError
    return value


def _reason(content: bytes, status: int) -> str:
    return told_error(content, status) or f"the server answered with status {status}"
