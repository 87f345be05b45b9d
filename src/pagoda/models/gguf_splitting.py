"""How byte-level BPE of GGUF files cuts text into words before merging."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split

DEFAULT = "default"
"""The name of what holds where a file has none."""

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = "|".join([_ENDINGS, _LETTERS, r"\p{N}{1,3}", _SIGNS, _TAIL])
_QWEN2 = "|".join([_ENDINGS, _LETTERS, r"\p{N}", _SIGNS, _TAIL])
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_CAPITALS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = "|".join([_CASED, _CAPITALS, r"\p{N}", _PATHS, _TAIL])
_GPT4O = "|".join([f"{_CASED}{_ENDINGS}?", f"{_CAPITALS}{_ENDINGS}?", r"\p{N}{1,3}", _PATHS, _TAIL])
_THREES = r"\d{1,3}(?=(?:\d{3})*\b)"
"""Numbers by three digits, counted from their end."""
_DIGIT = r"\p{N}"
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_DEFAULT = (r"[\p{P}$+<=>^~|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9]{3}")
"""Signs, GPT-2's words, numbers, and numbers by three: what llama.cpp splits by where a file names
nothing better."""


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
_GPT4_SPLITTING = Splitting((_LLAMA3,))
_BY_DIGIT = Splitting((_DIGIT,), gpt2=True)
SPLITTINGS = {
    DEFAULT: Splitting(_DEFAULT),
    "gpt-2": Splitting(gpt2=True),
    "olmo": Splitting(gpt2=True),
    "exaone4": Splitting(gpt2=True),
    "smollm": _BY_DIGIT,
    "command-r": _BY_DIGIT,
    "refact": _BY_DIGIT,
    "starcoder": _BY_DIGIT,
    "llama-bpe": _LLAMA3_SPLITTING,
    "llama3": _LLAMA3_SPLITTING,
    "llama-v3": _LLAMA3_SPLITTING,
    "dbrx": _GPT4_SPLITTING,
    "glm4": _GPT4_SPLITTING,
    "chatglm-bpe": _GPT4_SPLITTING,
    "qwen2": Splitting((_QWEN2,)),
    "deepseek-r1-qwen": Splitting((_QWEN2,)),
    "tekken": Splitting((_TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o": Splitting((_GPT4O,)),
    "tiny_aya": Splitting((_THREES, _GPT4O)),
}
"""`tokenizer.ggml.pre` → how text is split; but for the default, the patterns are those the models
were trained with. Granite's is refact or dbrx, that of OLMo 2 and Phi-4 dbrx, Phi-4-mini's gpt-4o,
Cohere 2's command-r or tiny_aya."""
