"""Keys less something that all of them have in common, which softmax does not see.

    softmax over tokens t of  q · k_t  =  softmax of  q · (k_t - c)

for any c that is the same for all tokens, since q · c moves all scores of a query alike. Numbers of
a key that turn slowly with its position have means that are large beside what varies, and the
steps of float8 grow with what is stored. So keys are stored less a part of their mean: the same
bytes, and nothing to do where they are read. It holds where nothing but those scores enters the
softmax, and as they are (`models.decoder.AttentionSpec.ignores_shifts`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagoda.codecs.array_file import digest_of
from pagoda.codecs.codec import Basis, Fit, VectorCodec
from pagoda.kernels.array import Array
from pagoda.kernels.vector_code import VectorCode


@dataclass(frozen=True, eq=False, slots=True)
class CentredCodec:
    """Keys, less a constant, in a form that nothing has to be known for; see `SideCodec`."""

    form: VectorCodec
    mean: Array
    """[num_kv_heads, head_size] float32"""

    @property
    def fit(self) -> Fit:
        """See `SideCodec`."""
        return self.form.fit

    @property
    def tables(self) -> tuple[Array, Array] | None:
        """See `SideCodec`."""
        return self.form.tables

    @property
    def weights(self) -> Array | None:
        """None."""
        return self.form.weights

    @property
    def digest(self) -> str:
        """See `SideCodec`."""
        return digest_of({"mean": self.mean})

    def code(self, head_size: int) -> VectorCode:
        """See `SideCodec`."""
        return self.form.code(head_size)

    def basis(self, head_size: int) -> Basis | None:
        """See `SideCodec`."""
        return self.form.basis(head_size)

    def recall(self, vectors: Array) -> Array:
        """See `SideCodec`; the mean is there again, as if attention gave it back."""
        mean = self.mean.reshape(len(self.mean), *[1] * (vectors.ndim - 2), -1)
        return (self.form.recall(vectors - mean) + mean).astype(np.float32)
