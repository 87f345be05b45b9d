"""`/tokenize` and `/detokenize`: text or a chat to token ids, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from pagoda.server.errors import REFUSALS
from pagoda.server.protocol import DetokenizeRequest, TokenizeRequest
from pagoda.server.responses import DetokenizeResponse, TokenizeResponse

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine


def token_routes(engine: AsyncEngine) -> APIRouter:
    router = APIRouter()

    @router.post("/tokenize", responses=REFUSALS)
    async def tokenize(body: TokenizeRequest) -> TokenizeResponse:
        """The token ids of a prompt, or of the prompt that a chat becomes."""
        body.check(engine.model_name)
        if body.messages is not None:
            tokens = await engine.chat_prompt(body.template_messages(), body.described_tools())
        else:
            tokens = await engine.tokenize(body.prompt or "", body.add_special_tokens)
        texts = [engine.token_text(each) for each in tokens] if body.return_token_strs else None
        return TokenizeResponse(
            count=len(tokens),
            max_model_len=engine.max_model_len,
            tokens=tokens,
            token_strs=texts,
        )

    @router.post("/detokenize", responses=REFUSALS)
    async def detokenize(body: DetokenizeRequest) -> DetokenizeResponse:
        """The text of token ids."""
        body.check(engine.model_name)
        return DetokenizeResponse(prompt=await engine.detokenize(body.tokens))

    return router
