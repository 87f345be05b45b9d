"""The tokenizer that a GGUF file carries in its metadata.

Two kinds are covered: `gpt2`, byte-level BPE with merges, where `tokenizer.ggml.pre` names how
text is split before merging; and `llama`, SentencePiece BPE, where a merge is as good as the score
of the token it makes. The backend is built from the lists in the file directly, which takes a
tenth of the time of a generic conversion.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.processors import TemplateProcessing

from pagoda.errors import ModelError, UnsupportedModelError

_CONTROL, _USER_DEFINED = 3, 4
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_SPACE = "▁"

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = "|".join([_ENDINGS, _LETTERS, r"\p{N}{1,3}", _SIGNS, _TAIL])
_QWEN2 = "|".join([_ENDINGS, _LETTERS, r"\p{N}", _SIGNS, _TAIL])
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = "|".join(
    [
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        _TAIL,
    ]
)
_DIGIT = r"\p{N}"


@dataclass(frozen=True, slots=True)
class Splitting:
    """How byte-level BPE cuts text into words before merging."""

    patterns: tuple[str, ...] = ()
    """Applied one after the other; a match stands alone."""
    gpt2: bool = False
    """Whether GPT-2's own pattern comes last."""
    ignore_merges: bool = False
    """Whether a word that is a token is taken whole."""
    add_bos: bool = False
    """Whether the text starts with the bos token where the file does not say."""

    def pre_tokenizer(self) -> PreTokenizer:
        """The same for the tokenizers library."""
        steps = [Split(Regex(pattern), "isolated") for pattern in self.patterns]
        last = ByteLevel(add_prefix_space=False, use_regex=self.gpt2)
        return pre_tokenizers.Sequence([*steps, last])


_LLAMA3_SPLITTING = Splitting((_LLAMA3,), ignore_merges=True, add_bos=True)
SPLITTINGS = {
    "default": Splitting(gpt2=True),
    "gpt-2": Splitting(gpt2=True),
    "smollm": Splitting((_DIGIT,), gpt2=True),
    "llama-bpe": _LLAMA3_SPLITTING,
    "llama3": _LLAMA3_SPLITTING,
    "llama-v3": _LLAMA3_SPLITTING,
    "qwen2": Splitting((_QWEN2,)),
    "deepseek-r1-qwen": Splitting((_QWEN2,)),
    "tekken": Splitting((_TEKKEN,), ignore_merges=True, add_bos=True),
}
"""`tokenizer.ggml.pre` → how text is split; the patterns are those the models were trained with."""


@dataclass(frozen=True, slots=True)
class GGUFTokenizer:
    """A tokenizer and what else the file says about text."""

    backend: Tokenizer
    special_tokens: dict[str, str]
    """bos_token, eos_token, unk_token and pad_token, those that the file has."""
    eos_token_ids: frozenset[int]
    chat_template: str | None


def gguf_tokenizer(metadata: Mapping[str, Any]) -> GGUFTokenizer:
    """The tokenizer in a file's metadata.

    Raises `UnsupportedModelError` for a kind that is not covered, `ModelError` for a list or id
    that is missing or wrong.
    """
    own = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    kind = own.get("model")
    if kind not in _BUILDERS:
        raise UnsupportedModelError(
            "tokenizer.ggml.model", kind, f"covered are {', '.join(_BUILDERS)}"
        )
    tokens = _strings(own, "tokens")
    backend, add_bos = _BUILDERS[kind](own, tokens)
    special_tokens = {
        name: tokens[token_id]
        for name, key in _SPECIAL_TOKENS.items()
        if (token_id := _token_id(own, key, tokens)) is not None
    }
    _add_whole_tokens(backend, tokens, own.get("token_type", []), special_tokens.values())
    _add_ends(backend, own, tokens, add_bos)
    return GGUFTokenizer(
        backend=backend,
        special_tokens=special_tokens,
        eos_token_ids=frozenset(
            token_id for key in _EOS_KEYS if (token_id := _token_id(own, key, tokens)) is not None
        ),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def _byte_level(own: Mapping[str, Any], tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    """Byte-level BPE with the file's merges; a file without `pre` splits as GPT-2 does."""
    name = own.get("pre", "default")
    if name not in SPLITTINGS:
        raise UnsupportedModelError(
            "tokenizer.ggml.pre", name, f"covered are {', '.join(SPLITTINGS)}"
        )
    splitting = SPLITTINGS[name]
    merges = [_pair(merge) for merge in _strings(own, "merges")]
    backend = _bpe(tokens, merges, ignore_merges=splitting.ignore_merges)
    backend.pre_tokenizer = splitting.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, splitting.add_bos


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(own: Mapping[str, Any], tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    """SentencePiece BPE: bytes stand in for characters that no token has."""
    scores = own.get("scores")
    if type(scores) is not list or len(scores) != len(tokens):
        raise ModelError("tokenizer.ggml.scores", scores, f"must be {len(tokens):,} numbers")
    unknown = _token_id(own, "unknown_token_id", tokens)
    backend = _bpe(
        tokens,
        _merges_by_score(tokens, scores),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else tokens[unknown],
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    ends: list[decoders.Decoder] = [decoders.Fuse()]
    if own.get("add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(_SPACE))
        ends.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), *ends]
    )
    return backend, True


_BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece}


def _merges_by_score(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the best token first."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    found = [
        (-scores[rank], ranks[token[:cut]], ranks[token[cut:]])
        for token, rank in ranks.items()
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    return [(tokens[left], tokens[right]) for _, left, right in sorted(found)]


def _bpe(tokens: Sequence[str], merges: Sequence[tuple[str, str]], **options: Any) -> Tokenizer:
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    try:
        return Tokenizer(BPE(vocabulary, merges, **options))
    except Exception as error:  # the library raises Exception itself
        raise ModelError(
            "tokenizer.ggml.merges", merges, f"do not fit the tokens: {error}"
        ) from error


def _add_whole_tokens(
    backend: Tokenizer, tokens: Sequence[str], kinds: Sequence[int], special: Collection[str]
) -> None:
    """Tokens that are matched before text is split: control tokens and those that the file gives a
    part to, which decoding may skip, and those a user defined."""
    if type(kinds) is not list:
        raise ModelError("tokenizer.ggml.token_type", kinds, "must be a list of numbers")
    for wanted, add in (
        (_CONTROL, backend.add_special_tokens),
        (_USER_DEFINED, backend.add_tokens),
    ):
        add(
            [
                AddedToken(token, normalized=False)
                for token, kind in zip(tokens, kinds, strict=False)
                if kind == wanted
            ]
        )
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])


def _add_ends(
    backend: Tokenizer, own: Mapping[str, Any], tokens: Sequence[str], add_bos: bool
) -> None:
    """The bos and eos tokens that encoding puts around a text."""
    wanted = {
        "bos_token_id": own.get("add_bos_token", add_bos),
        "eos_token_id": own.get("add_eos_token", False),
    }
    ends = {key: _token_id(own, key, tokens) for key, add in wanted.items() if add}
    bos, eos = ends.get("bos_token_id"), ends.get("eos_token_id")
    if bos is None and eos is None:
        return
    template = [*([tokens[bos]] if bos is not None else []), "$A"]
    template += [tokens[eos]] if eos is not None else []
    backend.post_processor = TemplateProcessing(
        single=template,
        special_tokens=[(tokens[end], end) for end in {bos, eos} if end is not None],
    )


def _strings(own: Mapping[str, Any], key: str) -> list[str]:
    value = own.get(key)
    if type(value) is not list or not value or type(value[0]) is not str:
        raise ModelError(f"tokenizer.ggml.{key}", value, "a list of strings is needed")
    return value


def _token_id(own: Mapping[str, Any], key: str, tokens: Sequence[str]) -> int | None:
    value = own.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < len(tokens):
        raise ModelError(f"tokenizer.ggml.{key}", value, f"must be below {len(tokens):,}")
    return value
