"""Transforms of the lossy form `kvtc` for a model: found once from a text, kept on disk.

They lie beside calibrated codecs, and are found from the same text (`calibration.py`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from pagoda.cache.spec import CacheSpec
from pagoda.codecs.block_transform import BlockTransform, TooFewNumbersError
from pagoda.codecs.transform import RunTransform, SideTransform
from pagoda.codecs.transform_file import FoundTransforms
from pagoda.engine.devices.calibration import Calibration, keep
from pagoda.engine.slow_notice import told_if_slow
from pagoda.errors import InvalidOptionError
from pagoda.execution.cpu.run_sums import SAMPLE_TOKENS
from pagoda.execution.cpu.transform_statistics import TransformStatistics
from pagoda.sizing.lossy_form import MOST_NUMBERS
from pagoda.tiers.tier_option import FORM_FIELD, FORMS

logger = logging.getLogger("pagoda")

_NAME = "kvtc"
_RECIPE = "2"
"""Another one for every change to what is found."""
_PLAIN_BYTES = 2
"""Of a number, that ratios are told by: bfloat16's."""
_MESSAGE = "calibrating %s for this model, once: it reads a text of %d tokens"


@dataclass(frozen=True, slots=True)
class TransformCalibration:
    """Finds transforms for a model in memory, whose layers all keep keys and values."""

    calibration: Calibration

    def find(self, form: str) -> FoundTransforms:
        """For all of `FORMS`, from disk if it is there; `form`: what is asked for, in refusals.

        Raises `InvalidOptionError` as `Calibration.windows` does, and where the model makes numbers
        of the text that are not finite.
        """
        own = self.calibration
        path = own.path_of(_NAME, f"{_RECIPE} {dict(FORMS)}")
        kept = FoundTransforms.load(path) if path else None
        if kept is not None:
            return kept
        windows = own.windows(FORM_FIELD, form)
        logger.info(_MESSAGE, _NAME, sum(map(len, windows)))
        with told_if_slow("reading the text, and then fitting each layer"):
            found = self._found(form, windows)
        keep(path, found.save)
        return found

    def _found(self, form: str, windows: list[list[int]]) -> FoundTransforms:
        own, longest = self.calibration, max(map(len, windows))
        executor = own.executor(longest)
        runs = runs_of(executor.storage.spec)
        statistics = TransformStatistics(own.spec, own.weights, runs, longest)
        for window in windows:
            statistics.read(executor, window)
        try:
            found = [
                RunTransform(run, *map(SideTransform.fit, pair))
                for run, pair in zip(runs, statistics.of_runs(), strict=True)
            ]
        except np.linalg.LinAlgError:
            limit = "finds no basis in the text it is calibrated by"
            raise InvalidOptionError(FORM_FIELD, form, limit) from None
        except ValueError:
            limit = "keys, values or queries of the text it is calibrated by are not finite"
            raise InvalidOptionError(FORM_FIELD, form, limit) from None
        blocks = statistics.blocks()
        numbers = sum(len(side.mean) for run in found for side in run.sides)
        plain_bytes = SAMPLE_TOKENS * numbers * _PLAIN_BYTES
        try:
            steps = {
                name: BlockTransform.of_size(found, blocks, plain_bytes / ratio).step
                for name, ratio in FORMS.items()
            }
        except TooFewNumbersError:
            limit = f"makes no block of {numbers // 2:,} numbers a side and token so small"
            raise InvalidOptionError(FORM_FIELD, form, limit) from None
        return FoundTransforms(tuple(found), steps)


def runs_of(cache: CacheSpec) -> list[tuple[int, ...]]:
    """The layers that share a basis: of one group and of heads of one size, one after the other.

    All keep keys and values.
    """
    runs = list[tuple[int, ...]]()
    for group in cache.groups:
        run, numbers, head_size = tuple[int, ...](), 0, 0
        for layer_id in group.layer_ids:
            vectors = cache.layers[layer_id].vectors
            assert vectors is not None
            size = vectors.num_kv_heads * vectors.head_size
            if run and (head_size != vectors.head_size or numbers + size > MOST_NUMBERS):
                runs.append(run)
                run, numbers = (), 0
            run, numbers, head_size = (*run, layer_id), numbers + size, vectors.head_size
        runs.append(run)
    return runs
