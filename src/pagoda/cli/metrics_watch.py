"""Reading a server's `/metrics` again and again, over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from pagoda.cli.server_client import TIMEOUT_S, server_url
from pagoda.cli.watch_options import WatchOptions
from pagoda.doctor import Scrape, read_scrape
from pagoda.errors import InvalidOptionError

_MOST_BYTES = 64 * 2**20
_GIVEN_UP = 3
"""Scrapes in a row that failed at the end: the server is gone, not restarting."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The time, for tests to replace."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def metrics_url(url: str) -> str:
    """Where the metrics of the server at `url` are, which is read as by `server_url`."""
    return f"{server_url(url)}/metrics"


def watch(
    client: httpx.Client,
    url: str,
    options: WatchOptions,
    on_scrape: Callable[[float], None] = lambda done: None,
    check: Callable[[Scrape], object] = lambda scrape: None,
    clock: Clock | None = None,
) -> list[Scrape]:
    """Scrape `url` once, and then for as long as `options` say.

    `on_scrape` hears which share of the time has gone; `check` sees the first scrape, and may
    refuse it before anybody waits. A scrape that fails is left out, except the
    first and the last ones. An interrupt ends the watch early where there are two scrapes. Raises
    `InvalidOptionError` for a server that cannot be reached, or is no engine.
    """
    clock = clock or Clock()
    scrapes = [_scrape(client, url, clock)]
    check(scrapes[0])
    start = clock.now()
    failures: list[InvalidOptionError] = []
    try:
        while (gone := clock.now() - start) < options.watch:
            on_scrape(gone / options.watch)
            clock.sleep(min(options.interval, max(options.watch - gone, 0.05)))
            try:
                scrapes.append(_scrape(client, url, clock))
                failures.clear()
            except InvalidOptionError as error:
                failures.append(error)
    except KeyboardInterrupt:
        if len(scrapes) < 2:
            raise
    if len(failures) >= _GIVEN_UP or len(scrapes) < 2:
        raise failures[-1]
    return scrapes


def _scrape(client: httpx.Client, url: str, clock: Clock) -> Scrape:
    return read_scrape(_fetch(client, url, clock), clock.now(), url)


def _fetch(client: httpx.Client, url: str, clock: Clock) -> str:
    deadline_s = clock.now() + TIMEOUT_S
    try:
        with client.stream("GET", url) as response:
            _require_success(response, url)
            body = bytearray()
            for part in response.iter_bytes():
                body += part
                if len(body) > _MOST_BYTES:
                    limit = f"sends more than {_MOST_BYTES} bytes"
                    raise InvalidOptionError("url", url, limit)
                if clock.now() > deadline_s:
                    raise httpx.ReadTimeout("the whole of it")
            return body.decode("utf-8", "replace")
    except httpx.TimeoutException as error:
        limit = f"does not answer within {TIMEOUT_S:.0f} seconds"
        raise InvalidOptionError("url", url, limit) from error
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        reason = str(error) or type(error).__name__
        raise InvalidOptionError("url", url, f"cannot be read: {reason}") from error


def _require_success(response: httpx.Response, url: str) -> None:
    status = response.status_code
    if status in (401, 403):
        limit = f"wants another key (HTTP {status}): give --api-key"
        raise InvalidOptionError("url", url, limit)
    if status == 404:
        raise InvalidOptionError("url", url, "is not there (HTTP 404): is it the server's address?")
    if not 200 <= status < 300:
        raise InvalidOptionError("url", url, f"answers with HTTP {status}")
