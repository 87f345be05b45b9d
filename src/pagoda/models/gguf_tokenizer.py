"""The tokenizer that a GGUF file carries in its metadata.

Two kinds are covered: `gpt2`, byte-level BPE with merges, where `tokenizer.ggml.pre` names how
text is split before merging; and `llama`, SentencePiece BPE, where a merge is as good as the score
of the token it makes. The backend is built from the lists in the file directly, which takes a
tenth of the time of a generic conversion.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.gguf_ends import end_token_ids
from pagoda.models.gguf_keys import CONTROL, USER_DEFINED, TextKeys
from pagoda.models.gguf_merges import merges_by_score
from pagoda.models.splitting import DEFAULT, SPLITTINGS

logger = logging.getLogger("pagoda")

_SPACE = "▁"


@dataclass(frozen=True, slots=True)
class GGUFTokenizer:
    """A tokenizer and what else the file says about text."""

    backend: Tokenizer
    special_tokens: dict[str, str]
    """bos_token, eos_token, unk_token and pad_token, those that the file has."""
    eos_token_ids: frozenset[int]
    """They end an answer."""
    chat_template: str | None


def gguf_tokenizer(metadata: Mapping[str, Any]) -> GGUFTokenizer:
    """The tokenizer in a file's metadata.

    Raises `UnsupportedModelError` for a kind that is not covered, `ModelError` for a list or id
    that is missing or wrong.
    """
    own = TextKeys(metadata)
    kind = own.text("model")
    if kind not in _BUILDERS:
        raise UnsupportedModelError(own.name("model"), kind, f"covered are {', '.join(_BUILDERS)}")
    tokens = own.tokens()
    backend, add_bos = _BUILDERS[kind](own, tokens)
    special_tokens = _special_tokens(own, tokens)
    kinds, special = own.token_types(len(tokens)), special_tokens.values()
    _add_whole_tokens(backend, tokens, kinds, special, _strips_spaces(metadata, kind))
    _add_ends(backend, own, tokens, add_bos)
    return GGUFTokenizer(
        backend=backend,
        special_tokens=special_tokens,
        eos_token_ids=end_token_ids(own, tokens),
        chat_template=own.chat_template(),
    )


_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_MAY_BE_NONE = ("unknown_token_id", "padding_token_id")
"""A file may say there that it has none, by an id that is no token's."""


def _special_tokens(own: TextKeys, tokens: Sequence[str]) -> dict[str, str]:
    """The tokens that the file gives a part to, by transformers' names of the parts."""
    found = {}
    for name, key in _SPECIAL_TOKENS.items():
        find = own.optional_token_id if key in _MAY_BE_NONE else own.token_id
        token_id = find(key, len(tokens))
        if token_id is not None:
            found[name] = tokens[token_id]
        elif (value := own.metadata.get(own.name(key))) is not None:
            logger.info("%s is %s, which is no token: there is none", own.name(key), value)
    return found


def _byte_level(own: TextKeys, tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    """Byte-level BPE with the file's merges; a file that names no splitting gets llama.cpp's."""
    name = own.text("pre")
    if name is None:
        logger.warning(
            "the file does not say how text is split into words (%s): it is split as llama.cpp "
            "does then, which may not be what the model was trained with",
            own.name("pre"),
        )
        name = DEFAULT
    if name not in SPLITTINGS:
        raise UnsupportedModelError(own.name("pre"), name, f"covered are {', '.join(SPLITTINGS)}")
    splitting = SPLITTINGS[name]
    merges = [_pair(merge) for merge in own.strings("merges")]
    backend = _bpe(tokens, merges, ignore_merges=splitting.ignore_merges)
    backend.pre_tokenizer = splitting.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, splitting.add_bos


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(own: TextKeys, tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    """SentencePiece BPE: bytes stand in for characters that no token has."""
    scores = own.numbers("scores")
    if len(scores) != len(tokens):
        raise ModelError(own.name("scores"), scores, f"must be {len(tokens):,} numbers")
    unknown = own.optional_token_id("unknown_token_id", len(tokens))
    backend = _bpe(
        tokens,
        merges_by_score(tokens, scores),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else tokens[unknown],
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    ends: list[decoders.Decoder] = [decoders.Fuse()]
    if own.switch("add_space_prefix", default=True):
        steps.insert(0, normalizers.Prepend(_SPACE))
        ends.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), *ends]
    )
    return backend, True


_BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece}


def _bpe(tokens: Sequence[str], merges: Sequence[tuple[str, str]], **options: Any) -> Tokenizer:
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    try:
        return Tokenizer(BPE(vocabulary, merges, **options))
    except Exception as error:  # the library raises Exception itself
        raise ModelError(
            "tokenizer.ggml.merges", merges, f"do not fit the tokens: {error}"
        ) from error


def _add_whole_tokens(
    backend: Tokenizer,
    tokens: Sequence[str],
    kinds: Sequence[int],
    special: Collection[str],
    strips_spaces: bool,
) -> None:
    """Tokens that are matched before text is split: control tokens and those that the file gives a
    part to, which decoding may skip, and those a user defined."""

    def added(token: str) -> AddedToken:
        rstrip = strips_spaces and token not in _LEAVE_SPACES
        return AddedToken(token, normalized=False, rstrip=rstrip)

    for wanted, add in (
        (CONTROL, backend.add_special_tokens),
        (USER_DEFINED, backend.add_tokens),
    ):
        add([added(token) for token, kind in zip(tokens, kinds, strict=False) if kind == wanted])
    backend.add_special_tokens([added(token) for token in special])


_LEAVE_SPACES = ("<unk>", "<s>", "<|endoftext|>")


def _strips_spaces(metadata: Mapping[str, Any], kind: str) -> bool:
    """Whether white space behind whole tokens goes with them: in Phi-3, which no key tells."""
    return metadata.get("general.architecture") == "phi3" and kind == "llama"


def _add_ends(backend: Tokenizer, own: TextKeys, tokens: Sequence[str], add_bos: bool) -> None:
    """The bos and eos tokens that encoding puts around a text."""
    wanted = {
        "bos_token_id": own.switch("add_bos_token", default=add_bos),
        "eos_token_id": own.switch("add_eos_token", default=False),
    }
    ends = {key: own.token_id(key, len(tokens)) for key, add in wanted.items() if add}
    bos, eos = ends.get("bos_token_id"), ends.get("eos_token_id")
    if bos is None and eos is None:
        return
    template = [*([tokens[bos]] if bos is not None else []), "$A"]
    template += [tokens[eos]] if eos is not None else []
    backend.post_processor = TemplateProcessing(
        single=template,
        special_tokens=[(tokens[end], end) for end in {bos, eos} if end is not None],
    )
