"""Codecs that are calibrated for a model: found once, from a text it reads, and kept on disk.

    ~/.cache/pagoda/calibrations/MODEL-int4-DIGEST.safetensors      or under XDG_CACHE_HOME

The digest is of the model's shape, of samples of its weights, of the text and of this recipe.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files as package_files
from pathlib import Path

import numpy as np
import torch

from pagoda.cache.formats import vector_format
from pagoda.cache.slots import num_blocks_for
from pagoda.cache.spec import CacheSpec
from pagoda.codecs import CALIBRATED, CalibratedCodec, Codec
from pagoda.codecs.calibrate import calibrate
from pagoda.codecs.calibration_file import load_codecs, save_codecs
from pagoda.engine.slow_notice import counted, told_if_slow
from pagoda.errors import InvalidOptionError
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.execution.cpu.panel_weights import PanelWeights
from pagoda.execution.cpu.vector_statistics import VectorStatistics
from pagoda.kernels.array import Array
from pagoda.models.decoder import AttentionSpec, DecoderLayer, DecoderSpec
from pagoda.models.locate import ModelFiles
from pagoda.models.tokenizer import Tokenizer
from pagoda.storage.cpu_storage import CPUStorage

logger = logging.getLogger("pagoda")

_RECIPE = "5"
"""Another one for every change to what is found."""
_TEXT = "calibration.txt"
_NUM_TOKENS = 16384
"""Of all windows."""
_WINDOW_TOKENS = 2048
"""Of a model that takes so many."""
_BLOCK_SIZE = 16
_SAMPLE_BYTES = 1 << 14
"""Of each matrix, for the digest."""
_MESSAGE = "calibrating %s for this model, once: it reads a text of %d tokens"
_NOT_KEPT = "the calibration is not kept, and the next start does it again: %s"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Finds codecs for a model in memory."""

    spec: DecoderSpec
    weights: PanelWeights
    files: ModelFiles | None
    """Where its tokenizer is; None: there are weights alone."""
    num_threads: int

    def codecs(self, name: str) -> tuple[Codec | None, ...]:
        """Of all layers, for a format in `CALIBRATED`; from disk if they are there.

        None: the heads of a layer do not suit it. Where nothing can be kept, the next start has the
        same work, and no more. Raises `InvalidOptionError` for a model whose tokenizer makes
        nothing of a text, or tokens that the model does not have, and as `calibrate` does.
        """
        path = self.path_of(name, _RECIPE + self.reading)
        kept = load_codecs(path, CALIBRATED[name]) if path else None
        if kept is not None and self._suits(kept):
            return kept
        windows = self.windows("kv_cache_dtype", name)
        logger.info(_MESSAGE, name, sum(map(len, windows)))
        with told_if_slow("reading the text, and then fitting each layer") as begin:
            found = self._calibrate(name, windows, begin)
        keep(path, lambda path: save_codecs(path, found))
        return found

    def path_of(self, name: str, recipe: str) -> Path | None:
        """Where what is found for it is kept; None: there is no home, or the model has no name."""
        directory = _directory()
        if self.files is None:
            return None
        file_name = f"{_plain(self.files.name)}-{name}-{self._digest(recipe)}.safetensors"
        return directory and directory / file_name

    @property
    def reading(self) -> str:
        """A part of recipes: another one for every change to what is read of the text."""
        return " 2" if self.spec.max_position_embeddings < _WINDOW_TOKENS else ""

    def _suits(self, codecs: Sequence[Codec | None]) -> bool:
        """Whether they have the shapes of the model's layers."""
        if len(codecs) != len(self.spec.layers):
            return False
        shapes = [_shape(layer) for layer in self.spec.layers]
        sides = [() if codec is None else (codec.key, codec.value) for codec in codecs]
        return all(
            isinstance(side, CalibratedCodec) and side.vectors.shape == shape
            for shape, each in zip(shapes, sides, strict=True)
            for side in each
        )

    def _calibrate(
        self, name: str, windows: list[list[int]], begin: Callable[[str], None]
    ) -> tuple[Codec | None, ...]:
        statistics = VectorStatistics(self.spec, self.weights, len(windows))
        executor = self.executor(max(map(len, windows)))
        for window in counted(begin, "window", windows, len(windows)):
            statistics.read(executor, window)
        layers = counted(begin, "layer", statistics.of_layers(), len(self.spec.layers))
        widths, multiple = CALIBRATED[name], vector_format(name).head_multiple
        return tuple(
            Codec(calibrate(widths.key, keys), calibrate(widths.value, values))
            if keys.samples.shape[-1] % multiple == 0
            else None
            for keys, values in layers
        )

    def executor(self, longest: int) -> CPUExecutor:
        """What reads the text, with a plain cache for so many tokens."""
        dtype = "bfloat16" if self.weights.dtype.itemsize == 2 else "float32"
        spec: CacheSpec = self.spec.cache_spec(_BLOCK_SIZE, dtype)
        num_blocks = len(spec.groups) * num_blocks_for(longest, _BLOCK_SIZE)
        storage = CPUStorage(spec, num_blocks)
        return CPUExecutor(self.spec, self.weights, storage, longest, self.num_threads)

    def windows(self, field: str, name: str) -> list[list[int]]:
        """Tokens of the text, in windows that each begin as the model wants a text to: the more of
        them the shorter they are.

        Raises `InvalidOptionError`, of the field, for a tokenizer that makes none of them, and
        where there is none.
        """
        if self.files is None:
            limit = "is calibrated with a model's tokenizer, and there are weights alone"
            raise InvalidOptionError(field, name, limit)
        tokenizer = Tokenizer(self.files)
        opening = tokenizer.encode("")
        token_ids = tokenizer.encode(_text(), add_special_tokens=False)
        longest = min(_WINDOW_TOKENS, self.spec.max_position_embeddings)
        size = longest - len(opening)
        if size < 1 or not token_ids:
            limit = "is calibrated by a text, of which this model's tokenizer leaves nothing"
            raise InvalidOptionError(field, name, limit)
        largest = max([*opening, *token_ids])
        if largest >= self.spec.vocab_size:
            limit = f"the tokenizer makes token {largest}: the model has {self.spec.vocab_size}"
            raise InvalidOptionError(field, name, limit)
        starts = range(0, len(token_ids), size)[: -(-_NUM_TOKENS // longest)]
        return [[*opening, *token_ids[start : start + size]] for start in starts]

    def _digest(self, recipe: str) -> str:
        found = blake2b(digest_size=8)
        found.update(f"{recipe}\n{self.spec!r}\n{self.weights.dtype}\n{_text()}".encode())
        for layer in self.weights.layers:
            for weight in layer.all():
                if isinstance(weight, torch.Tensor):
                    found.update(weight.float().numpy().tobytes())
                else:
                    for part in weight.parts:
                        found.update(_sample(part.memory))
        return found.hexdigest()


def keep(path: Path | None, save: Callable[[Path], None]) -> None:
    """Have what was found saved; where it cannot be, the log says so."""
    if path is None:
        logger.warning(_NOT_KEPT, "there is no home directory; XDG_CACHE_HOME names another")
        return
    try:
        save(path)
    except OSError as error:
        logger.warning(_NOT_KEPT, error)


def _shape(layer: DecoderLayer) -> tuple[int, int, int]:
    attention = layer.attention
    assert isinstance(attention, AttentionSpec)  # latents are not coded
    return attention.num_kv_heads, attention.head_dim, attention.head_dim


def _sample(memory: Array) -> bytes:
    """Bytes from all over it."""
    flat = memory.reshape(-1).view(np.uint8)
    return flat[:: max(1, len(flat) // _SAMPLE_BYTES)].tobytes()


def _text() -> str:
    return package_files(__package__).joinpath(_TEXT).read_text("utf-8")


def _directory() -> Path | None:
    """Where calibrations are kept; None: there is no home."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "pagoda" / "calibrations"
    except RuntimeError:
        return None


def _plain(name: str) -> str:
    """A model's name as part of a file's."""
    return "".join(each if each.isalnum() or each in "-._" else "-" for each in name)[:80]
