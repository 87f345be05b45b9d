"""The order of rows of q and k that makes a rotation of neighbours one of halves.

Pagoda rotates number i of a head with number i + rotary_dim / 2. GLM-4, Cohere, DeepSeek and Llama
in GGUF files store heads for a rotation of i with i + 1. Put into the order

    0 2 4 … | 1 3 5 … | what does not rotate

rows of q and k give the same products of queries and keys, since both are permuted alike. Biases,
and the weights of a norm over a head, follow the same order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def half_split_order(head_dim: int, rotary_dim: int, first: int = 0) -> npt.NDArray[np.int64]:
    """[head_dim]: at each place of a head the row that is stored for it, of heads of neighbours.

    `rotary_dim` numbers of a head rotate, an even number, from number `first` on.
    """
    order = np.arange(head_dim, dtype=np.int64)
    rotated = slice(first, first + rotary_dim)
    order[rotated] = order[rotated].reshape(-1, 2).T.ravel()
    return order
