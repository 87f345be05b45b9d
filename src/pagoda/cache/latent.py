"""Layers that keep one compressed vector a token: multi-head latent attention (DeepSeek-V2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

from pagoda.cache.formats import (
    FLOAT_DTYPES,
    INT8_LATENTS,
    LATENT_BYTES,
    LATENT_FORMATS,
    LATENT_GROUP,
    PLAIN_BITS,
)
from pagoda.cache.slots import num_blocks_for
from pagoda.cache.window import FULL_ATTENTION, AttentionWindow
from pagoda.errors import InvalidOptionError

PACKED_FP8 = "fp8_ds_mla"
_LATENT_WIDTH = 512 + 64
_INDEX_SCALE_BYTES = 4
_GROUP_SCALE_BYTES = 4
_SHARED_BYTES = 2
"""Of a number of the shared key, beside a latent in groups."""
_CHUNK = 16
_NAMED = MappingProxyType({"fp8_e4m3": "fp8_per_group", PACKED_FP8: "fp8_per_group"})
_LIMIT = (
    "latents are stored as auto, a dtype of the device, fp8 (fp8_ds_mla is the same) or "
    f"{INT8_LATENTS}"
)


def latent_format(name: str) -> str:
    """What Pagoda's own cache stores a latent in under a canonical name of `--kv-cache-dtype`.

    Raises `InvalidOptionError` for what it does not store latents in.
    """
    found = _NAMED.get(name, name)
    if found not in (*FLOAT_DTYPES, *LATENT_FORMATS):
        raise InvalidOptionError("kv_cache_dtype", name, _LIMIT)
    return found


@dataclass(frozen=True, slots=True)
class LatentLayerSpec:
    """Multi-head latent attention: one vector of `rank` + `rope_size` numbers a token.

    It serves all heads and as K and V at once, so ranks cannot split it: each keeps all of it. With
    a sparse indexer (DeepSeek-V3.2) a key of `index_size` fp8 numbers and a float32 scale is added.
    In a format in groups it takes

        rank + ⌈rank / 128⌉ × 4 + rope_size × 2 bytes:  512 + 16 + 128 = 656 of 512 + 64 numbers
    """

    kind: ClassVar[str] = "latent attention"

    rank: int
    rope_size: int
    dtype: str
    index_size: int = 0
    index_top: int | None = None
    """Tokens that the indexer picks to attend to; None: all."""
    alignment: int = 1
    """A token's latent is padded to a multiple of so many bytes."""

    def __post_init__(self) -> None:
        width = self.rank + self.rope_size
        known = (*PLAIN_BITS, *LATENT_BYTES, *LATENT_FORMATS)
        if self.dtype not in known:
            raise InvalidOptionError(
                "kv_cache_dtype", self.dtype, f"latent attention is stored as {', '.join(known)}"
            )
        if self.dtype in LATENT_BYTES and width != _LATENT_WIDTH:
            raise InvalidOptionError(
                "kv_cache_dtype", self.dtype, f"is for a latent of 512 + 64 numbers, not of {width}"
            )
        if self.dtype in LATENT_FORMATS and self.rank % _CHUNK:
            limit = f"takes latents of a multiple of {_CHUNK} numbers, and these have {self.rank}"
            raise InvalidOptionError("kv_cache_dtype", self.dtype, limit)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return self._latent_bytes + self._index_bytes

    @property
    def _latent_bytes(self) -> int:
        packed = LATENT_BYTES.get(self.dtype)
        if packed is not None:
            return packed
        if self.dtype in LATENT_FORMATS:
            num_groups = -(-self.rank // LATENT_GROUP)
            scales, shared = num_groups * _GROUP_SCALE_BYTES, self.rope_size * _SHARED_BYTES
            return self.rank + scales + shared
        plain = -(-(self.rank + self.rope_size) * PLAIN_BITS[self.dtype] // 8)
        return -(-plain // self.alignment) * self.alignment

    @property
    def _index_bytes(self) -> int:
        return self.index_size + _INDEX_SCALE_BYTES if self.index_size else 0

    @property
    def vectors(self) -> None:
        return None

    @property
    def latents(self) -> LatentLayerSpec:
        return self

    @property
    def window(self) -> AttentionWindow:
        """What a row sees: every token before it."""
        return FULL_ATTENTION

    @property
    def shares_blocks_with(self) -> tuple[object, ...]:
        return ("full",)

    def block_bytes(self, block_size: int) -> int:
        return block_size * self.token_bytes

    def num_blocks(self, num_tokens: int, block_size: int, under_way_tokens: int) -> int:
        return num_blocks_for(num_tokens, block_size)

    def read_bytes(self, num_tokens: int) -> int:
        attended = num_tokens if self.index_top is None else min(num_tokens, self.index_top)
        return attended * self._latent_bytes + num_tokens * self._index_bytes

    def stored_as(self, dtype: str) -> LatentLayerSpec:
        return replace(self, dtype=dtype)

    def sharded(self, tensor_parallel_size: int) -> LatentLayerSpec:
        return self

    def keeping_all(self) -> LatentLayerSpec:
        return self

    def computed_in(self, dtype: str, state_dtype: str | None = None) -> LatentLayerSpec:
        return self.stored_as(dtype)

    def for_requests(self, num_states: int, encoder_tokens: int | None) -> LatentLayerSpec:
        return self
