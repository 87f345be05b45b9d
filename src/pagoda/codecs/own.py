"""A codec of one's own: it is passed on by a name that says all of it (`cache.own_format`)."""

from __future__ import annotations

from dataclasses import asdict

from pagoda.cache.own_format import SideFormat, own_name, own_sides
from pagoda.codecs.codec import Codec, SideCodec, VectorCodec
from pagoda.errors import InvalidOptionError


def name_of(codec: Codec) -> str:
    """What to give as `kv_cache_dtype`. Raises `InvalidOptionError` for one that cannot be."""
    return own_name(_format(codec.key), _format(codec.value))


def own_codec(name: str) -> Codec:
    """The codec of such a name. Raises `InvalidOptionError`."""
    key, value = own_sides(name)
    return Codec(VectorCodec(**asdict(key)), VectorCodec(**asdict(value)))


def _format(side: SideCodec) -> SideFormat:
    if not isinstance(side, VectorCodec):
        limit = "a name tells all of a VectorCodec alone"
        raise InvalidOptionError("kv_cache_dtype", type(side).__name__, limit)
    return SideFormat(**asdict(side))
