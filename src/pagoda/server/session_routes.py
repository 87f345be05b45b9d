"""`/sessions`: conversations by name, which survive restarts and travel to other servers."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from fastapi import APIRouter, Request, Response

from pagoda.engine.sessions.reports import PresentSession
from pagoda.request import require_session_id
from pagoda.server.door import tenant_of
from pagoda.server.errors import REFUSALS
from pagoda.server.file_answer import FileAnswer
from pagoda.server.options import ServerOptions
from pagoda.server.session_bodies import (
    DeletedSession,
    PresentBody,
    SavedBody,
    SessionBody,
    SessionList,
)
from pagoda.server.session_work import SessionWork
from pagoda.server.spooled_body import spooled_body

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine


def session_routes(engine: AsyncEngine, work: SessionWork, options: ServerOptions) -> APIRouter:
    """Each tenant has sessions of its own, and is told the same of another's as of nobody's."""
    router = APIRouter(prefix="/sessions")

    @router.get("")
    async def list_sessions(request: Request) -> SessionList:
        """The sessions that the server remembers; those that were only saved are not listed."""
        known = engine.sessions.known(tenant_of(request.scope))
        return SessionList(data=[SessionBody.of(each) for each in known])

    @router.post("/{session_id:path}/save", responses=REFUSALS)
    async def save_session(request: Request, session_id: str) -> SavedBody:
        """Store a session in the server's tiers, so that it outlasts the server."""
        tenant = tenant_of(request.scope)
        with work.entered(tenant):
            saved = await work.do(partial(engine.sessions.save, tenant, session_id))
        return SavedBody.of(saved)

    @router.post("/{session_id:path}/restore", responses=REFUSALS)
    async def restore_session(request: Request, session_id: str) -> PresentBody:
        """Bring a session that was saved into the cache."""
        tenant = tenant_of(request.scope)
        with work.entered(tenant):
            restored = await work.do(partial(engine.sessions.restore, tenant, session_id))
        return PresentBody.of(restored)

    @router.get("/{session_id:path}/export", response_class=Response, responses=REFUSALS)
    async def export_session(request: Request, session_id: str) -> Response:
        """A session as a file, sealed with the server's key."""
        tenant = tenant_of(request.scope)
        with ExitStack() as held:
            held.enter_context(work.entered(tenant))
            exported = await work.do(partial(engine.sessions.export, tenant, session_id))
            held.enter_context(exported.file)
            answer = FileAnswer(exported.file, exported.num_bytes, held.pop_all())
            answer.headers["x-pagoda-tokens"] = str(exported.num_tokens)
            answer.headers["x-pagoda-exported-tokens"] = str(exported.num_exported_tokens)
            return answer

    @router.post("/import", responses=REFUSALS)
    async def import_session(request: Request, id: str | None = None) -> PresentBody:
        """Bring a session into the cache that another server has exported, as `id`, or under the
        name that it had there. The body is the file."""
        if id is not None:
            require_session_id(id)
        tenant, max_bytes = tenant_of(request.scope), engine.sessions.max_file_bytes
        with work.entered(tenant):
            timeout_s, bytes_of = options.client_timeout, engine.sessions.file_bytes
            file = await spooled_body(request, max_bytes, timeout_s, work.do, bytes_of)
            imported = await work.do(partial(_imported, engine, tenant, file, id))
        return PresentBody.of(imported)

    @router.delete("/{session_id:path}", responses=REFUSALS)
    async def delete_session(request: Request, session_id: str) -> DeletedSession:
        """Forget a session; what it computed stays in the cache as long as anything else."""
        tenant = tenant_of(request.scope)
        with work.entered(tenant):
            await work.do(partial(engine.sessions.forget, tenant, session_id))
        return DeletedSession(id=session_id)

    return router


def _imported(
    engine: AsyncEngine, tenant: str, file: BinaryIO, session_id: str | None
) -> PresentSession:
    with file:
        return engine.sessions.import_file(tenant, file, session_id)
