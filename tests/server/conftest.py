from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from pagoda.server.app import create_app
from server.fake_engine import FakeEngine


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, in the same process."""
    transport = httpx.ASGITransport(create_app(engine), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client
