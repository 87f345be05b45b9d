"""How an engine's keys and values are stored and what that takes, for its log and its operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pagoda.cache.spec import CacheSpec, WindowedLayer
from pagoda.cache.window import AttentionWindow
from pagoda.errors import InvalidOptionError
from pagoda.sizing.cache_formats import AUTO
from pagoda.sizing.capacity import Capacity
from pagoda.sizing.measured_cost import NARROWER

LABELS = (
    *("cache_dtype", "kv_cache_dtype_skip_layers", "bytes_per_token"),
    *("narrower_cache_dtype", "narrower_bytes_per_token", "kv_retention", "dtype"),
    *("max_model_len", "kv_cache_size_tokens"),
)
"""Of the metric `cache_config_info`: vLLM's names where it has them, then our own."""
_LEAST_SAVED = 0.1
"""Of a token's bytes: a narrower format that saves less is not worth a change of answers."""


@dataclass(frozen=True, slots=True)
class StoredCache:
    """The cache of an engine, beside what else it could be."""

    cache_dtype: str
    """What was asked for, by the name of `--kv-cache-dtype`."""
    dtype: str
    """That of weights and activations."""
    layers_left_out: tuple[int, ...]
    """Numbers of the layers that keep `dtype` though another format was asked for."""
    num_tokens: int
    """What it holds, in requests of the longest length, as the log says."""
    bytes_per_token: float
    """Of all layers."""
    plain_num_tokens: int
    """What the same memory would hold in `dtype`."""
    plain_bytes_per_token: float
    narrower_cache_dtype: str | None
    """One of `NARROWER`, in the layers that are not left out; None where it saves too little, or
    the device cannot store it."""
    narrower_bytes_per_token: float | None
    """In that format."""
    kv_retention: str
    """What stays of a sequence at most, as `--kv-retention` names it."""
    block_bytes: int
    """Of a block of the pool."""
    max_model_len: int
    """Tokens of the longest request, for which the pool has room at least once."""
    centred_layers: tuple[int, ...] = ()
    """Numbers of the layers whose keys are stored less a part of their mean."""

    @property
    def is_plain(self) -> bool:
        """It takes what numbers of `dtype` do."""
        return self.bytes_per_token == self.plain_bytes_per_token

    def __str__(self) -> str:
        """The line of the log."""
        is_mixed = bool(self.layers_left_out)
        is_plain = self.cache_dtype == AUTO or (self.is_plain and not is_mixed)
        name, left_out = self.dtype if is_plain else self.cache_dtype, ""
        if is_mixed:
            left_out = f", {self.dtype} in layers {', '.join(map(str, self.layers_left_out))}"
        line = f"{name}{left_out}: {_whole(self.bytes_per_token):,} bytes a token"
        if self.is_plain:
            return f"{line}, as many as {self.dtype} takes" if is_mixed else line
        held = f"{self.num_tokens:,} tokens where {self.dtype} would hold"
        return f"{line}, {held} {self.plain_num_tokens:,}"

    def as_json(self) -> dict[str, Any]:
        """Plain values, the line among them."""
        return {"summary": str(self), **asdict(self)}

    def label_values(self) -> tuple[str, ...]:
        """Those of `LABELS`; empty: there is none."""
        narrower = self.narrower_bytes_per_token
        return (
            self.cache_dtype,
            ",".join(map(str, self.layers_left_out)),
            str(_whole(self.bytes_per_token)),
            self.narrower_cache_dtype or "",
            "" if narrower is None else str(_whole(narrower)),
            self.kv_retention,
            self.dtype,
            str(self.max_model_len),
            str(self.num_tokens),
        )


def stored_cache(
    cache_dtype: str,
    dtype: str,
    layers: Sequence[str],
    capacity: Capacity[CacheSpec],
    spec_of: Callable[[Sequence[str]], CacheSpec],
    formats: Sequence[str],
    retention: AttentionWindow,
) -> StoredCache:
    """How the cache of `capacity` is stored.

    cache_dtype: what was asked for. dtype: of weights and activations. layers: the format of each.
    spec_of: the model's cache by the formats of its layers; raises `InvalidOptionError` for what
    it cannot be. formats: those that the device stores. retention: what stays of a sequence.
    """
    left_out = [number for number, name in enumerate(layers) if name == dtype]
    # Only what it would take: blocks may be of a size that plain numbers cannot be held in.
    plain = replace(capacity.spec, layers=_stored_as(capacity.spec, dtype))
    bytes_per_token = capacity.spec.bytes_per_token
    narrower = _narrower(spec_of, layers, dtype, bytes_per_token, formats)
    memory = capacity.available_bytes
    as_plain = Capacity(plain, plain.num_blocks_in(memory), capacity.max_model_len, memory)
    return StoredCache(
        cache_dtype=cache_dtype,
        dtype=dtype,
        layers_left_out=tuple(left_out) if len(left_out) < len(layers) else (),
        num_tokens=capacity.num_tokens,
        bytes_per_token=bytes_per_token,
        plain_num_tokens=as_plain.num_tokens,
        plain_bytes_per_token=plain.bytes_per_token,
        narrower_cache_dtype=None if narrower is None else narrower[0],
        narrower_bytes_per_token=None if narrower is None else narrower[1],
        kv_retention=str(retention),
        block_bytes=capacity.spec.block_bytes,
        max_model_len=capacity.max_model_len,
    )


def _narrower(
    spec_of: Callable[[Sequence[str]], CacheSpec],
    layers: Sequence[str],
    dtype: str,
    bytes_per_token: float,
    formats: Sequence[str],
) -> tuple[str, float] | None:
    """A format and its bytes of a token; None where it would not save `_LEAST_SAVED`.

    layers: the format of each. Those that are left out of another format than `dtype` stay so. The
    others as of `stored_cache`.
    """
    is_plain = set(layers) <= {dtype}
    for name in NARROWER:
        if name not in formats:
            continue
        try:
            stored = [dtype if each == dtype and not is_plain else name for each in layers]
            found = spec_of(stored).bytes_per_token
        except InvalidOptionError:
            continue
        return (name, found) if found <= (1 - _LEAST_SAVED) * bytes_per_token else None
    return None


def _stored_as(spec: CacheSpec, dtype: str) -> tuple[WindowedLayer, ...]:
    return tuple(layer.stored_as(dtype) for layer in spec.layers)


def _whole(number: float) -> float | int:
    return int(number) if number == int(number) else number
