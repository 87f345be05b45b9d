"""What the server is and how it does."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from pagoda import __version__
from pagoda.server.admission import Admission
from pagoda.server.errors import (
    REFUSALS,
    ShuttingDownError,
    UnknownModelError,
    error_response,
    rejection,
)
from pagoda.server.metrics import registry_of
from pagoda.server.options import ServerOptions
from pagoda.server.responses import ErrorDetail, ErrorResponse, ModelCard, ModelList
from pagoda.server.traffic import Traffic

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.options import EngineOptions
    from pagoda.engine.step_watch import HungStep


def state_routes(
    engine: AsyncEngine, admission: Admission, traffic: Traffic, options: ServerOptions
) -> APIRouter:
    """Routes for whoever watches the server."""
    router = APIRouter()
    created = int(time.time())
    cards = {
        name: ModelCard(
            id=name, root=engine.model_name, created=created, max_model_len=engine.max_model_len
        )
        for name in engine.model_names
    }
    registry = registry_of(engine, admission, traffic)

    @router.post("/ping", include_in_schema=False)
    @router.get("/ping", include_in_schema=False)
    @router.get("/health", responses={503: {"model": ErrorResponse}})
    async def health() -> Response:
        """200 while requests are answered; 503 while a step of the engine hangs, and once the
        engine or the server is ending."""
        if not engine.is_alive:
            return error_response(503, _stopped())
        hung = engine.hung_step(options.step_timeout)
        if hung is not None:
            return error_response(503, _hanging(hung))
        if admission.is_closed:
            return rejection(ShuttingDownError())
        return Response()

    @router.get("/load")
    async def load() -> dict[str, int]:
        """Requests that run or wait, those to tokenise too."""
        return {"server_load": admission.num_admitted}

    @router.get("/version")
    async def version() -> dict[str, str]:
        """Pagoda's version."""
        return {"version": __version__}

    @router.get("/v1/models")
    async def list_models() -> ModelList:
        """The one model that is served, once by each of its names."""
        return ModelList(data=list(cards.values()))

    @router.get("/v1/models/{model:path}", responses=REFUSALS)
    async def tell_model(model: str) -> ModelCard:
        """The model that is served, if that is the one."""
        if model not in cards:
            raise UnknownModelError(model, engine.model_names)
        return cards[model]

    @router.get("/metrics")
    async def metrics() -> Response:
        """Statistics in Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router


def dev_routes(engine: AsyncEngine, options: ServerOptions) -> APIRouter:
    """Routes for developers: they change or tell what clients have no business with."""
    router = APIRouter()

    @router.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        """Forget every block that no request holds."""
        await engine.reset_prefix_cache()
        return Response()

    @router.get("/server_info")
    async def server_info(request: Request) -> dict[str, Any]:
        """How the server was started, and what its engine counts.

        Options that are null were left to the engine.
        """
        given: EngineOptions | None = getattr(request.app.state, "engine_options", None)
        return {
            "version": __version__,
            "model": engine.model_name,
            "max_model_len": engine.max_model_len,
            "max_num_seqs": engine.max_num_seqs,
            "weights": None if engine.held is None else engine.held.as_json(),
            "cache": None if engine.stored is None else engine.stored.as_json(),
            "engine_options": None if given is None else given.as_told(),
            "server": dataclasses.asdict(options),
            "engine": engine.stats().figures(),
        }

    return router


def _stopped() -> ErrorDetail:
    """What is told when no request can be answered any more."""
    return ErrorDetail(
        message="the engine has stopped; restart the server",
        type="server_error",
        code="engine_stopped",
    )


def _hanging(hung: HungStep) -> ErrorDetail:
    """What is told while a step of the engine does not end."""
    return ErrorDetail(message=f"the engine hangs: {hung}", type="server_error", code="engine_hung")
