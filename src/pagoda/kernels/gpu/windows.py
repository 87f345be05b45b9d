"""What rows see where they do not see every token: data of each sequence.

    tokens   0 … sinks - 1   |   · · · let go · · ·   |   position - window + 1 … position
    asked by `sink_query`                                 `query`

Where `Windows` is None every row sees every token, and kernels are compiled without all this.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

NO_WINDOW = tl.constexpr(2**31 - 1)
"""Of rows that see all tokens before them."""


class Windows(NamedTuple):
    """Of one group of layers; what lies between sinks and window is never read."""

    sizes: Tensor
    """[sequences, 2] int32, contiguous: how many tokens a row sees, its own included, and how many
    sinks."""
    sink_query: Tensor | None
    """As the queries, rotated as if the window followed right behind the sinks; None: no sequence
    has any."""


def window_tensors(windows: Windows | None) -> tuple[Tensor | None, Tensor | None]:
    """What kernels take."""
    return (None, None) if windows is None else (windows.sizes, windows.sink_query)


class SinkQueries(NamedTuple):
    """Where a rotation writes queries a second time."""

    query: Tensor
    """As the queries; `Windows.sink_query` once it is written."""
    positions: Tensor
    """[tokens] int32, contiguous: from where each row sees its sinks; without any, its own"""


def sink_tensors(sinks: SinkQueries | None, query: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """What kernels take that rotate `query`."""
    if sinks is None:
        return None, None
    assert (sinks.query.shape, sinks.query.dtype) == (query.shape, query.dtype)
    assert sinks.positions.shape == query.shape[:1]
    assert sinks.query.is_contiguous()
    assert sinks.positions.is_contiguous()
    return sinks.query, sinks.positions


@triton.jit
def num_sinks(sizes, sequence):
    """Tokens that rows of a sequence see beside their window."""
    return tl.load(sizes + 2 * sequence + 1)


@triton.jit
def first_in_window(position, sizes, sequence, has_sinks: tl.constexpr):
    """The first token behind the sinks that a row sees; beyond the row where sinks are all."""
    first = tl.maximum(position - tl.load(sizes + 2 * sequence) + 1, 0)
    if has_sinks:
        first = tl.maximum(first, num_sinks(sizes, sequence))
    return first
