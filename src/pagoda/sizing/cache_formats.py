"""The format that each layer of a cache is stored in, from what options ask for."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from pagoda.cache.formats import (
    CALIBRATED_FORMATS,
    CODED_FORMATS,
    FLOAT_DTYPES,
    INT8_LATENTS,
    LATENT_FORMATS,
    UNCALIBRATED_FORMATS,
    canonical,
    guarded_layers,
    is_coded,
    vector_format,
)
from pagoda.cache.latent import PACKED_FP8
from pagoda.cache.own_format import is_own
from pagoda.errors import InvalidOptionError
from pagoda.sizing.skipped_layers import SkippedLayers

AUTO = "auto"
STORED_FORMATS = (*FLOAT_DTYPES, *CODED_FORMATS, INT8_LATENTS)
"""What some device can store."""
_TOLD = {canonical("fp8"): "fp8"}
"""The name that a format goes by, where that is another."""


@dataclass(frozen=True, slots=True)
class CacheFormats:
    """A format for all layers, but for those that keep the dtype of the activations: layers to
    skip, and what a format guards itself.

    The names are vLLM's `--kv-cache-dtype` and `--kv-cache-dtype-skip-layers`.
    """

    kv_cache_dtype: str = AUTO
    skip_layers: tuple[int | str, ...] = ()
    """As `SkippedLayers` reads them."""

    def of_layers(self, windowed: Sequence[bool], dtype: str) -> tuple[str, ...]:
        """The format of each layer, `dtype` being that of weights and activations.

        Raises as `layers_left_out` does.
        """
        asked = dtype if self.kv_cache_dtype == AUTO else canonical(self.kv_cache_dtype)
        left_out = self.layers_left_out(windowed)
        return tuple(dtype if number in left_out else asked for number in range(len(windowed)))

    def layers_left_out(self, windowed: Sequence[bool], *, guards: bool = True) -> frozenset[int]:
        """Numbers of the layers that keep the dtype; `guards`: what a format guards is among them.

        windowed: of each layer, whether it has a sliding window. Raises `InvalidOptionError` for a
        layer to skip that the model does not have.
        """
        skipped = SkippedLayers.read(self.skip_layers).of(windowed)
        guarded = guarded_layers(canonical(self.kv_cache_dtype), len(windowed)) if guards else ()
        return skipped.union(guarded)

    def require_one_of(self, formats: Sequence[str], kind: str) -> None:
        """Raises `InvalidOptionError` unless a kind of device can store the format.

        One that stores codes stores those as well that say themselves what they are.
        """
        name = canonical(self.kv_cache_dtype)
        if name == PACKED_FP8:  # what fp8 is for latents; others refuse it by this name
            name = canonical("fp8")
        if is_own(name) and set(UNCALIBRATED_FORMATS) <= set(formats):
            vector_format(name)
        elif name != AUTO and name not in formats:
            raise InvalidOptionError(
                "kv_cache_dtype", self.kv_cache_dtype, _limit(name, formats, kind)
            )


def _limit(name: str, formats: Sequence[str], kind: str) -> str:
    """What a kind of device stores instead of a format, and what may have been meant."""
    if name in CALIBRATED_FORMATS and name not in formats:
        near = ", ".join(each for each in formats if each.startswith(name)) or "int4_per_token_head"
        return f"is calibrated for the model, which CPUs alone do; a {kind} has {near}"
    told = [_TOLD.get(each, each) for each in formats]
    limit = f"one of {', '.join((AUTO, *told))} on a {kind}"
    if set(UNCALIBRATED_FORMATS) <= set(formats):
        limit += ", or KEYS/VALUES, a codec of one's own"
    meant = [each for each in told if name and each.startswith(name)]
    meant = meant or difflib.get_close_matches(name, told, n=1, cutoff=0.6)
    return f"{limit}; did you mean {' or '.join(meant)}?" if meant else limit


def require_heads(formats: Sequence[str], head_sizes: Sequence[int | None]) -> None:
    """Raises `InvalidOptionError` for a layer whose heads its format cannot code.

    None: a layer of latents, of which `latent_format` says what they are stored in.
    """
    for name, head_size in zip(formats, head_sizes, strict=True):
        if head_size is None:
            continue
        if name == PACKED_FP8 or name in LATENT_FORMATS:
            limit = "is for latent attention (MLA) alone"
            raise InvalidOptionError("kv_cache_dtype", name, limit)
        multiple = vector_format(name).head_multiple
        if is_coded(name) and head_size % multiple:
            limit = f"takes heads of a multiple of {multiple} numbers, and these have {head_size}"
            raise InvalidOptionError("kv_cache_dtype", name, limit)
