"""The model that is tried, and engines over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagoda.cache import num_blocks_for
from pagoda.cache.formats import FLOAT_DTYPES, canonical
from pagoda.engine.build import Model, assemble
from pagoda.engine.core import Engine
from pagoda.engine.devices.backend import Running
from pagoda.engine.devices.find import find_backend
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError
from pagoda.lab.method import FULL, Method


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in memory, and the options that all engines over it have in common."""

    model: Model
    options: EngineOptions

    @property
    def numbers_per_token(self) -> int:
        """Numbers of K and V that all layers have of one token."""
        plain = self.model.spec.cache_spec(self.options.block_size, "float32")
        return plain.block_bytes // self.options.block_size // 4

    def open(
        self, method: Method, *, longest: int, num_tokens: int, **options: Any
    ) -> tuple[Engine, Running]:
        """An engine for requests of up to `longest` tokens, whose pool holds `num_tokens`.

        `options` are more of `EngineOptions`. Raises `InvalidOptionError` where the model or its
        device cannot keep a cache so.
        """
        asked = replace(
            options_with(self.options, method),
            num_gpu_blocks_override=num_blocks_for(num_tokens, self.options.block_size),
            **options,
        )
        return assemble(replace(self.model, max_model_len=longest), asked)

    def methods(self, names: Sequence[str] = ()) -> tuple[Method, ...]:
        """The full cache, it in other plain dtypes, and those named, or all that can be done here.

        Raises `InvalidOptionError` for a name that the model or the device cannot do.
        """
        formats = self.model.backend.policy.cache_formats(self.model.dtype)
        plain = [name for name in formats if name in FLOAT_DTYPES]
        others = {canonical(name): Method(name) for name in (*plain, *(names or formats))}
        for same in (FULL.kv_cache_dtype, self.model.dtype):
            others.pop(same, None)
        if names:
            for each in others.values():
                self._try(each)
            return (FULL, *others.values())
        return (FULL, *(each for each in others.values() if self._refusal(each) is None))

    def left_out(self) -> list[str]:
        """Why formats that the device stores are not among `methods`, a line each."""
        formats = self.model.backend.policy.cache_formats(self.model.dtype)
        refusals = (self._refusal(Method(name)) for name in formats)
        return [str(refusal) for refusal in refusals if refusal is not None]

    def _refusal(self, method: Method) -> InvalidOptionError | None:
        try:
            self._try(method)
        except InvalidOptionError as error:
            return error
        return None

    def _try(self, method: Method) -> None:
        """Raises `InvalidOptionError` where the model cannot keep a cache so."""
        options = replace(options_with(self.options, method), num_gpu_blocks_override=1)
        self.model.loaded.size(options, self.options.block_size)


def options_with(options: EngineOptions, method: Method) -> EngineOptions:
    """The options of an engine that keeps its cache so."""
    return replace(options, kv_cache_dtype=method.kv_cache_dtype)


def require_known(options: EngineOptions, names: Sequence[str]) -> None:
    """Raises `InvalidOptionError` for a name that the device does not know, and lists those.

    To be asked before a model is loaded, which takes longer.
    """
    backend = find_backend(options)
    for name in names:
        backend.prepare(options_with(options, Method(name)))
