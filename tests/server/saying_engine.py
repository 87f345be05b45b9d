"""An engine that says what it is told to say, for tests of what people see."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from pagoda.engine.outputs import RequestOutput
from pagoda.request import SamplingParams
from server.fake_engine import FakeEngine

_POLL_S = 0.005


class SayingEngine(FakeEngine):
    """Every answer is made of `pieces`, a token each; `held_at` keeps it before that piece.

    `held_at` may be changed from any thread.
    """

    def __init__(self, pieces: Sequence[str], held_at: int | None = None) -> None:
        super().__init__()
        self.pieces = list(pieces)
        self.held_at = held_at
        self.prompts: list[str] = []
        self.samplings: list[SamplingParams] = []

    async def generate(
        self, prompt: Any, sampling: SamplingParams, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        self.prompts.append("".join(map(chr, prompt)))
        self.samplings.append(sampling)
        pieces = self.pieces
        sampling = dataclasses.replace(sampling, max_tokens=len(pieces))
        stream = super().generate(prompt, sampling, **options)
        try:
            for count in range(len(pieces)):
                while self.held_at == count:
                    await asyncio.sleep(_POLL_S)
                yield _saying(await anext(stream), "".join(pieces[: count + 1]))
        finally:
            await stream.aclose()

    def _check(self, field: str, token_ids: list[int]) -> None:
        """A conversation may be as long as it likes."""


def _saying(output: RequestOutput, text: str) -> RequestOutput:
    [choice] = output.outputs
    reason = "stop" if output.finished else None
    said = dataclasses.replace(choice, text=text, finish_reason=reason)
    return dataclasses.replace(output, outputs=[said])
