from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache, partial
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from engine.few_layers import with_layers
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.build import Model, connect
from pagoda.engine.options import EngineOptions
from pagoda.server.app import create_app
from server.fake_engine import FakeEngine


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def app(anyio_backend: str) -> FastAPI:
    """An application over an engine without a model, which a file's tests share, as they share
    their event loop: it is made of hundreds of schemas.

    What it counts and keeps goes on from test to test: requests, lookups, stored responses. A file
    about these has a `client` of its own.
    """
    return create_app(FakeEngine())  # type: ignore[arg-type]


MakeApp = Callable[..., FastAPI]


@pytest.fixture(scope="module")
def make_app(app: FastAPI) -> MakeApp:
    """Makes an application over the same engine, once for the same options and the same ring of
    keys: like `app`, it goes on from test to test."""
    return cache(partial(create_app, app.state.engine))


@pytest.fixture
def engine(app: FastAPI) -> FakeEngine:
    """The application's, as new."""
    engine: FakeEngine = app.state.engine
    engine.renew()
    return engine


def client_of(app: FastAPI, **options: Any) -> httpx.AsyncClient:
    """A client of an application in the same process."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", **options)


@pytest.fixture
async def client(app: FastAPI, engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, in the same process."""
    assert app.state.engine is engine, "a file that has an engine of its own needs a client of it"
    async with client_of(app) as client:
        yield client


FEW_LAYERS = 0, 29
"""The first and the last: a step takes a quarter of the time, a prompt a tenth."""


@pytest.fixture(scope="module")
def shallow_model(default_model: Model) -> Model:
    """The default model with two of its layers, for tests that ask how it answers and not what."""
    return with_layers(default_model, FEW_LAYERS)


@pytest.fixture(scope="module")
def real_engine(default_model: Model) -> Iterator[AsyncEngine]:
    """The default model, running."""
    yield from _running(default_model)


@pytest.fixture(scope="module")
def shallow_engine(shallow_model: Model) -> Iterator[AsyncEngine]:
    """`shallow_model`, running."""
    yield from _running(shallow_model)


def _running(model: Model) -> Iterator[AsyncEngine]:
    engine = AsyncEngine(connect(model, EngineOptions(kv_cache_memory_bytes=2**27)))
    engine.start()
    yield engine
    asyncio.run(engine.shutdown())


@pytest.fixture(scope="module")
async def server(real_engine: AsyncEngine, anyio_backend: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application over the default model."""
    async with client_of(create_app(real_engine), timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
async def shallow_server(
    shallow_engine: AsyncEngine, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application over `shallow_model`."""
    async with client_of(create_app(shallow_engine), timeout=120) as client:
        yield client
