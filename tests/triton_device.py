"""Where Triton kernels run in tests: on a GPU where there is one, else in Triton's interpreter.

Importing this chooses, and has to come before the first import of triton: the functions of its
language are made for one or the other as they are loaded.

TRITON_ONE_BY_ONE=1 leaves the interpreter as it is, which runs one program after the other and
takes some fifteen times as long: what `triton_interpreter` computes can be held against it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

import torch

HAS_GPU = torch.cuda.is_available()

if not HAS_GPU and os.environ.get("TRITON_INTERPRET") != "1":
    if "triton.language" in sys.modules:
        raise RuntimeError("triton was imported before its interpreter was chosen")
    os.environ["TRITON_INTERPRET"] = "1"

DEVICE = torch.device("cuda" if HAS_GPU else "cpu")

CHECKS_WHAT_GPUS_DO = not HAS_GPU and os.environ.get("TRITON_ONE_BY_ONE") != "1"
"""What a GPU would compute wrongly without a word, or would not survive, is an error."""

if CHECKS_WHAT_GPUS_DO:
    import triton_interpreter

    triton_interpreter.patch()


@contextmanager
def one_by_one() -> Generator[None]:
    """Meanwhile a program begins when the one before it has stored, as it may on a GPU.

    Else programs that go the same way load before any of them stores, and it is not seen where one
    of them needs what another one overwrites.
    """
    if not CHECKS_WHAT_GPUS_DO:
        yield
        return
    from triton_interpreter import programs

    together, programs.MOST_TOGETHER = programs.MOST_TOGETHER, 1
    try:
        yield
    finally:
        programs.MOST_TOGETHER = together
