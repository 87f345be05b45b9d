"""Pagoda: an LLM inference engine whose subject is the KV cache.

The names below are the public ones, with `pagoda.cache`; everything else is private. They are
loaded when they are first used, so `import pagoda` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagoda.engine.async_engine import AsyncEngine
    from pagoda.engine.llm import LLM
    from pagoda.engine.options import EngineOptions
    from pagoda.engine.outputs import CompletionOutput, Logprob, RequestOutput
    from pagoda.errors import PagodaError, RefusedError
    from pagoda.request import SamplingParams
    from pagoda.structured import StructuredOutputs

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncEngine",
    "CompletionOutput",
    "EngineOptions",
    "Logprob",
    "PagodaError",
    "RefusedError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
    "__version__",
]

_HOMES = {
    "LLM": "pagoda.engine.llm",
    "AsyncEngine": "pagoda.engine.async_engine",
    "CompletionOutput": "pagoda.engine.outputs",
    "EngineOptions": "pagoda.engine.options",
    "Logprob": "pagoda.engine.outputs",
    "PagodaError": "pagoda.errors",
    "RefusedError": "pagoda.errors",
    "RequestOutput": "pagoda.engine.outputs",
    "SamplingParams": "pagoda.request",
    "StructuredOutputs": "pagoda.structured",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'pagoda' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
