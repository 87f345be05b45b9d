"""The codec of each layer of a cache on CPUs, with what is found for the model."""

from __future__ import annotations

from pagoda.cache.spec import CacheSpec
from pagoda.codecs import CALIBRATED, CENTRED, CentredCodec, Codec, VectorCodec, codec_of
from pagoda.engine.devices.calibration import Calibration
from pagoda.engine.devices.mean_calibration import MeanCalibration
from pagoda.engine.options import EngineOptions
from pagoda.models.decoder import AttentionSpec


def layer_codecs(
    cache: CacheSpec, calibration: Calibration, *, moves_queries: bool
) -> list[Codec | None]:
    """Those that are calibrated are found, or read from disk. `moves_queries`: see below.

    Raises as `Calibration.codecs` does.
    """
    names = {layer.dtype for layer in cache.layers} & set(CALIBRATED)
    found = {name: calibration.codecs(name) for name in names}
    codecs = [
        found[layer.dtype][number] if layer.dtype in found else codec_of(layer.dtype)
        for number, layer in enumerate(cache.layers)
    ]
    if not moves_queries:
        _centre(codecs, cache, calibration)
    return codecs


def moves_queries(options: EngineOptions) -> bool:
    """Whether a query may meet some of its keys turned otherwise than the rest: sinks that are
    apart from the window. What is taken out of keys would then move their scores otherwise too."""
    return options.retention.sinks > 0 or options.request_kv_retention


def _centre(codecs: list[Codec | None], cache: CacheSpec, calibration: Calibration) -> None:
    """Take something out of keys, where the format does and softmax does not see it."""
    attentions = [layer.attention for layer in calibration.spec.layers]
    chosen = [
        number
        for number, attention in enumerate(attentions)
        if cache.layers[number].dtype in CENTRED
        and isinstance(attention, AttentionSpec)
        and attention.ignores_shifts
    ]
    means = MeanCalibration(calibration).find() if chosen else ()
    for number in chosen:
        codec, mean = codecs[number], means[number]
        assert codec is not None
        assert isinstance(codec.key, VectorCodec)
        assert mean is not None
        codecs[number] = Codec(CentredCodec(codec.key, mean), codec.value)
