"""The HTTP application: routes over one engine, and what stands before them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from pagoda.engine.devices.cores import num_usable_cores
from pagoda.engine.tenant_threads import TenantThreads
from pagoda.server.access_log import AccessLog
from pagoda.server.admission import Admission
from pagoda.server.cache_events import cache_event_routes
from pagoda.server.cache_lookout import CacheLookout
from pagoda.server.cache_page import cache_page_routes
from pagoda.server.chat import chat_routes
from pagoda.server.completions import completion_routes
from pagoda.server.cors import cors_arguments
from pagoda.server.curve_routes import curve_routes
from pagoda.server.door import BodyLimit, EntryGate, HeaderLimit, KeyCheck
from pagoda.server.errors import install_handlers
from pagoda.server.explain_routes import explain_routes
from pagoda.server.head import HeadAsGet
from pagoda.server.host_check import HostCheck
from pagoda.server.inflation import Inflation
from pagoda.server.keys import KeyRing
from pagoda.server.messages_api.routes import messages_routes
from pagoda.server.options import ServerOptions
from pagoda.server.origin_check import OriginCheck
from pagoda.server.page import page_routes
from pagoda.server.pending_bodies import PendingBodies
from pagoda.server.plan_page import plan_page_routes
from pagoda.server.prompts import Prompts
from pagoda.server.recent_lookups import RecentLookups
from pagoda.server.responses_api.routes import responses_routes
from pagoda.server.responses_api.store import ResponseStore
from pagoda.server.session_routes import session_routes
from pagoda.server.session_work import SessionWork
from pagoda.server.state import dev_routes, state_routes
from pagoda.server.stats_log import StatsLog
from pagoda.server.tokens import token_routes
from pagoda.server.traffic import Traffic
from pagoda.server.turns import Turns
from pagoda.server.unread_answers import UnreadAnswers
from pagoda.server.unserved import not_found
from pagoda.server.usage_ledger import UsageLedger
from pagoda.server.usage_routes import usage_routes
from pagoda.server.value_limit import ValueLimit
from pagoda.server.watchdog import LAST_STEP_S, Watchdog

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine

_MOST_PENDING = 32
"""Bodies of the largest size that may be on their way at a time."""


def create_app(
    engine: AsyncEngine, options: ServerOptions | None = None, keys: KeyRing | None = None
) -> FastAPI:
    """The application over `engine`, which starts and shuts down with it.

    `app.state` has the `engine`, the `admission`, which counts the requests that were let in and
    can be closed, and the `unread_answers`.
    """
    options = options or ServerOptions()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        watchdog = Watchdog(engine, options)
        try:
            async with (
                _stats_logged(engine, options),
                _beside(watchdog.run()),
                _beside(ledger.run()),
            ):
                yield
            await engine.shutdown(LAST_STEP_S)
        finally:
            app.state.body_threads.close()
            ledger.close()

    # The documentation pages would load scripts from elsewhere; the schema alone is served.
    app = FastAPI(title="Pagoda", docs_url=None, redoc_url=None, lifespan=lifespan)
    keys = keys or KeyRing()
    is_shared = keys.num_tenants > 1
    admission = Admission(
        engine.max_num_seqs + options.max_num_queued_reqs,
        options.max_num_reqs_per_key,
        is_shared=is_shared,
    )
    app.state.admission = admission
    app.state.unread_answers = UnreadAnswers(is_shared=is_shared)
    app.state.body_threads = TenantThreads(num_usable_cores(), "bodies")
    app.state.engine = engine
    store = ResponseStore(options.response_store_bytes)
    prompts = Prompts(engine, options, store)
    traffic, recent = Traffic(), RecentLookups()
    lookout = CacheLookout(engine.cache_snapshot, admission, is_shared=is_shared)
    ledger = UsageLedger(engine, None if options.usage_file is None else Path(options.usage_file))
    install_handlers(app)
    app.add_exception_handler(404, not_found)
    routers = [
        completion_routes(engine, options, prompts),
        chat_routes(engine, options, prompts),
        responses_routes(engine, options, prompts, store),
        messages_routes(engine, options, prompts),
        token_routes(engine, prompts),
        explain_routes(engine, prompts, recent),
        cache_event_routes(lookout),
        cache_page_routes(),
        usage_routes(engine, ledger, keys),
        session_routes(engine, SessionWork(admission, is_shared=is_shared), options),
        curve_routes(engine),
        state_routes(engine, admission, traffic, options),
        page_routes(),
        plan_page_routes(),
    ]
    if options.dev_mode:
        routers.append(dev_routes(engine, options))
    # To include a router instead would have FastAPI prepare every route of it a second time.
    for router in routers:
        app.routes.extend(router.routes)
    traffic.know(app.routes)
    # The last one added is the first that a request meets.
    bodies = PendingBodies(
        _MOST_PENDING * options.max_body_bytes,
        is_shared=is_shared,
        num_rejected=admission.num_rejected,
    )
    app.add_middleware(EntryGate, admission=admission, bodies=bodies)
    turns = Turns()
    app.add_middleware(ValueLimit, max_model_len=engine.max_model_len, turns=turns)
    app.add_middleware(Inflation, max_bytes=options.max_body_bytes, turns=turns)
    app.add_middleware(
        BodyLimit, max_bytes=options.max_body_bytes, timeout_s=options.client_timeout
    )
    app.add_middleware(KeyCheck, keys=keys)
    app.add_middleware(OriginCheck, allowed=options.allowed_origins)
    if keys.is_open:
        app.add_middleware(HostCheck, allowed=options.allowed_hosts)
    app.add_middleware(HeaderLimit, max_bytes=options.max_header_bytes)
    app.add_middleware(HeadAsGet)
    app.add_middleware(AccessLog, traffic=traffic, recent=recent)
    if options.allowed_origins:
        app.add_middleware(CORSMiddleware, **cors_arguments(options))
    return app


@asynccontextmanager
async def _stats_logged(engine: AsyncEngine, options: ServerOptions) -> AsyncIterator[None]:
    """Log how the engine does while the block runs, unless that is not wanted."""
    if options.disable_log_stats:
        yield
        return
    async with _beside(StatsLog(engine).run()):
        yield


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let `work`, which has no end, go on while the block runs."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
