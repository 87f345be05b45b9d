"""What vLLM's `--kv-cache-dtype` takes, and what is meant by names that only Pagoda has."""

from __future__ import annotations

from types import MappingProxyType

from pagoda.cache.formats import (
    CALIBRATED_FORMATS,
    FORMATS,
    LATENT_BYTES,
    LATENT_FORMATS,
    canonical,
)
from pagoda.cache.own_format import is_own
from pagoda.errors import InvalidOptionError

_INSTEAD = MappingProxyType(
    dict.fromkeys(CALIBRATED_FORMATS, "int4_per_token_head") | dict.fromkeys(LATENT_FORMATS, "fp8")
)
_MEANT = MappingProxyType({"int8": "int8_per_token_head"})
"""Names that vLLM does not have, with what stores as many bits."""

_KNOWN = tuple(
    name
    for name in ("auto", "fp8", *FORMATS, *LATENT_BYTES)
    if name not in _INSTEAD and name not in _MEANT
)


def require_in_vllm(asked: str) -> None:
    """Raises `InvalidOptionError` for a format that vLLM does not have, or names otherwise."""
    if is_own(asked):
        limit = "vLLM has no codecs of one's own: --engine pagoda does"
    elif asked in _INSTEAD:
        limit = f"is Pagoda's own: --engine pagoda, or {_INSTEAD[asked]} for vLLM"
    elif asked in _MEANT:
        limit = f"vLLM has none of this name: {_MEANT[asked]} stores as many bits of a number"
    elif canonical(asked) not in _KNOWN:
        limit = f"one of {', '.join(_KNOWN)}"
    else:
        return
    raise InvalidOptionError("kv_cache_dtype", asked, limit)
