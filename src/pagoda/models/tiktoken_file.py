"""Tokenizers of tiktoken's kind: a file of ranks, and code for everything else.

A file of ranks says which bytes are tokens and which are merged first, but not how text is cut
before. Code that comes with a model says that, and is never run here: what is known of it by its
name is taken from a table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pagoda.errors import ModelError
from pagoda.models.json_file import read_json
from pagoda.models.splitting import SPLITTINGS, Splitting

_RANKS, _WHOLE, _CONFIG = "tiktoken.model", "tokenizer.json", "tokenizer_config.json"
_BY_CODE = {"tokenization_kimi.TikTokenTokenizer": "kimi-k2"}
"""Class in a model's own code → how text is split."""


def splitting_of_ranks(directory: Path) -> Splitting | None:
    """How text is split in a directory that has ranks alone; None: it has something better, or no
    such file.

    Raises `ModelError` where nothing says it.
    """
    if (directory / _WHOLE).is_file() or not (directory / _RANKS).is_file():
        return None
    code = _code_of(directory)
    if not isinstance(code, str) or code not in _BY_CODE:
        limit = f"{_RANKS} does not say how text is split, and code of a model is never run: known "
        limit += f"is that of {', '.join(_BY_CODE)}; else a {_WHOLE} has to lie beside it"
        raise ModelError(f"{_CONFIG} auto_map.AutoTokenizer", code, limit)
    return SPLITTINGS[_BY_CODE[code]]


def _code_of(directory: Path) -> Any:
    """The class of a tokenizer in the model's own code, as its config names it."""
    path = directory / _CONFIG
    named = read_json(path).get("auto_map") if path.is_file() else None
    code = named.get("AutoTokenizer") if isinstance(named, dict) else None
    return code[0] if isinstance(code, list) and code else code
