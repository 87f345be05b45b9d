"""One activation, as products and kernels take it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pagoda.kernels.array import Array
from pagoda.storage.kv_storage import as_array

_MIN_ROWS = 2


class Buffer(NamedTuple):
    """Three views of the same numbers."""

    padded: torch.Tensor
    """[at least 2 rows, width]; rows past the batch's are zero or stale."""
    tensor: torch.Tensor
    """[num_tokens, width], the batch's rows of it."""
    array: Array
    """The same as `tensor`; bfloat16 as uint16."""

    @classmethod
    def zeros(cls, num_tokens: int, width: int, dtype: torch.dtype) -> Buffer:
        padded = torch.zeros(max(num_tokens, _MIN_ROWS), width, dtype=dtype)
        tensor = padded[:num_tokens]
        return cls(padded, tensor, as_array(tensor))
