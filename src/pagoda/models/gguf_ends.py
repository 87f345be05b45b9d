"""The tokens of a GGUF file that end an answer.

Keys name the end of a text and, in some files, those of a turn and of a message that waits for a
tool. Where a file names no end of a turn, its chats would go on behind it. So tokens that are
written as such ends count too, as in llama.cpp, but never those that are typed as plain text.
Source: github.com/ggml-org/llama.cpp, `src/llama-vocab.cpp`, `special_eog_ids`; its ends of files
and repositories are left out, since they are for filling in code.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.models.gguf_keys import CONTROL, USER_DEFINED, TextKeys

_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ENDS = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<EOT>", "[EOT]"),
        *("_<EOT>", "<end_of_utterance>", "<｜end▁of▁sentence｜>"),
        *("<|endoftext|>", "<|end_of_text|>", "[EOS]"),
        *("<|eom_id|>", "<|return|>", "<|call|>"),
    }
)
"""Of a turn, of a text, and of a message."""
_END_OF_MESSAGE, _ENDS_OF_ANSWERS = "<|end|>", frozenset({"<|return|>", "<|call|>"})
"""Of gpt-oss: what it thinks ends with the first, and its answer comes behind."""


def end_token_ids(own: TextKeys, tokens: Sequence[str]) -> frozenset[int]:
    """Those that keys name, and those that are no plain text and written as an end.

    Raises `ModelError` for a key that names no token, and as `TextKeys.token_types`.
    """
    named = (own.token_id(key, len(tokens)) for key in _KEYS)
    kinds = own.token_types(len(tokens))
    found = {
        *(token_id for token_id in named if token_id is not None),
        *(
            token_id
            for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
            if kind in (CONTROL, USER_DEFINED) and token in _ENDS
        ),
    }
    if {tokens[token_id] for token_id in found} >= _ENDS_OF_ANSWERS:
        found = {token_id for token_id in found if tokens[token_id] != _END_OF_MESSAGE}
    return frozenset(found)
