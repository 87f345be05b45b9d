"""What vLLM's `--kv-cache-dtype` takes, and what is meant by names that only Pagoda has."""

from __future__ import annotations

from types import MappingProxyType

from pagoda.cache.formats import CALIBRATED_FORMATS, LATENT_FORMATS
from pagoda.cache.own_format import is_own
from pagoda.errors import InvalidOptionError

_INSTEAD = MappingProxyType(
    dict.fromkeys(CALIBRATED_FORMATS, "int4_per_token_head") | dict.fromkeys(LATENT_FORMATS, "fp8")
)
_MEANT = MappingProxyType({"int8": "int8_per_token_head"})
"""Names that vLLM does not have, with what stores as many bits."""


def require_in_vllm(asked: str) -> None:
    """Raises `InvalidOptionError` for a format that is Pagoda's own, or that vLLM names otherwise.

    What no engine knows the pool refuses.
    """
    if is_own(asked):
        limit = "vLLM has no codecs of one's own: --engine pagoda does"
    elif asked in _INSTEAD:
        limit = f"is Pagoda's own: --engine pagoda, or {_INSTEAD[asked]} for vLLM"
    elif asked in _MEANT:
        limit = f"vLLM has none of this name: {_MEANT[asked]} stores as many bits of a number"
    else:
        return
    raise InvalidOptionError("kv_cache_dtype", asked, limit)
