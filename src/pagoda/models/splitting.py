"""How byte-level BPE cuts text into words before merging, where a model's files do not say it."""

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
_NOT_HAN = r"&&[^\p{Han}]]"
"""Ends a class that has no Chinese signs."""
_UPPER_ELSE, _LOWER_ELSE = (each.removesuffix("]") + _NOT_HAN for each in (_UPPER, _LOWER))
_KIMI = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER_ELSE}*{_LOWER_ELSE}+{_ENDINGS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER_ELSE}+{_LOWER_ELSE}*{_ENDINGS}?",
        r"\p{N}{1,3}",
        _SIGNS,
        _TAIL,
    ]
)
_THREES = r"\d{1,3}(?=(?:\d{3})*\b)"
"""Numbers by three digits, counted from their end."""
_DIGIT = r"\p{N}"
_SEED_SIGNS = r" ?[^\s\p{L}\p{N}\r\n]+"
_SEED = "|".join([_ENDINGS, _LETTERS, _DIGIT, _SEED_SIGNS, _TAIL])
_CASED_LETTERS = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A
38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF
1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D
1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4
1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F
2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F
A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3
104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""
"""The letters with two cases that DeepSeek's first tokenizers knew."""
_SIGNS_AND_WIDE = "21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002"
_EAST_ASIAN = "4E00-9FA5 800-4E00 AC00-D7FF"


def _class_of(ranges: str) -> str:
    """Characters by ranges of their code points in hexadecimal digits, as a class of a pattern."""
    ends = [[rf"\x{{{end}}}" for end in each.split("-")] for each in ranges.split()]
    return f"[{''.join('-'.join(each) for each in ends)}]"


_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?{_class_of(_CASED_LETTERS)}+",
    rf"\s?{_class_of(_SIGNS_AND_WIDE)}+",
    r"\s+$",
    f"{_class_of(_EAST_ASIAN)}+",
    r"\p{N}+",
)
_ASCII_SIGNS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK_WORDS = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    f"{_class_of('4E00-9FA5 3040-309F 30A0-30FF')}+",
    rf"{_ASCII_SIGNS}[A-Za-z]+|{_DEEPSEEK_WORDS}|{_TAIL}",
)
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_DEFAULT = (r"[\p{P}$+<=>^~|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9]{3}")
"""Signs, GPT-2's words, numbers, and numbers by three: what llama.cpp splits by where a file names
nothing better."""
_FALCON = (r"[\p{P}$+<=>^~|`]+", *_DEFAULT[1:])


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
    "phi-2": Splitting(gpt2=True),
    "falcon": Splitting(_FALCON),
    "kimi-k2": Splitting((_KIMI,), ignore_merges=True),
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
    "stablelm2": Splitting((_QWEN2,)),
    "deepseek-r1-qwen": Splitting((_QWEN2,)),
    "deepseek-llm": Splitting(_DEEPSEEK_LLM),
    "deepseek-v3": Splitting(_DEEPSEEK_V3),
    "seed-coder": Splitting((_SEED,)),
    "tekken": Splitting((_TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o": Splitting((_GPT4O,)),
    "tiny_aya": Splitting((_THREES, _GPT4O)),
}
"""`tokenizer.ggml.pre` → how text is split; but for the default, the patterns are those the models
were trained with. DeepSeek-V2's is deepseek-llm, Seed-OSS's seed-coder, Granite's refact or dbrx,
that of OLMo 2 and Phi-4 dbrx, Phi-4-mini's gpt-4o, Cohere 2's command-r or tiny_aya."""
