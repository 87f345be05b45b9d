"""The HTTP application: routes over one engine."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from pagoda.server.chat import chat_routes
from pagoda.server.completions import completion_routes
from pagoda.server.errors import error_response, install_handlers, stopped
from pagoda.server.generation import ClientGoneError
from pagoda.server.metrics import registry_of
from pagoda.server.responses import ErrorResponse, ModelCard, ModelList

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine

_CLIENT_CLOSED_REQUEST = 499


def create_app(engine: AsyncEngine) -> FastAPI:
    """The application over `engine`, which starts and shuts down with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        await engine.shutdown()

    # The documentation pages would load scripts from elsewhere; the schema alone is served.
    app = FastAPI(title="Pagoda", docs_url=None, redoc_url=None, lifespan=lifespan)
    install_handlers(app)
    app.include_router(completion_routes(engine))
    app.include_router(chat_routes(engine))
    _add_state_routes(app, engine)

    @app.exception_handler(ClientGoneError)
    async def on_client_gone(request: Request, error: ClientGoneError) -> Response:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)

    return app


def _add_state_routes(app: FastAPI, engine: AsyncEngine) -> None:
    """What the server is and how it does."""
    created = int(time.time())
    registry = registry_of(engine)

    @app.get("/health", responses={503: {"model": ErrorResponse}})
    async def health() -> Response:
        """200 while the engine runs, 503 once it has stopped."""
        if not engine.is_alive:
            return error_response(503, stopped())
        return Response()

    @app.get("/v1/models")
    async def list_models() -> ModelList:
        """The one model that is served."""
        card = ModelCard(id=engine.model_name, created=created, max_model_len=engine.max_model_len)
        return ModelList(data=[card])

    @app.get("/metrics")
    async def metrics() -> Response:
        """The engine's statistics in Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
