"""Asking a running server: where it is, with which key, and what it says when it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from pagoda.errors import EngineError, InvalidOptionError, PagodaError

if TYPE_CHECKING:
    import httpx

KEY_VARIABLE = "PAGODA_API_KEY"
DEFAULT_URL = "http://127.0.0.1:8000"
_LAST_PORT = 65_535
TIMEOUT_S = 10.0
"""For each wait on a server, where nothing takes long."""

ServerUrl = Annotated[str, typer.Option(metavar="URL", help="The server.")]
ServerKey = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help=f"The server's key; without it ${KEY_VARIABLE}."),
]


def server_url(url: str) -> str:
    """Where a server is, without a slash at the end.

    `url` may leave out `http://` and may end in `/metrics` or `/v1`. Raises `InvalidOptionError`
    for what is no address.
    """
    import httpx

    limit = f"name a server, like {DEFAULT_URL}"
    written = url if "://" in url else f"http://{url}"
    try:
        parsed = httpx.URL(written.strip())
    except (httpx.InvalidURL, ValueError):
        raise InvalidOptionError("url", url, limit) from None
    has_port = parsed.port is None or parsed.port <= _LAST_PORT
    if parsed.scheme not in ("http", "https") or not parsed.host or not has_port:
        raise InvalidOptionError("url", url, limit)
    if parsed.userinfo:
        raise InvalidOptionError("url", f"{parsed.host}…", "carries a password: use --api-key")
    path = parsed.path.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
    return str(parsed.copy_with(path=path or "/", query=None, fragment=None)).rstrip("/")


def key_headers(api_key: str | None) -> dict[str, str]:
    """What carries the key that is given or, without one, the environment's; none if there is none.

    Raises `InvalidOptionError` for what is no key.
    """
    key = api_key if api_key is not None else os.environ.get(KEY_VARIABLE)
    if key is None:
        return {}
    if not key or not key.isascii() or not key.isprintable():
        raise InvalidOptionError("api_key", "…", "must be plain ASCII without line breaks")
    return {"Authorization": f"Bearer {key}"}


def client_for(api_key: str | None, url: str = "", timeout_s: float = TIMEOUT_S) -> httpx.Client:
    """A client that carries the key, see `key_headers`; addresses go on from `url`."""
    import httpx

    headers = key_headers(api_key)
    return httpx.Client(base_url=url, headers=headers, timeout=timeout_s, follow_redirects=True)


@contextmanager
def asking(url: str, api_key: str | None, timeout_s: float = TIMEOUT_S) -> Iterator[httpx.Client]:
    """A client of the server at `url`, which is read as by `server_url`.

    Raises `InvalidOptionError` for what is no address or no key, and for a server that breaks off
    or does not answer.
    """
    import httpx

    address = server_url(url)
    try:
        with client_for(api_key, address, timeout_s) as client:
            yield client
    except httpx.StreamError:
        limit = "sends what it is given on to another address: give that one"
        raise InvalidOptionError("url", address, limit) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise InvalidOptionError("url", address, f"does not answer: {reason}") from None


def quoted(text: str) -> str:
    """A name as a part of an address. Bytes of a command line that are no text stay as they are."""
    return quote(text, safe="", errors="surrogateescape")


def read_object(answer: httpx.Response, field: str, value: str, *needed: str) -> dict[str, Any]:
    """An answer's object. Raises what `refusal` says of one that is none, or lacks what is needed.

    field, value: what the server was asked about.
    """
    try:
        told = answer.json()
    except (ValueError, RecursionError):
        told = None
    if answer.is_success and isinstance(told, dict) and all(name in told for name in needed):
        return told
    raise refusal(answer, field, value)


def refusal(answer: httpx.Response, field: str, value: str) -> PagodaError:
    """Of an answer that is not what was asked for: what the server says, or that it is not
    Pagoda's. It has been read."""
    message = told_error(answer.content, answer.status_code)
    if message is None:
        return foreign(answer)
    if answer.status_code >= 500:
        return EngineError(message)
    return InvalidOptionError(field, value, f"the server says: {message}")


def foreign(answer: httpx.Response) -> PagodaError:
    """Of an answer that no Pagoda gives."""
    limit = f"answered with status {answer.status_code}: it is not Pagoda's, or an older one"
    return InvalidOptionError("url", answer.url.host, limit)


def told_error(content: bytes, status: int) -> str | None:
    """The message of an error in OpenAI's shape, and where a key is given if that is missing; None:
    it is none."""
    try:
        message = str(json.loads(content)["error"]["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return f"{message}; give it as --api-key or in {KEY_VARIABLE}" if status == 401 else message
