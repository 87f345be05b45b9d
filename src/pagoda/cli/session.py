"""`pagoda session`: a conversation, carried from one server to another as a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO
from urllib.parse import quote

import typer

from pagoda.errors import EngineError, InvalidOptionError

if TYPE_CHECKING:
    import httpx

_KEY_VARIABLE = "PAGODA_API_KEY"
_PART_BYTES = 2**18
_TIMEOUT_S = 600.0
"""For each wait: a server copies gigabytes before it answers."""
_HINTS = {401: "; give it as --api-key or in PAGODA_API_KEY"}

_NUMBERS = ("x-pagoda-exported-tokens", "x-pagoda-tokens")
"""Headers of an export."""

URL = Annotated[str, typer.Option(metavar="URL", help="The server.")]
Key = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help=f"The server's key; without it ${_KEY_VARIABLE}."),
]

session = typer.Typer(
    help="Carry a conversation to another server: export, import.", rich_markup_mode=None
)


@session.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@session.command("export")
def export_session(
    session_id: Annotated[
        str, typer.Argument(metavar="ID", help="As requests gave it: their session_id.")
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Written anew.")],
    url: URL = "http://127.0.0.1:8000",
    api_key: Key = None,
) -> None:
    """Write a session of a running server to a file, sealed with the server's key file."""
    with (
        _client(url, api_key) as client,
        client.stream("GET", f"/sessions/{quote(session_id, safe='')}/export") as answer,
    ):
        if not answer.is_success:
            answer.read()
            raise _refusal(answer, "session_id", session_id)
        num_bytes = _write(file, answer)
        exported, num_tokens = (answer.headers.get(name, "?") for name in _NUMBERS)
    told = f"{exported} of {num_tokens} tokens of {session_id!r} are in {file}"
    print(f"{told}, {num_bytes:,} bytes", file=sys.stderr)


@session.command("import")
def import_session(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As `export` wrote it.")],
    url: URL = "http://127.0.0.1:8000",
    api_key: Key = None,
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="ID", help="Its name there; without it the one it has."),
    ] = None,
) -> None:
    """Bring a session out of a file into the cache of a running server.

    It has to be of the same model and cache, on the same kind of machine, with the same key file.
    """
    with _client(url, api_key) as client, _opened(file) as content:
        answer = client.post(
            "/sessions/import",
            params={} if name is None else {"id": name},
            content=_parts(content),
            headers={"Content-Length": str(file.stat().st_size)},
        )
    if not answer.is_success:
        raise _refusal(answer, "file", str(file))
    told = answer.json()
    reason = "" if told["reason"] is None else f" ({told['reason']})"
    cached = f"{told['num_cached_tokens']} of {told['num_tokens']} tokens"
    print(f"{cached} of {told['id']!r} are in the cache{reason}", file=sys.stderr)


@contextmanager
def _client(url: str, api_key: str | None) -> Iterator[httpx.Client]:
    """Raises `InvalidOptionError` for what is no address or no key, and for a server that breaks
    off or does not answer."""
    import httpx

    from pagoda.cli.metrics_watch import client_for, server_url

    address = server_url(url)
    try:
        with client_for(
            api_key if api_key is not None else os.environ.get(_KEY_VARIABLE)
        ) as client:
            client.base_url, client.timeout = httpx.URL(address), httpx.Timeout(_TIMEOUT_S)
            yield client
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise InvalidOptionError("url", address, f"does not answer: {reason}") from None


def _write(file: Path, answer: httpx.Response) -> int:
    """Put an answer under a file's name once all of it is there; returns its bytes.

    Raises `InvalidOptionError` where it cannot be written.
    """
    fresh = file.with_name(f"{file.name}.part")
    try:
        with fresh.open("wb") as target:
            for part in answer.iter_bytes(_PART_BYTES):
                target.write(part)
            num_bytes = target.tell()
        fresh.replace(file)
    except OSError as error:
        raise InvalidOptionError(
            "file", str(file), f"cannot be written: {error.strerror}"
        ) from None
    finally:
        fresh.unlink(missing_ok=True)
    return num_bytes


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """Raises `InvalidOptionError` for a file that cannot be read."""
    try:
        with file.open("rb") as content:
            yield content
    except OSError as error:
        raise InvalidOptionError("file", str(file), f"cannot be read: {error.strerror}") from None


def _parts(content: BinaryIO) -> Iterator[bytes]:
    while part := content.read(_PART_BYTES):
        yield part


def _refusal(answer: httpx.Response, field: str, value: str) -> Exception:
    """What the server says, or that it is not Pagoda's."""
    try:
        error: Any = answer.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        limit = f"answered with status {answer.status_code}: it is not Pagoda's, or an older one"
        return InvalidOptionError("url", str(answer.url.host), limit)
    if answer.status_code >= 500:
        return EngineError(str(error))
    hint = _HINTS.get(answer.status_code, "")
    return InvalidOptionError(field, value, f"the server says: {error}{hint}")
