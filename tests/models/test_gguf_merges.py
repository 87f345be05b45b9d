"""The merges of a SentencePiece vocabulary, which files do not list."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.errors import ModelError
from pagoda.models.gguf_merges import MOST_CHARACTERS, MOST_MERGES, merges_by_score

WORDS = st.lists(st.text("ab", min_size=1, max_size=5), unique=True)


@given(tokens=WORDS, chance=st.randoms(use_true_random=False))
def test_every_cut_whose_parts_are_tokens_is_a_merge_the_best_token_first(tokens, chance):
    scores = [float(chance.randrange(3)) for _ in tokens]
    expected = sorted(
        (-score, tokens.index(token[:cut]), tokens.index(token[cut:]))
        for token, score in zip(tokens, scores, strict=True)
        for cut in range(1, len(token))
        if {token[:cut], token[cut:]} <= {*tokens}
    )
    pairs = [(tokens[left], tokens[right]) for _, left, right in expected]
    assert merges_by_score(tokens, scores) == pairs


def test_what_would_take_more_merges_than_any_model_has_is_refused():
    words = (itertools.product("ab", repeat=length) for length in range(1, 17))
    tokens = ["".join(word) for each in words for word in each]
    limit = f"in at most {MOST_MERGES:,} ways"
    with pytest.raises(ModelError, match=re.escape("tokenizer.ggml.tokens=")) as refused:
        merges_by_score(tokens, [0.0] * len(tokens))
    assert limit in str(refused.value)
    assert len(merges_by_score(tokens[: 2**15], [0.0] * len(tokens))) < MOST_MERGES


def test_merges_of_more_text_than_any_model_has_are_refused():
    tokens = [letter * length for letter in "abcdefgh" for length in range(1, 1023)]
    with pytest.raises(ModelError, match=f"of {MOST_CHARACTERS:,} characters in all"):
        merges_by_score(tokens, [0.0] * len(tokens))
    few = [token for token in tokens if len(token) < 100]
    assert len(merges_by_score(few, [0.0] * len(few))) == 8 * sum(range(99))
