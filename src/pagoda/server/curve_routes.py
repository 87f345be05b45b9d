"""`/cache/curve`: what other sizes of the cache would find of what comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from pydantic import BaseModel

from pagoda.cache.curve import HitRateCurve
from pagoda.server.errors import RejectedError
from pagoda.server.responses import ErrorResponse, refusals

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine


class CurveRow(BaseModel):
    """One size under one policy."""

    multiple: float
    """Of the cache's own size."""
    num_blocks: int
    policy: str
    hit_rate: float | None
    """Tokens found of those looked up lately, 0 to 1; null: nothing was looked up."""


class CacheCurve(BaseModel):
    """Hit rates over sizes, and what they rest on."""

    num_blocks: int
    block_size: int
    policy: str
    sampling_rate: float
    """Share of all blocks that are followed."""
    half_life_tokens: float
    """Tokens looked up until a lookup counts half."""
    requests: int
    """Sequences looked up since the start."""
    tokens: int
    """Of those."""
    sampled_tokens: int
    """Of those, in blocks that are followed."""
    rows: list[CurveRow]

    @classmethod
    def of(cls, curve: HitRateCurve) -> CacheCurve:
        """As of now."""
        return cls(
            num_blocks=curve.num_blocks,
            block_size=curve.block_size,
            policy=curve.policy,
            sampling_rate=curve.sampling_rate,
            half_life_tokens=curve.half_life_tokens,
            requests=curve.num_requests,
            tokens=curve.num_tokens,
            sampled_tokens=curve.num_sampled_tokens,
            rows=[
                CurveRow(
                    multiple=point.multiple,
                    num_blocks=point.num_blocks,
                    policy=point.policy,
                    hit_rate=point.hit_rate,
                )
                for point in curve.points()
            ],
        )


def curve_routes(engine: AsyncEngine) -> APIRouter:
    """For whoever runs the server: it is about all tenants together."""
    router = APIRouter()

    @router.get("/cache/curve", responses=refusals(ErrorResponse, 401, 403, 409))
    async def curve() -> CacheCurve:
        """What caches of other sizes would find lately, under this policy and under LRU."""
        if engine.curve is None:
            limit = "other sizes are not followed where tenants have quotas"
            raise RejectedError(409, "curve_not_followed", limit)
        return CacheCurve.of(engine.curve)

    return router
