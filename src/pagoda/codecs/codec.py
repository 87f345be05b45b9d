"""What a codec is: how keys, and how values, of a head become codes.

A vector is turned into a basis, its numbers become the nearest levels, and a scale goes beside
them. Attention multiplies levels, and scales meet scores and weights, so nothing is ever turned
back: queries are turned as keys are, and what attention gives is turned back as values were.

Nor is given back what all keys of a head have in common:

    softmax over tokens t of  q · k_t  =  softmax of  q · (k_t - c)

for any c that is the same for all tokens, since q · c moves all scores of a query alike. Numbers of
a key that turn slowly with its position have means that are large beside what varies, and the
steps of float8 grow with what is stored. So keys may be stored less a part of their mean: the same
bytes, and nothing to do where they are read. It holds where nothing but those scores enters the
softmax, and as they are (`models.decoder.AttentionSpec.ignores_shifts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from pagoda.codecs.array_file import digest_of
from pagoda.codecs.levels import LevelTable, gaussian_levels, kernel_tables, uniform_levels
from pagoda.codecs.nearest import nearest_places
from pagoda.codecs.rotation import rotation
from pagoda.kernels.array import Array
from pagoda.kernels.vector_code import CHUNK, FLOAT8_FORMS, Numbers, VectorCode, require_multiple

Fit = Literal["", "least", "norm", "unbiased", "weighted"]
"""What the scale of the nearest levels makes right: the squared error, the length, the product with
the vector itself, or the sum of squared errors that each have a weight. Empty: the scale follows
from the largest number."""


class Basis(NamedTuple):
    """The basis that vectors are stored in: float32 [head_size, head_size], or one for each head.

    Row vectors are multiplied with it from the left.
    """

    vectors: Array
    """For what is stored."""
    queries: Array
    """For what meets it: x · q is what both products' product is. Its transpose turns back."""
    front: int = 0
    """Numbers, the first of a vector, that queries ask for much more than for others: whole
    chunks."""


class SideCodec(Protocol):
    """How keys, or values, of a layer are stored."""

    @property
    def fit(self) -> Fit:
        """How scales are chosen."""
        ...

    @property
    def tables(self) -> tuple[Array, Array] | None:
        """Levels, int8, and bounds, float32, as kernels take them; None: codes say what they are.

        Each [TABLE_SIZE], those of codes of b bits from 2 ** b on; the first bound is what a root
        mean square of 1 is brought to.
        """
        ...

    @property
    def weights(self) -> Array | None:
        """[num_kv_heads, head_size] float32: of the errors, where the fit is weighted."""
        ...

    @property
    def digest(self) -> str:
        """Of what was found for a model; "": nothing was."""
        ...

    def code(self, head_size: int) -> VectorCode:
        """Where the bits of a vector lie. Raises `InvalidOptionError` for a width of odd chunks."""
        ...

    def basis(self, head_size: int) -> Basis | None:
        """Their basis; None: vectors stay as they are."""
        ...

    def recall(self, vectors: Array) -> Array:
        """What attention takes vectors for, once they are stored and read, in their own basis.

        vectors, and what is returned: [num_kv_heads, ..., head_size] float32.
        """
        ...


@dataclass(frozen=True, slots=True)
class VectorCodec:
    """Keys, or values, in codes of one width that nothing has to be known for; see `SideCodec`."""

    numbers: Numbers
    bits: int
    """Of a number."""
    scale: str | None = None
    """float32 or float16, one for each token and head; None: none."""
    has_offset: bool = False
    """Levels are even steps from the smallest number to the largest."""
    fit: Fit = ""
    turns: Literal["", "hadamard", "signs"] = ""
    """The basis: as it is, Hadamard's, or Hadamard's after random signs."""

    def code(self, head_size: int) -> VectorCode:
        """Where the bits of a vector lie. Raises `InvalidOptionError` for a width of odd chunks."""
        require_multiple(head_size)
        widths = (self.bits,) * (head_size // CHUNK)
        return VectorCode(self.numbers, widths, self.scale, self.has_offset)

    @property
    def levels(self) -> LevelTable | None:
        """What codes stand for; None where they say it themselves."""
        if self.numbers != "levels":
            return None
        return uniform_levels(self.bits) if self.has_offset else gaussian_levels(self.bits)

    @property
    def tables(self) -> tuple[Array, Array] | None:
        """See `SideCodec`."""
        levels = self.levels
        return None if levels is None else kernel_tables({self.bits: levels}, float(levels.unit))

    @property
    def weights(self) -> Array | None:
        """None."""
        return None

    @property
    def digest(self) -> str:
        """Empty."""
        return ""

    def basis(self, head_size: int) -> Basis | None:
        """See `SideCodec`: a rotation turns queries as it turns keys."""
        matrix = self.matrix(head_size)
        return None if matrix is None else Basis(matrix, matrix)

    def matrix(self, head_size: int) -> Array | None:
        """[head_size, head_size] float32, which vectors are multiplied with from the left.

        Its transpose turns back. None: they stay as they are.
        """
        if not self.turns:
            return None
        return rotation(head_size, with_signs=self.turns == "signs")

    def encode(self, vectors: Array) -> tuple[Array, Array, Array]:
        """The plain truth: codes [..., head_size] uint8, scales and offsets [...] float32.

        vectors: [..., head_size] float32.
        """
        matrix = self.matrix(vectors.shape[-1])
        turned = vectors if matrix is None else (vectors @ matrix).astype(np.float32)
        if self.numbers == "levels":
            return self._encode_levels(turned)
        most = np.abs(turned).max(-1)
        ones, zeros = np.ones_like(most), np.zeros_like(most)
        limit = 127.0 if self.numbers == "int8" else FLOAT8_FORMS[self.numbers].largest
        scales = ones if self.scale is None else most / np.float32(limit)
        values = turned * _inverse(scales)[..., None]
        if self.numbers == "int8":
            return np.rint(values).clip(-127, 127).astype(np.int8).view(np.uint8), scales, zeros
        return _nearest(values, _float8_values(self.numbers)), scales, zeros

    def decode(self, codes: Array, scales: Array, offsets: Array) -> Array:
        """What attention takes vectors for, before they are turned back: float32."""
        if self.numbers == "int8":
            levels = codes.view(np.int8).astype(np.float32)
        elif self.levels is not None:
            levels = self.levels.values[codes].astype(np.float32)
        else:
            levels = _float8_values(self.numbers)[codes]
        return levels * scales[..., None] + offsets[..., None]

    def recall(self, vectors: Array) -> Array:
        """What attention takes vectors for, [..., head_size] float32: stored, read, turned back."""
        matrix = self.matrix(vectors.shape[-1])
        found = self.decode(*self.encode(vectors))
        return found if matrix is None else (found @ matrix.T).astype(np.float32)

    def _encode_levels(self, turned: Array) -> tuple[Array, Array, Array]:
        table = self.levels
        assert table is not None
        zeros = np.zeros(turned.shape[:-1], np.float32)
        if self.has_offset:
            offsets = self._stored(turned.min(-1))
            scales = self._stored((turned.max(-1) - offsets) / np.float32(2**self.bits - 1))
            values = (turned - offsets[..., None]) * _inverse(scales)[..., None]
            return nearest_places(values, table.bounds), scales, offsets
        squares = np.square(turned).sum(-1)
        factor = table.unit * _inverse(np.sqrt(squares / np.float32(turned.shape[-1])))
        codes = nearest_places(turned * factor[..., None], table.bounds)
        levels = table.values[codes].astype(np.float32)
        along, across = (turned * levels).sum(-1), np.square(levels).sum(-1)
        fitted = {
            "least": along * _inverse(across),
            "norm": np.sqrt(squares * _inverse(across)),
            "unbiased": squares * _inverse(along),
        }
        return codes, self._stored(fitted[self.fit]), zeros

    def _stored(self, values: Array) -> Array:
        return values.astype(self.scale or "float32").astype(np.float32)


@dataclass(frozen=True, slots=True)
class Codec:
    """How K and V are stored."""

    key: SideCodec
    value: SideCodec
    key_mean: Array | None = None
    """[num_kv_heads, head_size] float32: what is taken out of keys first; None: nothing."""

    @property
    def digests(self) -> tuple[str, ...]:
        """Of what was found for a model; none where nothing was."""
        mean = "" if self.key_mean is None else digest_of({"mean": self.key_mean})
        return tuple(filter(None, (self.key.digest, mean, self.value.digest)))

    def __eq__(self, other: object) -> bool:
        """Means are compared as all that was found for a model: by digest."""
        if not isinstance(other, Codec):
            return NotImplemented
        own, its = ((each.key, each.value, each.digests) for each in (self, other))
        return own == its

    def __hash__(self) -> int:
        """As they are compared."""
        return hash((self.key, self.value, self.digests))

    def recall_keys(self, keys: Array) -> Array:
        """What attention takes keys for once they are stored and read; see `SideCodec.recall`.

        The mean is there again, as if attention gave it back.
        """
        if self.key_mean is None:
            return self.key.recall(keys)
        mean = self.key_mean.reshape(len(self.key_mean), *[1] * (keys.ndim - 2), -1)
        return (self.key.recall(keys - mean) + mean).astype(np.float32)


def _inverse(values: Array) -> Array:
    tiny = values < 1e-30
    return np.where(tiny, np.float32(0), np.float32(1) / np.where(tiny, np.float32(1), values))


def _float8_values(numbers: Numbers) -> Array:
    """What all 256 codes stand for; those that are no finite number stand for 0."""
    form = FLOAT8_FORMS[numbers]
    codes = np.arange(256)
    fraction = codes % 2**form.fraction_bits
    exponent = (codes & 0x7F) >> form.fraction_bits
    normal = (1 + fraction / 2**form.fraction_bits) * 2.0 ** (exponent - form.bias)
    small = fraction / 2**form.fraction_bits * 2.0 ** (1 - form.bias)
    values = np.where(codes < 128, 1.0, -1.0) * np.where(exponent > 0, normal, small)
    return np.where(np.abs(values) <= form.largest, values, 0.0).astype(np.float32)


def _nearest(values: Array, table: Array) -> Array:
    """The float8 nearest to each value; ties go to the even code."""
    codes = np.arange(128, dtype=np.uint8)
    codes = codes[(table[:128] > 0) | (codes == 0)]
    steps = table[codes]
    magnitude = np.minimum(np.abs(values), steps[-1])
    high = np.searchsorted(steps, magnitude).clip(1, len(steps) - 1)
    low = high - 1
    nearer = (magnitude - steps[low]) - (steps[high] - magnitude)
    is_high = (nearer > 0) | ((nearer == 0) & (codes[high] % 2 == 0))
    return np.where(is_high, codes[high], codes[low]) | np.where(values < 0, 128, 0).astype(
        np.uint8
    )
