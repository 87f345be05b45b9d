"""Which tokens of a GGUF file end an answer."""

from __future__ import annotations

from typing import Any

import pytest

from gguf_files import tokenizer_keys
from pagoda.models.gguf_ends import end_token_ids
from pagoda.models.gguf_keys import CONTROL, USER_DEFINED, TextKeys

NORMAL = 1
END = 259
"""The id of <|im_end|>, which is a control token."""


def ends_of(**changes: Any) -> frozenset[int]:
    """Those of the byte-level tokenizer, changed."""
    keys = {**tokenizer_keys(), **{f"tokenizer.ggml.{key}": changes[key] for key in changes}}
    own = TextKeys({key: value for key, value in keys.items() if value is not None})
    return end_token_ids(own, own.tokens())


def with_ends(ends: dict[int, str], kind: int = CONTROL) -> dict[str, Any]:
    """Tokens and their types; no others are written as an end, nor of such a type."""
    tokens = [*tokenizer_keys()["tokenizer.ggml.tokens"]]
    kinds = [NORMAL] * len(tokens)
    tokens[END] = "<|im_sep|>"
    for token_id, token in ends.items():
        tokens[token_id], kinds[token_id] = token, kind
    return {"tokens": tokens, "token_type": kinds}


def test_every_id_that_a_key_names_ends_an_answer():
    assert ends_of(eot_token_id=256, eom_token_id=258) == {256, 257, 258, END}
    assert ends_of(**with_ends({}), eos_token_id=None) == frozenset()


@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED])
@pytest.mark.parametrize(
    "end",
    [
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<EOT>", "[EOT]", "[EOS]"),
        *("<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "<|return|>", "<|call|>"),
    ],
)
def test_an_end_that_no_key_names_is_known_by_its_text(end, kind):
    assert ends_of(**with_ends({270: end}, kind)) == {257, 270}


def test_an_end_that_is_plain_text_ends_nothing():
    assert ends_of(**with_ends({270: "<|im_end|>"}, NORMAL)) == {257}
    assert ends_of(tokens=with_ends({270: "<|im_end|>"})["tokens"], token_type=None) == {257}


@pytest.mark.parametrize("token", ["<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "</s>"])
def test_other_control_tokens_end_nothing(token):
    assert ends_of(**with_ends({270: token})) == {257}


def test_what_gpt_oss_thinks_ends_without_the_answer():
    harmony = {270: "<|end|>", 271: "<|return|>", 272: "<|call|>"}
    assert ends_of(**with_ends(harmony), eos_token_id=271) == {271, 272}
    assert ends_of(**with_ends(harmony), eos_token_id=271, eot_token_id=270) == {271, 272}
    del harmony[272]
    assert ends_of(**with_ends(harmony), eos_token_id=271) == {270, 271}
