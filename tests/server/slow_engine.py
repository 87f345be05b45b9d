"""An engine that takes its time, for tests of what happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from pagoda.engine.outputs import RequestOutput
from pagoda.errors import ShutDownError
from server.fake_engine import FakeEngine

STEP_S = 0.05


class SlowEngine(FakeEngine):
    """Every token takes `STEP_S` seconds."""

    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[RequestOutput, None]:
        stream = super().generate(*args, **options)
        try:
            async for output in stream:
                yield output
                await asyncio.sleep(STEP_S)
                if not self.is_running:
                    raise ShutDownError
        finally:
            await stream.aclose()
