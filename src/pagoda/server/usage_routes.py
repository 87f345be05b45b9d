"""`/usage`: what each tenant has had, told to itself and to operators."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from pydantic import BaseModel

from pagoda.cache.accounts import NOTHING
from pagoda.engine.usage import TOTALS
from pagoda.server.door import holder_of
from pagoda.server.keys import KeyRing
from pagoda.server.usage_ledger import Totals, UsageLedger

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine


class TenantUsage(BaseModel):
    """Of one tenant: tokens and block-seconds since counting began, blocks as of now."""

    tenant: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    held_block_seconds: float
    cached_block_seconds: float
    held_blocks: int
    cached_blocks: int
    quota: str | None
    """As it was given."""


class UsageReport(BaseModel):
    """Of all tenants that the key may see, by name."""

    since: float
    """When counting began, in seconds since 1970."""
    num_blocks: int
    """Blocks of the pool."""
    block_size: int
    """Tokens in a block."""
    block_bytes: int | None
    """Bytes of a block, which make byte-seconds of block-seconds; null: nobody tells."""
    tenants: list[TenantUsage]


def usage_routes(engine: AsyncEngine, ledger: UsageLedger, keys: KeyRing) -> APIRouter:
    router = APIRouter()
    told: dict[str, tuple[int, UsageReport]] = {}
    """What a tenant was told last, and in which second."""

    @router.get("/usage")
    async def usage(request: Request) -> UsageReport:
        """What the key's tenant has had; an operator's key, or a server without keys: all.

        A tenant is told the same for a second, and whole block-seconds: when a block was taken for
        somebody else is not its own business.
        """
        holder = holder_of(request.scope)
        if holder.is_operator:
            return report(ledger.totals())
        second, last = told.get(holder.tenant, (None, None))
        if last is None or second != int(monotonic()):
            own = ledger.totals().get(holder.tenant, dict.fromkeys(TOTALS, 0))
            last = report({holder.tenant: {name: int(number) for name, number in own.items()}})
            told[holder.tenant] = int(monotonic()), last
        return last

    def report(totals: Totals) -> UsageReport:
        now, cache = engine.usage(), engine.stats().cache
        tenants = []
        for tenant in sorted(totals):
            blocks = now[tenant].blocks if tenant in now else NOTHING
            tenants.append(
                TenantUsage(
                    tenant=tenant,
                    **totals[tenant],  # type: ignore[arg-type]
                    held_blocks=blocks.num_held,
                    cached_blocks=blocks.num_cached,
                    quota=keys.quotas.get(tenant),
                )
            )
        return UsageReport(
            since=ledger.since,
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            block_bytes=None if engine.stored is None else engine.stored.block_bytes,
            tenants=tenants,
        )

    return router
