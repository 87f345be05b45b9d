"""What an engine would have printed for an amount of memory, and whether it did."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.cache.longest import longest_that_fits
from pagoda.planning.groups import GroupedPool
from pagoda.planning.pool import build_pool
from pagoda.planning.releases import Release
from pagoda.sizing.capacity import GIB
from pagoda.validation.observed import Observation, Span
from pagoda.validation.settings import Setting
from pagoda.validation.verdict import Figures

_HOST_POOL_BYTES = 4 * GIB
_ESTIMATE = "estimated_max_model_len"


@dataclass(frozen=True, slots=True)
class Prediction:
    """Figures under the names of an observation's; `fits`: they are the printed ones."""

    figures: Figures
    fits: bool


def predict(seen: Observation, setting: Setting, available: Span, wanted: Figures) -> Prediction:
    """The `wanted` figures from memory that may be anything in `available`.

    One number of blocks in it has to give all of them at once.
    """
    pool = build_pool(setting.model, setting.options, setting.release)
    blocks = Span(pool.num_blocks_in(available.low), pool.num_blocks_in(available.high))
    return _predict(seen, setting, pool, blocks, available, wanted)


def predict_from_blocks(
    seen: Observation, setting: Setting, blocks: Span, wanted: Figures
) -> Prediction:
    """The same from a number of blocks."""
    pool = build_pool(setting.model, setting.options, setting.release)
    size = pool.block_bytes
    available = Span(blocks.low * size, (blocks.high + 1) * size - 1)
    return _predict(seen, setting, pool, blocks, available, wanted)


def predict_from_tokens(seen: Observation, setting: Setting, wanted: Figures) -> Prediction:
    """The same from the tokens that were printed: one figure by another."""
    pool = build_pool(setting.model, setting.options, setting.release)
    length = seen.max_model_len or pool.block_size
    tokens = seen.num_tokens or 0
    low, high = 0, max(1, tokens) * (pool.num_blocks(length) + len(pool.groups))
    while low < high:  # tokens never fall as blocks rise
        middle = (low + high) // 2
        if setting.release.print_tokens(pool, middle, length) >= tokens:
            high = middle
        else:
            low = middle + 1
    size = pool.block_bytes
    most = low + len(pool.groups)  # several counts of blocks may be printed as the same tokens
    blocks, available = Span(low, most), Span(low * size, (most + 1) * size - 1)
    return _predict(seen, setting, pool, blocks, available, wanted)


def _predict(
    seen: Observation,
    setting: Setting,
    pool: GroupedPool,
    blocks: Span,
    available: Span,
    wanted: Figures,
) -> Prediction:
    need = _Need(pool, by_layers=setting.counts_layers)
    counted = {name: figure for name, figure in wanted.items() if name != _ESTIMATE}
    estimate = wanted.get(_ESTIMATE)
    estimated = estimate is None or need.is_longest(estimate, available, seen.max_model_len)
    for count in range(blocks.low, blocks.high + 1):
        figures = _figures(seen, pool, setting.release, need, count)
        if {name: figures.get(name) for name in counted} == counted and estimated:
            return Prediction(dict(wanted), fits=True)
    middle = _figures(seen, pool, setting.release, need, (blocks.low + blocks.high) // 2)
    middle[_ESTIMATE] = need.longest((available.low + available.high) // 2, seen.max_model_len)
    return Prediction({name: middle[name] for name in wanted if name in middle}, fits=False)


def _figures(
    seen: Observation, pool: GroupedPool, release: Release, need: _Need, num_blocks: int
) -> Figures:
    figures: Figures = {
        "num_gpu_blocks": num_blocks,
        "num_cpu_blocks": pool.num_blocks_in(_HOST_POOL_BYTES),
    }
    length = seen.max_model_len
    if length is not None:
        figures["max_concurrency"] = f"{release.concurrency(pool, num_blocks, length):.2f}"
        figures["needed_gib"] = round(need.bytes_of(length) / GIB, 2)
    figures["kv_cache_tokens"] = release.print_tokens(pool, num_blocks, length or pool.block_size)
    return figures


@dataclass(frozen=True, slots=True)
class _Need:
    """Bytes that a request needs: of whole groups, or of the layers that are in them."""

    pool: GroupedPool
    by_layers: bool

    def bytes_of(self, num_tokens: int) -> int:
        pool = self.pool
        if not self.by_layers:
            return pool.num_blocks(num_tokens) * pool.block_bytes
        return sum(
            sum(group.page_bytes) * group.num_blocks(num_tokens, pool.under_way_tokens)
            for group in pool.groups
        )

    def longest(self, available_bytes: int, at_most: int | None) -> int:
        """Tokens of the longest request that so many bytes hold."""
        most = at_most or self.pool.longest
        return longest_that_fits(lambda length: self.bytes_of(length) <= available_bytes, most)

    def is_longest(self, num_tokens: int | float | str, available: Span, most: int | None) -> bool:
        """Whether some memory in `available` holds so long a request and none that is longer."""
        low, high = (self.longest(end, most) for end in (available.low, available.high))
        if not isinstance(num_tokens, int) or not low <= num_tokens <= high:
            return False
        return num_tokens == most or self.bytes_of(num_tokens + 1) > self.bytes_of(num_tokens)
