"""`pagoda explain`: why a request's prompt, or no more of it, was found in a server's cache."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pagoda.errors import EngineError, InvalidOptionError

_KEY_VARIABLE = "PAGODA_API_KEY"
_MOST_BYTES = 64 * 2**20


def explain(
    request: Annotated[
        str,
        typer.Argument(
            metavar="ID|FILE",
            help="A request that has ended, by its own id or its answer's; or a file with a "
            "request's body, or a prompt: what would it find now? - is stdin.",
        ),
    ],
    url: Annotated[str, typer.Option(metavar="URL", help="The server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help=f"The server's key; without it ${_KEY_VARIABLE}."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a prompt.")] = False,
) -> None:
    """Say what of a prompt was found in a server's cache, and why no more."""
    key = api_key if api_key is not None else os.environ.get(_KEY_VARIABLE)
    for each in _told(request, url, key):
        sys.stdout.write((json.dumps(each, ensure_ascii=False) if as_json else _words(each)) + "\n")


def _told(request: str, url: str, key: str | None) -> list[dict[str, Any]]:
    """Of each prompt. Raises `InvalidOptionError` for what the server does not know or take."""
    import httpx

    from pagoda.cli.metrics_watch import client_for, server_url

    address = server_url(url)
    body = _body(request)
    try:
        with client_for(key) as client:
            if body is None:
                answer = client.get(f"{address}/cache/explanations/{request}")
            else:
                answer = client.post(f"{address}/cache/explain", json=body)
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise InvalidOptionError("url", address, f"does not answer: {reason}") from None
    told = _read(answer, "file" if body is not None else "id", request)
    prompts: list[dict[str, Any]] = told["prompts"] if body is None else [told]
    return prompts


def _body(request: str) -> dict[str, Any] | None:
    """What a file holds; None where `request` is no file but an id.

    Raises `InvalidOptionError` for a file that cannot be read.
    """
    if request == "-":
        text = sys.stdin.read(_MOST_BYTES)
    elif Path(request).is_file():
        try:
            text = Path(request).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOptionError("file", request, f"cannot be read: {error}") from None
    elif "/" in request or Path(request).suffix in (".json", ".txt"):
        raise InvalidOptionError("file", request, "is not there")
    else:
        return None
    try:
        body = json.loads(text)
    except ValueError:
        return {"prompt": text}
    return body if isinstance(body, dict) else {"prompt": text}


def _read(answer: Any, field: str, request: str) -> dict[str, Any]:
    """An answer's object. Raises `InvalidOptionError` for one that says no."""
    try:
        told = answer.json()
    except ValueError:
        told = None
    if answer.is_success and isinstance(told, dict) and ("prompts" in told or "cause" in told):
        return told
    error = told.get("error") if isinstance(told, dict) else None
    if not isinstance(error, dict) or "message" not in error:
        limit = f"answered with status {answer.status_code}: it is not Pagoda's, or an older one"
        raise InvalidOptionError("url", str(answer.url.host), limit)
    if answer.status_code >= 500:
        raise EngineError(str(error["message"]))
    hint = "; give it as --api-key or in PAGODA_API_KEY" if answer.status_code == 401 else ""
    raise InvalidOptionError(field, request, f"the server says: {error['message']}{hint}")


def _words(told: dict[str, Any]) -> str:
    return str(told["explanation"])
