"""Triton's interpreter as tests use it: its language and rules of types, and NumPy for the rest.

Triton's own runs one program after the other, and takes some fifty functions for each operation of
each. Here programs that go the same way are run together (`programs`): whatever a kernel computes
has an axis of programs in front of its own, of length 1 where all have the same. So an operation is
a few steps of NumPy for all of them.

What a GPU would compute wrongly without a word is an error: see `operands`.

To be imported by `triton_device` alone, which has chosen the interpreter.
"""

from __future__ import annotations

from triton_interpreter import blocks, language, memory, operands, programs, shapes, sources


def patch() -> None:
    """Have Triton's interpreter work so, from now on."""
    for part in (blocks, operands, shapes, memory, programs, sources, language):
        part.patch()
