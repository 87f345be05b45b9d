"""How a latent and its shared key lie in memory once a codec has made codes of the latent.

The latent is cut into groups of so many numbers, the last of which may be smaller; each is a vector
of codes of eight bits with a float32 scale of its own. The shared key stays in bfloat16. A block
holds, of its tokens,

    codes [rank, block_size] | shared keys [rope_dim / 2, block_size, 2]
                             | scales [groups, block_size]

so that tokens lie side by side, as in keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from pagoda.errors import InvalidOptionError
from pagoda.kernels.vector_code import CHUNK, SCALE_BYTES, Numbers, VectorCode

_SCALE = "float32"
_SHARED_BYTES = 2
"""Of a number of the shared key."""


@dataclass(frozen=True, slots=True)
class LatentCode:
    """The stored form of a latent of `rank` numbers and a shared key of `rope_dim`."""

    numbers: Numbers
    """What a code stands for, before its scale: one that takes eight bits."""
    rank: int
    rope_dim: int
    group_size: int
    """Numbers that share a scale."""

    def __post_init__(self) -> None:
        if self.rank % CHUNK or self.rope_dim % 2:
            limit = f"codes take latents of a multiple of {CHUNK} numbers, and even shared keys"
            raise InvalidOptionError("kv_cache_dtype", f"{self.rank} + {self.rope_dim}", limit)

    @property
    def text(self) -> str:
        """All of it in a word, from which `of_text` makes it again: kernels are compiled for it."""
        return f"{self.numbers}-{self.rank}-{self.rope_dim}-{self.group_size}"

    @classmethod
    def of_text(cls, text: str) -> LatentCode:
        """What `text` says of another."""
        numbers, *sizes = text.split("-")
        return cls(cast(Numbers, numbers), *map(int, sizes))

    @property
    def width(self) -> int:
        """Numbers of both parts."""
        return self.rank + self.rope_dim

    @property
    def whole(self) -> VectorCode:
        """The stored form of a group."""
        return self._group(min(self.group_size, self.rank))

    @property
    def last(self) -> VectorCode:
        """The stored form of the last group."""
        return self._group(self.rank - (self.num_groups - 1) * self.group_size)

    def _group(self, size: int) -> VectorCode:
        return VectorCode(self.numbers, (8,) * (size // CHUNK), _SCALE)

    @property
    def num_groups(self) -> int:
        """Groups of a latent, the last one too."""
        return -(-self.rank // self.group_size)

    @property
    def shared_start(self) -> int:
        """Where the shared keys of a block begin, in bytes of a token."""
        return self.rank

    @property
    def scales_start(self) -> int:
        """Where the scales of a block begin, in bytes of a token."""
        return self.rank + self.rope_dim * _SHARED_BYTES

    @property
    def token_bytes(self) -> int:
        """Bytes of a token."""
        return self.scales_start + self.num_groups * SCALE_BYTES[_SCALE]
