"""`pagoda session`: a conversation, carried from one server to another as a file."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from pagoda.cli.server_client import (
    DEFAULT_URL,
    ServerKey,
    ServerUrl,
    asking,
    foreign,
    quoted,
    read_object,
    refusal,
)
from pagoda.cli.unwinding import unwinding
from pagoda.errors import InvalidOptionError

if TYPE_CHECKING:
    import httpx

_PART_BYTES = 2**18
_TIMEOUT_S = 600.0
"""For each wait: a server copies gigabytes before it answers."""

_NUMBERS = ("x-pagoda-exported-tokens", "x-pagoda-tokens")
"""Headers of an export."""
_TOLD = ("id", "num_cached_tokens", "num_tokens", "reason")
"""Fields of the answer to an import."""

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
    url: ServerUrl = DEFAULT_URL,
    api_key: ServerKey = None,
) -> None:
    """Write a session of a running server to a file, sealed with the server's key file."""
    with (
        unwinding(),
        asking(url, api_key, _TIMEOUT_S) as client,
        client.stream("GET", f"/sessions/{quoted(session_id)}/export") as answer,
    ):
        if not answer.is_success:
            answer.read()
            raise refusal(answer, "session_id", session_id)
        if not all(name in answer.headers for name in _NUMBERS):
            raise foreign(answer)
        num_bytes = _write(file, answer)
        exported, num_tokens = (answer.headers[name] for name in _NUMBERS)
    told = f"{exported} of {num_tokens} tokens of {session_id!r} are in {file}"
    print(f"{told}, {num_bytes:,} bytes", file=sys.stderr)


@session.command("import")
def import_session(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="As `export` wrote it.")],
    url: ServerUrl = DEFAULT_URL,
    api_key: ServerKey = None,
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="ID", help="Its name there; without it the one it has."),
    ] = None,
) -> None:
    """Bring a session out of a file into the cache of a running server.

    It has to be of the same model and cache, on the same kind of machine, with the same key file.
    """
    with asking(url, api_key, _TIMEOUT_S) as client, _opened(file) as content:
        answer = client.post(
            "/sessions/import" if name is None else f"/sessions/import?id={quoted(name)}",
            content=_parts(content),
            headers={"Content-Length": str(os.fstat(content.fileno()).st_size)},
        )
    told = read_object(answer, "file", str(file), *_TOLD)
    reason = "" if told["reason"] is None else f" ({told['reason']})"
    cached = f"{told['num_cached_tokens']} of {told['num_tokens']} tokens"
    print(f"{cached} of {told['id']!r} are in the cache{reason}", file=sys.stderr)


def _write(file: Path, answer: httpx.Response) -> int:
    """Put an answer under a file's name once all of it is there; returns its bytes.

    Raises `InvalidOptionError` where it cannot be written. Nothing is left where it breaks off.
    """
    try:
        descriptor, fresh = tempfile.mkstemp(".part", "session-", file.parent)
        try:
            with open(descriptor, "wb") as target:
                for part in answer.iter_bytes(_PART_BYTES):
                    target.write(part)
                num_bytes = target.tell()
            os.replace(fresh, file)
        finally:
            Path(fresh).unlink(missing_ok=True)
    except OSError as error:
        raise InvalidOptionError(
            "file", str(file), f"cannot be written: {error.strerror}"
        ) from None
    return num_bytes


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """Raises `InvalidOptionError` for a file that cannot be read, and for what is none."""
    try:
        with file.open("rb") as content:
            if not stat.S_ISREG(os.fstat(content.fileno()).st_mode):
                raise InvalidOptionError(
                    "file", str(file), "must be a file: its size is told first"
                )
            yield content
    except OSError as error:
        raise InvalidOptionError("file", str(file), f"cannot be read: {error.strerror}") from None


def _parts(content: BinaryIO) -> Iterator[bytes]:
    while part := content.read(_PART_BYTES):
        yield part
