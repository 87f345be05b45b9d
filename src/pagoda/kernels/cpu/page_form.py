"""What the kernels of a cache are compiled for."""

from __future__ import annotations

from typing import NamedTuple

from pagoda.kernels.latent_code import LatentCode
from pagoda.kernels.vector_code import VectorCode


class PageForm(NamedTuple):
    """The numbers of a cache, and the shape they come in."""

    paired: bool
    """Queries and weights are bfloat16, which come in pairs; else float32. So are K and V, or their
    levels; but see `wide`."""
    head_dim: int
    block_size: int
    key: VectorCode | None = None
    """None: plain numbers."""
    value: VectorCode | None = None
    value_dim: int | None = None
    """Values are the first so many numbers of keys; None: they lie apart."""
    latent: LatentCode | None = None
    """Of those keys the first numbers, the values, are codes; None: they are plain."""
    wide: int | None = None
    """Numbers at the front of queries that have sixteen bits, where queries and keys meet as whole
    numbers (`whole_form`); None: as `paired` says."""

    @property
    def item_size(self) -> int:
        """Bytes of a number that products take."""
        return 2 if self.paired else 4
