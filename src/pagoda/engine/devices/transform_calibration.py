"""Transforms of the lossy form `kvtc` for a model: found once from a text, kept on disk.

They lie beside calibrated codecs, and are found from the same text (`calibration.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pagoda.codecs.block_transform import BlockTransform, TooFewNumbersError
from pagoda.codecs.transform import RunTransform, SideTransform
from pagoda.codecs.transform_file import FoundTransforms
from pagoda.engine.devices.calibration import Calibration, keep
from pagoda.engine.slow_notice import counted, told_if_slow
from pagoda.errors import InvalidOptionError
from pagoda.execution.cpu.run_sums import SAMPLE_TOKENS
from pagoda.execution.cpu.transform_statistics import TransformStatistics
from pagoda.sizing.lossy_form import runs_of
from pagoda.tiers.tier_option import FORMS

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

    def find(self, of_field: str, asked: str) -> FoundTransforms:
        """For all of `FORMS`, from disk if it is there.

        Raises `InvalidOptionError`, of the field and what it asked for, as `Calibration.windows`
        does, and where the model makes numbers of the text that are not finite.
        """
        own = self.calibration
        path = own.path_of(_NAME, f"{_RECIPE}{own.reading} {dict(FORMS)}")
        kept = FoundTransforms.load(path) if path else None
        if kept is not None:
            return kept
        windows = own.windows(of_field, asked)
        logger.info(_MESSAGE, _NAME, sum(map(len, windows)))
        with told_if_slow("reading the text, and then fitting each layer") as begin:
            found = self._found(of_field, asked, windows, begin)
        keep(path, found.save)
        return found

    def _found(
        self, of_field: str, asked: str, windows: list[list[int]], begin: Callable[[str], None]
    ) -> FoundTransforms:
        own, longest = self.calibration, max(map(len, windows))
        executor = own.executor(longest)
        runs = runs_of(executor.storage.spec)
        statistics = TransformStatistics(own.spec, own.weights, runs, longest)
        for window in counted(begin, "window", windows, len(windows)):
            statistics.read(executor, window)
        pairs = zip(runs, statistics.of_runs(), strict=True)
        try:
            found = [
                RunTransform(run, *map(SideTransform.fit, pair))
                for run, pair in counted(begin, "run of layers", pairs, len(runs))
            ]
        except np.linalg.LinAlgError:
            limit = "finds no basis in the text it is calibrated by"
            raise InvalidOptionError(of_field, asked, limit) from None
        except ValueError:
            limit = "keys, values or queries of the text it is calibrated by are not finite"
            raise InvalidOptionError(of_field, asked, limit) from None
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
            raise InvalidOptionError(of_field, asked, limit) from None
        return FoundTransforms(tuple(found), steps)
