"""The codec of each layer of a cache on CPUs, with what is found for the model."""

from __future__ import annotations

import logging
from dataclasses import replace

from pagoda.cache.spec import CacheSpec
from pagoda.codecs import CALIBRATED, CENTRED, Codec, codec_of
from pagoda.engine.devices.calibration import Calibration
from pagoda.engine.devices.mean_calibration import MeanCalibration
from pagoda.engine.options import EngineOptions
from pagoda.models.decoder import AttentionSpec

logger = logging.getLogger("pagoda")

_CENTRED = "keys of %d of %d layers are stored less a part of their mean"


def layer_codecs(
    cache: CacheSpec, calibration: Calibration, *, ignores_means: bool
) -> list[Codec | None]:
    """Those that are calibrated are found, or read from disk. `ignores_means`: see below.

    Raises as `Calibration.codecs` does.
    """
    names = {layer.dtype for layer in cache.layers} & set(CALIBRATED)
    found = {name: calibration.codecs(name) for name in names}
    codecs = [
        found[layer.dtype][number] if layer.dtype in found else codec_of(layer.dtype)
        for number, layer in enumerate(cache.layers)
    ]
    if ignores_means:
        _centre(codecs, cache, calibration)
    return codecs


def ignores_means(options: EngineOptions, *, is_past_length: bool) -> bool:
    """Whether what keys have in common, at positions of the model's length, may be left out.

    Sinks that are apart from the window are met by queries that are turned otherwise, so their
    scores would move otherwise too. `is_past_length`: there are positions behind the model's
    length, as windows allow, where keys have something else in common.
    """
    meets_sinks = options.retention.sinks > 0 or options.request_kv_retention
    return not meets_sinks and not is_past_length


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
    if not chosen:
        return
    logger.info(_CENTRED, len(chosen), len(codecs))
    means = MeanCalibration(calibration).find()
    for number in chosen:
        codec, mean = codecs[number], means[number]
        assert codec is not None
        assert mean is not None
        codecs[number] = replace(codec, key_mean=mean)
