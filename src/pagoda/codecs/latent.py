"""How latents are stored: in groups of neighbouring numbers, each with a scale; a row for each.

What is rotated beside a latent stays as it is, in bfloat16. Bytes follow from `pagoda.cache.latent`
by the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from pagoda.codecs.codec import VectorCodec
from pagoda.kernels.array import Array
from pagoda.kernels.latent_code import LatentCode
from pagoda.kernels.reference import bfloat16_bits, bfloat16_values


@dataclass(frozen=True, slots=True)
class LatentCodec:
    """A latent in codes of eight bits."""

    group: VectorCodec
    """Of the numbers that share a scale."""
    group_size: int = 128

    def code(self, rank: int, rope_size: int) -> LatentCode:
        """Where the bits of a latent and its shared key lie.

        Raises `InvalidOptionError` for a latent that cannot be cut into codes.
        """
        return LatentCode(self.group.numbers, rank, rope_size, self.group_size)

    def recall(self, vectors: Array, rank: int) -> Array:
        """What attention takes vectors for once they are stored and read: the plain truth.

        vectors, and what is returned: [..., rank + rope_size] float32, the latent first.
        """
        starts = range(self.group_size, rank, self.group_size)
        groups = np.split(vectors[..., :rank], starts, axis=-1)
        shared = bfloat16_values(bfloat16_bits(vectors[..., rank:]))
        return np.concatenate([*map(self.group.recall, groups), shared], axis=-1)


LATENT_CODECS = MappingProxyType(
    {
        "fp8_per_group": LatentCodec(VectorCodec("e4m3", 8, "float32")),
        "int8_per_group": LatentCodec(VectorCodec("int8", 8, "float32")),
    }
)
"""By the name of a latent's format."""
