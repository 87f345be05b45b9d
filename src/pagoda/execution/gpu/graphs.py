"""CUDA graphs: launches recorded once and replayed as one.

What a graph reads and writes stays where it was at its capture: the memory must be kept and filled
anew. A replay is ordered with the current stream like any launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from pagoda.errors import InvalidOptionError

Launches = Callable[[], None]


class Capture(Protocol):
    """Records what a function launches."""

    def __call__(self, launches: Launches) -> Launches:
        """Call `launches`, which must neither wait for the device nor copy from the host.

        Returns what launches the same again; it keeps what it needs of the graph alive. Raises
        InvalidOptionError where that cannot be, torch.OutOfMemoryError where memory is short.
        """
        ...


class CUDAGraphs:
    """Captures on a side stream, with one memory pool for all its graphs.

    `stream` is for these graphs alone: where one is destroyed, PyTorch lets go of the memory that
    cuBLAS has for its stream, and others of that stream would still write there (its issue 193402).
    Each function runs once before it is recorded: kernels are compiled and loaded, and cuBLAS makes
    its workspace, none of which may happen in a capture.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, launches: Launches) -> Launches:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            launches()
        torch.cuda.current_stream().wait_stream(self._stream)
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                launches()
        except RuntimeError as error:
            raise _failure_of(error) from error
        return graph.replay


def _failure_of(error: RuntimeError) -> Exception:
    """What a capture failed with first: to end one that has failed is an error of its own."""
    first: BaseException = error
    while first.__context__ is not None:
        first = first.__context__
    if isinstance(first, torch.OutOfMemoryError):
        return first
    said = str(first).strip().partition("\n")[0]
    limit = f"CUDA graphs cannot be captured here ({said}); set it to do without them"
    return InvalidOptionError("enforce_eager", False, limit)
