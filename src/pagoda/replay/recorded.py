"""The server that a trace was recorded from, as far as a replay needs to know it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pagoda.cache.quota import Quota


@dataclass(frozen=True, slots=True)
class RecordedQuota:
    """What a tenant may have of the recorded pool, in blocks, and its part of steps and seats."""

    tenant: str
    """A digest, in a trace."""
    floor: int = 0
    cap: int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Raises TypeError or `InvalidOptionError` for what no server has recorded."""
        Quota(self.floor, self.cap)
        if not isinstance(self.tenant, str) or not isinstance(self.weight, (int, float)):
            raise TypeError("a tenant is a text, its weight a number")

    def in_pool(self, num_blocks: int, before: int, floor: int, least: int) -> Quota:
        """With `floor`, and a cap that is the same share of `num_blocks` as it was of `before`
        blocks, or `least` if that is more."""
        if self.cap is None:
            return Quota(floor)
        return Quota(floor, max(floor, least, self.cap * num_blocks // before))


@dataclass(frozen=True, slots=True)
class RecordedSetting:
    """Cache and scheduler of the recorded server; the names are those of its options."""

    num_blocks: int
    block_size: int
    eviction_policy: str
    enable_prefix_caching: bool
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    scheduling_policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    steps_ahead: int = 0
    """Steps that were outstanding while another was decided: 1 on a GPU, 0 on a CPU."""
    tenant_quotas: tuple[RecordedQuota, ...] = ()
    streams_step_aside: bool = False
    """For a tenant that has been served less: True on a CPU."""
    has_tiers: bool = False
    """Blocks came from tiers too, which no replay knows of: its steps are others."""

    def named(self, name: Callable[[str], str]) -> RecordedSetting:
        """With what tenants are called in the trace."""
        quotas = [replace(quota, tenant=name(quota.tenant)) for quota in self.tenant_quotas]
        return replace(self, tenant_quotas=tuple(quotas))
