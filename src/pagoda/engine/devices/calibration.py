"""Codecs that are calibrated for a model: found once, from a text it reads, and kept on disk.

    ~/.cache/pagoda/calibrations/MODEL-int4-DIGEST.safetensors      or under XDG_CACHE_HOME

The digest is of the model's shape, of its weights as far as they are quickly read, of the text and
of this recipe: what lies there is what would be found again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files as package_files
from pathlib import Path

from pagoda.cache.spec import CacheSpec
from pagoda.codecs import CALIBRATED, Codec
from pagoda.codecs.calibrate import calibrate
from pagoda.codecs.calibration_file import load_codecs, save_codecs
from pagoda.engine.slow_notice import told_if_slow
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.execution.cpu.panel_weights import PanelWeights
from pagoda.execution.cpu.vector_statistics import VectorStatistics
from pagoda.models.decoder import DecoderSpec
from pagoda.models.locate import ModelFiles
from pagoda.models.tokenizer import Tokenizer
from pagoda.storage.cpu_storage import CPUStorage

logger = logging.getLogger("pagoda")

_RECIPE = "1"
"""Another one for every change to what is found."""
_TEXT = "calibration.txt"
_NUM_WINDOWS = 8
_WINDOW_TOKENS = 2048
_BLOCK_SIZE = 16
_SAMPLE_BYTES = 1 << 16
"""Of each matrix, for the digest."""
_MESSAGE = "calibrating %s for this model: it reads a text of %d tokens, once; the result is kept"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Finds codecs for a model in memory."""

    spec: DecoderSpec
    weights: PanelWeights
    files: ModelFiles
    """Where its tokenizer is."""
    num_threads: int

    def codecs(self, name: str) -> tuple[Codec, ...]:
        """Of all layers, for a format in `CALIBRATED`; from disk if they are there.

        A disk that cannot be written to costs the next start the same work, and no more.
        """
        path = _directory() / f"{_plain(self.files.name)}-{name}-{self._digest()}.safetensors"
        found = load_codecs(path, CALIBRATED[name])
        if found is not None and len(found) == len(self.spec.layers):
            return found
        windows = list(self._windows())
        num_tokens = sum(map(len, windows))
        logger.info(_MESSAGE, name, num_tokens)
        with told_if_slow("calibrating; the first time for a model"):
            found = self._calibrate(name, windows)
        try:
            save_codecs(path, found)
        except OSError as error:
            logger.warning("the calibration is not kept: %s", error)
        return found

    def _calibrate(self, name: str, windows: list[list[int]]) -> tuple[Codec, ...]:
        statistics = VectorStatistics(self.spec, self.weights)
        longest = max(map(len, windows))
        executor = self._executor(longest)
        for window in windows:
            statistics.read(executor, window)
        widths = CALIBRATED[name]
        return tuple(
            Codec(calibrate(widths.key, keys), calibrate(widths.value, values))
            for keys, values in statistics.of_layers()
        )

    def _executor(self, longest: int) -> CPUExecutor:
        dtype = "bfloat16" if self.weights.dtype.itemsize == 2 else "float32"
        spec: CacheSpec = self.spec.cache_spec(_BLOCK_SIZE, dtype)
        storage = CPUStorage(spec, spec.num_blocks(longest))
        return CPUExecutor(self.spec, self.weights, storage, longest, self.num_threads)

    def _windows(self) -> Iterator[list[int]]:
        """Tokens of the text, in windows that each begin as the model wants a text to."""
        tokenizer = Tokenizer(self.files)
        opening = tokenizer.encode("")
        token_ids = tokenizer.encode(_text(), add_special_tokens=False)
        size = min(_WINDOW_TOKENS, self.spec.max_position_embeddings) - len(opening)
        starts = range(0, len(token_ids), size)
        for start in starts[:_NUM_WINDOWS]:
            yield [*opening, *token_ids[start : start + size]]

    def _digest(self) -> str:
        found = blake2b(digest_size=8)
        found.update(f"{_RECIPE}\n{self.spec!r}\n{self.weights.dtype}\n{_text()}".encode())
        for layer in self.weights.layers:
            found.update(layer.input_norm.float().numpy().tobytes())
            for matrix in (layer.qkv, layer.o):
                for part in matrix.parts:
                    found.update(part.memory.reshape(-1).view("u1")[:_SAMPLE_BYTES].tobytes())
        return found.hexdigest()


def _text() -> str:
    return package_files(__package__).joinpath(_TEXT).read_text("utf-8")


def _directory() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "pagoda" / "calibrations"


def _plain(name: str) -> str:
    """A model's name as part of a file's."""
    return "".join(each if each.isalnum() or each in "-._" else "-" for each in name)[:80]
