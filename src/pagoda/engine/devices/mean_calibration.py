"""What `fp8` leaves out of keys: found once for a model, and kept beside calibrated codecs.

It is read off tokens that are made up, so no text and no tokenizer is asked for: keys of any tokens
have nearly the same mean (docs/log.md).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pagoda.codecs import CODECS
from pagoda.codecs.array_file import read_arrays, write_arrays
from pagoda.engine.devices.calibration import Calibration, keep
from pagoda.engine.devices.numerics import cpu_numerics
from pagoda.engine.slow_notice import told_if_slow
from pagoda.execution.cpu.key_means import KeyMeans
from pagoda.kernels.array import Array
from pagoda.models.decoder import AttentionSpec

logger = logging.getLogger("pagoda")

_NAME = "fp8"
_RECIPE = "3"
"""Another one for every change to what is found."""
_KEYS = CODECS["fp8_e4m3"].key
"""How they are stored."""
_NUM_TOKENS = 128
_GOLDEN = 0.6180339887498949
"""Multiples of it fall evenly between whole numbers."""
_MESSAGE = "calibrating %s for this model, once: it reads %d made-up tokens"


@dataclass(frozen=True, slots=True)
class MeanCalibration:
    """Finds it for a model in memory."""

    calibration: Calibration

    def find(self) -> tuple[Array | None, ...]:
        """As `KeyMeans.of_layers`, from disk if it is there."""
        own = self.calibration
        path = own.path_of(_NAME, f"{_RECIPE} {cpu_numerics()}")  # to the bit, for shared tiers
        kept = read_arrays(path) if path else None
        if kept is not None and self._suits(kept):
            return tuple(kept.get(str(number)) for number in range(len(own.spec.layers)))
        token_ids = self._token_ids()
        logger.info(_MESSAGE, _NAME, len(token_ids))
        with told_if_slow("reading them"):
            means = KeyMeans(own.spec)
            means.read(own.executor(len(token_ids)), token_ids)
            found = tuple(means.of_layers(_KEYS))
        arrays = {str(number): mean for number, mean in enumerate(found) if mean is not None}
        if own.files is not None:  # weights alone are nobody's at the next start
            keep(path, lambda path: write_arrays(path, arrays))
        return found

    def _suits(self, arrays: Mapping[str, Array]) -> bool:
        """Whether they have the shapes of the model's layers."""
        layers = enumerate(layer.attention for layer in self.calibration.spec.layers)
        shapes = {
            str(number): (each.num_kv_heads, each.head_dim)
            for number, each in layers
            if isinstance(each, AttentionSpec)
        }
        return shapes == {name: array.shape for name, array in arrays.items()}

    def _token_ids(self) -> list[int]:
        """From all over the vocabulary."""
        spec = self.calibration.spec
        count = min(_NUM_TOKENS, spec.max_position_embeddings)
        shares = np.arange(1, count + 1) * _GOLDEN % 1
        return [int(each) for each in shares * spec.vocab_size]
