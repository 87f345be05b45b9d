"""A tokenizer's vocabulary, as the bytes that each token stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Set

import tokenizers

from pagoda.request import SamplingParams

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Vocabulary:
    """The bytes of each token where it continues a text.

    Three kinds of decoder are told apart:

    - byte level (GPT-2 and after: Llama 3, Qwen, SmolLM): a token is written in characters that
      stand for one byte each;
    - with byte fallback (SentencePiece: Llama 2, Mistral): `<0xE5>` is that byte, any other token
      is what the decoder makes of it behind another word;
    - any other: what the decoder makes of the token behind another word.

    "Behind another word" because decoders drop the space in front of a text's first word, and an
    output continues its prompt.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        kinds = _decoder_kinds(backend)
        self._is_byte_level = "ByteLevel" in kinds and kinds <= {"Sequence", "ByteLevel", "Fuse"}
        self._has_byte_fallback = "ByteFallback" in kinds
        self._anchor_id, self._anchor = (None, "") if self._is_byte_level else _anchor(backend)
        self._bytes: dict[int, bytes] = {}
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(each for each, token in added.items() if token.special)
        """Tokens that steer rather than speak, such as an end of sequence."""
        self.added_ids = frozenset(added)
        """These, and others that no merges make: names of roles, in some models."""

    def token_text(self, token_id: int) -> str:
        """The same as text; U+FFFD for bytes that are no character by themselves."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8, whole characters or parts of one; empty for an id that stands for nothing."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._bytes_of(token_id)
        return found

    def text_bytes(
        self, params: SamplingParams, shown_ids: Set[int] = frozenset()
    ) -> Callable[[int], bytes]:
        """What `token_bytes` are in an output's text: none of a special token that is left out.

        `shown_ids` are never left out.
        """
        skipped = self.special_ids - shown_ids if params.skip_special_tokens else None
        token_bytes = self.token_bytes
        if not skipped:
            return token_bytes
        return lambda token_id: b"" if token_id in skipped else token_bytes(token_id)

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            try:
                return bytes([_BYTE_OF[character] for character in token])
            except KeyError:  # an added token in plain text
                return token.encode()
        if self._has_byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return self._continuation(token_id).encode()

    def _continuation(self, token_id: int) -> str:
        if self._anchor_id is not None:
            both = self._backend.decode([self._anchor_id, token_id], skip_special_tokens=False)
            if both.startswith(self._anchor):
                return both[len(self._anchor) :]
        return self._backend.decode([token_id], skip_special_tokens=False)


def _decoder_kinds(backend: tokenizers.Tokenizer) -> frozenset[str]:
    """The types of the decoder and of those it is made of."""
    if backend.decoder is None:
        return frozenset()
    state = json.loads(backend.decoder.__getstate__())
    parts = state.get("decoders", [])
    return frozenset([state["type"], *(part["type"] for part in parts)])


def _anchor(backend: tokenizers.Tokenizer) -> tuple[int | None, str]:
    """A token that is a plain word, and its text at the start of a text."""
    for token_id in range(backend.get_vocab_size(with_added_tokens=False)):
        text = backend.decode([token_id])
        if text.isascii() and text.isalpha():
            return token_id, text
    return None, ""


def _byte_alphabet() -> Iterator[tuple[str, int]]:
    """GPT-2's characters for the 256 bytes: printable ones stand for themselves, the others are
    numbered from 256 on."""
    next_code = 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            yield chr(byte), byte
        else:
            yield chr(next_code), byte
            next_code += 1


_BYTE_OF = dict(_byte_alphabet())
