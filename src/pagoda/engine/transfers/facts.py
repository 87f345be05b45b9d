"""What an engine's blocks depend on beside their tokens: the facts of their namespace."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from secrets import token_hex

from pagoda.cache.spec import CacheSpec
from pagoda.engine.transfers.weights_digest import weights_digest
from pagoda.models.decoder import DecoderSpec
from pagoda.models.load import FORMATS
from pagoda.models.locate import ModelFiles
from pagoda.sizing.held_weights import HeldWeights
from pagoda.tiers.namespace import Namespace

_VERSION = 1
"""Of what a block's bytes are; another one for every change to it that no other fact tells."""


def namespace_of(
    files: ModelFiles | None,
    decoder: DecoderSpec,
    held: HeldWeights,
    activation_dtype: str,
    cache: CacheSpec,
    codecs: str,
    numerics: str,
    form: str = "",
) -> Namespace:
    """`codecs`: how K and V are stored, calibrations included. `form`: what blocks may have gone
    through on a tier, and its calibration; "": nothing that loses anything. `files`: None where
    there are weights alone, which are nobody else's then."""
    scheme = None if files is None else FORMATS[files.kind].scheme(files)
    return Namespace(
        {
            "form": _VERSION,
            "weights": token_hex(32) if files is None else weights_digest(files),
            "decoder": _digest(decoder),
            "dtype": held.dtype,
            "held weights": str(held),
            "activation dtype": activation_dtype,
            "codecs": _shortened(codecs),
            "block size": cache.block_size,
            "layout": _digest(replace(cache, under_way_tokens=0)),
            "numerics": numerics,
            **({} if scheme is None else {"scheme": repr(scheme)}),
            **({"lossy form": form} if form else {}),
        },
        "" if files is None else files.name,
    )


def _digest(data: object) -> str:
    """Of all that a frozen dataclass says of itself, angles of positions included."""
    return sha256(repr(data).encode()).hexdigest()


def _shortened(codecs: str) -> str:
    """Of layers that are alike, one; and the digest of all."""
    names, *found = codecs.split(" ")
    kinds = ", ".join(sorted(set(names.split(","))))
    return f"{kinds} {sha256(codecs.encode()).hexdigest() if found or ',' in names else ''}".strip()
