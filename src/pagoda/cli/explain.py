"""`pagoda explain`: why a request's prompt, or no more of it, was found in a server's cache."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pagoda.cli.prompts import undecodable
from pagoda.cli.server_client import (
    DEFAULT_URL,
    ServerKey,
    ServerUrl,
    asking,
    quoted,
    read_object,
)
from pagoda.errors import InvalidOptionError

MOST_CHARACTERS = 64 * 2**20
"""Of a file or stdin: many times what any model takes. Half of one is not explained."""
_MOST_ID_CHARACTERS = 1024
"""More than any request's id has: a server takes no line that long."""
_JSON = {"Content-Type": "application/json"}


def explain(
    request: Annotated[
        str,
        typer.Argument(
            metavar="ID|FILE",
            help="A request that has ended, by its own id or its answer's; or a file with a "
            "request's body, or a prompt: what would it find now? - is stdin.",
        ),
    ],
    url: ServerUrl = DEFAULT_URL,
    api_key: ServerKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a prompt.")] = False,
) -> None:
    """Say what of a prompt was found in a server's cache, and why no more."""
    for each in _told(request, url, api_key):
        sys.stdout.write((json.dumps(each, ensure_ascii=False) if as_json else _words(each)) + "\n")


def _told(request: str, url: str, api_key: str | None) -> list[dict[str, Any]]:
    """Of each prompt. Raises `InvalidOptionError` for what the server does not know or take."""
    body = _body(request)
    with asking(url, api_key) as client:
        if body is None:
            answer = client.get(f"/cache/explanations/{quoted(request)}")
            prompts: list[dict[str, Any]] = read_object(answer, "id", request, "prompts")["prompts"]
            return prompts
        answer = client.post("/cache/explain", content=json.dumps(body), headers=_JSON)
        told = read_object(answer, "file", request)
        if "prompts" in told:
            several: list[dict[str, Any]] = told["prompts"]
            return several
        return [read_object(answer, "file", request, "explanation")]


def _body(request: str) -> dict[str, Any] | None:
    """What a file holds; None where `request` is no file but an id.

    Raises `InvalidOptionError` for a file that cannot be read, has nothing in it or too much, or
    is nested too deeply, and for what cannot be an id.
    """
    text = _text(request)
    if text is None:
        if not 0 < len(request) <= _MOST_ID_CHARACTERS:
            limit = f"an id of 1 to {_MOST_ID_CHARACTERS:,} characters, a file, or - for stdin"
            raise InvalidOptionError("request", request, limit)
        return None
    if not text.strip():
        raise InvalidOptionError("file", request, "is empty")
    if len(text) > MOST_CHARACTERS:
        limit = f"has more than {MOST_CHARACTERS:,} characters, the most that are read"
        raise InvalidOptionError("file", request, limit)
    try:
        body = json.loads(text)
    except ValueError:
        return {"prompt": text}
    except RecursionError:
        raise InvalidOptionError("file", request, "is JSON that is nested too deeply") from None
    return body if isinstance(body, dict) else {"prompt": text}


def _text(request: str) -> str | None:
    """What stdin or a file says, up to a character more than may be; None: it names no file."""
    if request == "-":
        try:
            return sys.stdin.read(MOST_CHARACTERS + 1)
        except UnicodeDecodeError as error:
            raise undecodable(error) from None
    if not os.path.exists(request):
        if request.endswith((".json", ".txt")):
            raise InvalidOptionError("file", request, "is not there")
        return None
    try:
        with Path(request).open(encoding="utf-8") as file:
            return file.read(MOST_CHARACTERS + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidOptionError("file", request, f"cannot be read: {reason}") from None
    except UnicodeDecodeError:
        raise InvalidOptionError("file", request, "must be UTF-8 text") from None


def _words(told: dict[str, Any]) -> str:
    return str(told["explanation"])
