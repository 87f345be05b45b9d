"""What changed between vLLM's releases: how a pool is cut and printed, and what is not for it.

| from | change |
|---|---|
| 0.7 | latents (MLA) are cached, each padded to a multiple of 256 bytes: 640 numbers for 576 |
| 0.9 | latents are not padded |
| 0.9.2 | layers are put into groups; printed tokens = blocks // groups × smallest block |
| 0.17 | the sampler's trial run holds fewer copies of the logits |
| 0.20 | the next step is scheduled ahead: two batches are under way, and windows keep more |
| 0.20 | YaRN's length is the config's, no longer original × factor |
| 0.20 | states are kept for prefix sharing: two a request |
| 0.20.1 | printed tokens = int(concurrency × max_model_len) |
| 0.21 | the memory of CUDA graphs is estimated and set aside; the default utilization is 0.92 |
| 0.29 | tokens and concurrency are printed on one line |

Before 0.9.2 printed tokens = blocks × block size, and windows freed nothing. Before 0.7 DeepSeek's
latents were expanded: each head cached keys and values of 256 numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from pagoda.errors import InvalidOptionError
from pagoda.planning.groups import GroupedPool

_VERSION = re.compile(r"[~v]*\s*(\d+)\.(\d+)(?:\.(\d+))?")
_FIRST_ENGINE = re.compile(r"\bV0\b(?!\.)", re.IGNORECASE)
_EARLY = re.compile(r"\.?(rc|dev|a|b)\d")
_LAST_PATCH = 99
NEWEST = (0, 32, 0)


@dataclass(frozen=True, slots=True)
class Release:
    """The rules that hold for one release."""

    name: str
    print_tokens: Callable[[GroupedPool, int, int], int]
    """From the pool, its blocks and max_model_len to the tokens that are printed."""
    forms_groups: bool
    utilization: float
    logits_copies: tuple[float, float]
    """Copies of max_num_seqs × vocabulary float32 logits in the trial run, at least and at most."""
    estimates_graphs: bool
    reserved_blocks: int = 1
    tells_one_line: bool = True
    """Tokens and concurrency stand on one line."""
    runs_ahead: bool = True
    """The next step is scheduled before the last one is settled: two batches are under way."""
    extends_yarn: bool = False
    """max_model_len is original × factor with YaRN, whatever the config gives."""
    shares_states: bool = True
    """Prefixes of models with states are shared where nothing else is said."""
    latent_form: str = "whole"
    """How MLA is cached: the latent `whole`, `padded`, or `expanded` to keys and values."""
    counts_blocks: bool = True
    """Concurrency is blocks over the blocks of a request, not tokens over its length."""

    def concurrency(self, pool: GroupedPool, num_blocks: int, max_model_len: int) -> float:
        """Requests of that length at once, as it is printed."""
        if self.counts_blocks:
            return num_blocks / pool.num_blocks(max_model_len)
        return self.print_tokens(pool, num_blocks, max_model_len) / max_model_len


def tokens_of_blocks(pool: GroupedPool, num_blocks: int, max_model_len: int) -> int:
    """blocks × block size"""
    return num_blocks * pool.block_size * pool.context_parallel_size


def tokens_of_groups(pool: GroupedPool, num_blocks: int, max_model_len: int) -> int:
    """blocks // groups × smallest block size: of mixed models a half to a quarter of what fits"""
    share = num_blocks // max(1, len(pool.groups))
    return share * pool.block_size * pool.context_parallel_size


def tokens_of_requests(pool: GroupedPool, num_blocks: int, max_model_len: int) -> int:
    """int(concurrency × max_model_len), the concurrency as a floating-point number"""
    return int(num_blocks / pool.num_blocks(max_model_len) * max_model_len)


_SINCE_0_29 = Release(
    name="≥ 0.29",
    print_tokens=tokens_of_requests,
    forms_groups=True,
    utilization=0.92,
    logits_copies=(1.0, 4.0),
    estimates_graphs=True,
)
_SINCE_0_21 = replace(_SINCE_0_29, name="0.21 to 0.28", tells_one_line=False)
_SINCE_0_20_1 = replace(_SINCE_0_21, name="0.20.1", utilization=0.9, estimates_graphs=False)
_SINCE_0_20 = replace(_SINCE_0_20_1, name="0.20.0", print_tokens=tokens_of_groups)
_SINCE_0_17 = replace(
    _SINCE_0_20,
    name="0.17 to 0.19",
    runs_ahead=False,
    extends_yarn=True,
    shares_states=False,
)
_SINCE_0_9_2 = replace(_SINCE_0_17, name="0.9.2 to 0.16", logits_copies=(1.0, 9.0))
_FIRST = replace(
    _SINCE_0_9_2,
    name="before 0.9.2",
    print_tokens=tokens_of_blocks,
    forms_groups=False,
    reserved_blocks=0,
    counts_blocks=False,
)
_SINCE_0_7 = replace(_FIRST, name="0.7 and 0.8", latent_form="padded")
_BEFORE_0_7 = replace(_FIRST, name="before 0.7", latent_form="expanded")
_RELEASES: tuple[tuple[tuple[int, int, int], Release], ...] = (
    ((0, 29, 0), _SINCE_0_29),
    ((0, 21, 0), _SINCE_0_21),
    ((0, 20, 1), _SINCE_0_20_1),
    ((0, 20, 0), _SINCE_0_20),
    ((0, 17, 0), _SINCE_0_17),
    ((0, 9, 2), _SINCE_0_9_2),
    ((0, 9, 0), _FIRST),
    ((0, 7, 0), _SINCE_0_7),
    ((0, 0, 0), _BEFORE_0_7),
)

FORMATS_SEEN = (
    ("fp8_ds_mla", (0, 11)),
    ("turboquant_", (0, 20)),
    ("int8_per_token_head", (0, 20)),
    ("fp8_per_token_head", (0, 20)),
    ("int4_per_token_head", (0, 27)),
    ("nvfp4", (0, 32)),
)
"""Formats of the cache by how their names begin, and the first line in which each was seen to work
or was read; plain numbers and fp8 are older than any line that is planned for."""

DISTINCT = tuple(release for _, release in _RELEASES)
"""One of each set of rules, newest first."""


def read_version(text: str) -> tuple[int, int, int] | None:
    """The version in a text such as `0.17.2rc1.dev133` or `V0 engine`; None where there is none."""
    if _FIRST_ENGINE.search(text):
        return (0, 0, 0)
    found = _VERSION.search(text)
    if found is None:
        return None
    # `0.9.x` is taken for the last of its line, as people run it.
    return int(found[1]), int(found[2]), int(found[3] or _LAST_PATCH)


def releases_told(text: str | None) -> tuple[Release, ...]:
    """Every set of rules that a stated version may mean, the likeliest first; None: any.

    A line (0.20.x) may be its first or its last patch, and a build before a release (0.20.1rc1)
    may still have the rules before it. The V0 engine ran until 0.10, its latents as they then were.
    """
    if text is None:
        return DISTINCT
    if _FIRST_ENGINE.search(text):
        return (_FIRST, _SINCE_0_7, _BEFORE_0_7)
    found = _VERSION.search(text)
    if found is None:
        return DISTINCT
    major, minor, patch = int(found[1]), int(found[2]), found[3]
    meant = [(major, minor, int(patch or _LAST_PATCH))]
    if patch is None:
        meant.append((major, minor, 0))
    elif _EARLY.search(text, found.end()):
        meant.append(
            (major, minor, int(patch) - 1) if int(patch) else (major, minor - 1, _LAST_PATCH)
        )
    rules = [release_of(version) for version in meant]
    if _SINCE_0_7 in rules:
        rules.append(_FIRST)  # the V1 engine did not pad
    return tuple(dict.fromkeys(rules))


def release_of(version: tuple[int, int, int]) -> Release:
    """The rules of a version."""
    return next(release for first, release in _RELEASES if version >= first)


def first_seen(kv_cache_dtype: str) -> tuple[int, int]:
    """The first line in which a format of the cache was seen."""
    lines = (line for name, line in FORMATS_SEEN if kv_cache_dtype.startswith(name))
    return next(lines, (0, 0))


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of something that cannot be known before it runs, with where the bounds are from."""

    low: int
    high: int
    source: str

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise InvalidOptionError("range", (self.low, self.high), "low must not be above high")
