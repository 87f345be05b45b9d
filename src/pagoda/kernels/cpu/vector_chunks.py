"""A codec's vector in memory, sixteen numbers at a time."""

from __future__ import annotations

from typing import Any

from pagoda.kernels.cpu.vector import F32, floats, index, load_vector
from pagoda.kernels.vector_code import CHUNK


def chunk_of(builder: Any, x: Any, chunk: int) -> Any:
    """[16] float32 of the vector at an address."""
    source = builder.inttoptr(x, F32.as_pointer())
    return load_vector(builder, builder.gep(source, [index(chunk * CHUNK)]), floats(CHUNK))
