"""The model's vocabulary as llguidance reads it, in which a constraint's text stays text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import llguidance

    from pagoda.models.tokenizer import Tokenizer


def vocabulary_of(tokenizer: Tokenizer, num_tokens: int) -> llguidance.LLTokenizer:
    """The vocabulary of a tokenizer, with as many tokens as the model has logits.

    Raises ValueError where llguidance cannot read the tokenizer.
    """
    import llguidance

    ends = sorted(tokenizer.eos_token_ids)
    backend = tokenizer.backend.to_str()
    plain = llguidance.LLTokenizer(backend, n_vocab=num_tokens, eos_token=ends, slices=[])
    speller = llguidance.TokenizerWrapper(_Speller(plain))
    return llguidance.LLTokenizer(speller, eos_token=ends)


class _Speller:
    """Spells the text that a constraint leaves no choice of.

    The model's tokenizer takes `<|im_end|>` in a text for that special token, which stands for no
    text where llguidance follows it. The longest ordinary tokens spell such a text instead. The
    names are those that llguidance asks for.
    """

    bos_token_id = None

    def __init__(self, plain: llguidance.LLTokenizer) -> None:
        self._plain = plain
        token_ids = range(plain.vocab_size)
        self.eos_token_id = plain.eos_token
        self.tokens = [plain.decode_bytes([token_id]) for token_id in token_ids]
        self.special_token_ids = [each for each in token_ids if plain.is_special_token(each)]
        self._special_ids = frozenset(self.special_token_ids)

    def __call__(self, text: bytes) -> list[int]:
        """The tokens of `text`, which is valid UTF-8."""
        token_ids = self._plain.tokenize_bytes(text)
        if self._special_ids.isdisjoint(token_ids):
            return token_ids
        return self._plain.greedy_tokenize(text.decode())
