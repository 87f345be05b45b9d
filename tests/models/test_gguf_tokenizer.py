"""Tokenizers built from GGUF metadata, against those that transformers builds."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, trainers

from gguf_files import tokenizer_keys
from pagoda.errors import ModelError, UnsupportedModelError
from pagoda.models.gguf_tokenizer import SPLITTINGS, gguf_tokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog, 1234 times; it's done!",
    "def main():\n    return 'x' * 10\n\n\n\tprint(\"hello\")",
    "Żółć, naïve café — 東京 🙂 ",
    "  two  spaces, CamelCase HTTPServer, 3.14159 and 2024-01-02",
]

TOKENS = "tokenizer.ggml.tokens"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def byte_level(pre: str | None = "gpt-2", **changes: Any) -> dict[str, Any]:
    """Metadata of the byte-level tokenizer, changed."""
    keys = {**tokenizer_keys(), "tokenizer.ggml.pre": pre}
    keys |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in keys.items() if value is not None}


def pieces(metadata: dict[str, Any], text: str) -> list[str]:
    """How text is cut before merging, in the byte alphabet (ASCII stands for itself)."""
    split = gguf_tokenizer(metadata).backend.pre_tokenizer
    return [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece, _ in split.pre_tokenize_str(text)]


@pytest.fixture(scope="module", params=SPLITTINGS)
def splitting(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    """Made once for all texts."""
    return gguf_tokenizer(byte_level(request.param)).backend


@given(text=st.text())
def test_any_text_comes_back_whatever_the_splitting(splitting, text):
    token_ids = splitting.encode(text, add_special_tokens=False).ids
    assert splitting.decode(token_ids, skip_special_tokens=False) == text


SAMPLE = "it's  12345\n\nHTTPServer's x_1"


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["it", "'s", " ", " 12345", "\n", "\n", "HTTPServer", "'s", " x", "_", "1"]),
        (
            "smollm",
            ["it", "'s", "  ", *"12345", "\n", "\n", "HTTPServer", "'s", " x", "_", "1"],
        ),
        (
            "llama-bpe",
            ["it", "'s", " ", " ", "123", "45", "\n\n", "HTTPServer", "'s", " x", "_", "1"],
        ),
        (
            "qwen2",
            ["it", "'s", " ", " ", *"12345", "\n\n", "HTTPServer", "'s", " x", "_", "1"],
        ),
        (
            "tekken",
            ["it", "'s", " ", " ", *"12345", "\n\n", "HTTPServer", "'s", " x", "_", "1"],
        ),
        (
            "command-r",
            ["it", "'s", "  ", *"12345", "\n", "\n", "HTTPServer", "'s", " x", "_", "1"],
        ),
        (
            "glm4",
            ["it", "'s", " ", " ", "123", "45", "\n\n", "HTTPServer", "'s", " x", "_", "1"],
        ),
        ("gpt-4o", ["it's", " ", " ", "123", "45", "\n\n", "HTTPServer's", " x", "_", "1"]),
        (
            "deepseek-llm",
            ["it", "'", "s", "  ", "12345", "\n", "\n", "HTTPServer", "'", "s", " x", "_", "1"],
        ),
        (
            "deepseek-v3",
            ["it", "'s", "  ", "123", "45", "\n\n", "HTTPServer", "'s", " x", "_", "1"],
        ),
        (
            "seed-coder",
            ["it", "'s", " ", " ", *"12345", "\n\n", "HTTPServer", "'s", " x", "_", "1"],
        ),
        ("tiny_aya", ["it's", "  ", "12", "345", "\n\n", "HTTPServer's", " x", "_", "1"]),
        ("kimi-k2", ["it's", " ", " ", "123", "45", "\n\n", "HTTPServer's", " x", "_", "1"]),
        (
            "falcon",
            [
                "it",
                "'",
                "s",
                " ",
                " ",
                "123",
                "45",
                "\n",
                "\n",
                "HTTPServer",
                "'",
                "s",
                " x",
                "_",
                "1",
            ],
        ),
    ],
)
def test_each_splitting_cuts_as_its_models_were_trained(pre, expected):
    assert pieces(byte_level(pre), SAMPLE) == expected


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("seed-coder", "x!?\n\ny", ["x", "!?", "\n\n", "y"]),
        ("qwen2", "x!?\n\ny", ["x", "!?\n\n", "y"]),
        ("deepseek-v3", "x!?\n\n.join", ["x", "!?\n\n", ".join"]),
        ("deepseek-llm", "a_b =1 ", ["a", "_", "b", " =", "1", " "]),
    ],
)
def test_signs_are_cut_from_what_is_beside_them(pre, text, expected):
    assert pieces(byte_level(pre), text) == expected


EAST = "用apple\u3042\u3044 12"


@pytest.mark.parametrize(
    ("pre", "lengths"), [("deepseek-llm", [3, 5, 6, 1, 2]), ("deepseek-v3", [3, 5, 6, 1, 2])]
)
def test_east_asian_words_stand_alone(pre, lengths):
    """In bytes: a sign of Chinese, a word of ASCII, two of kana, a space, a number."""
    assert [len(piece) for piece in pieces(byte_level(pre), EAST)] == lengths


SPLIT_BY_DEFAULT = {
    "It's 12345, (ok) a+b<=c?": ("It ' s Ġ 123 45 , Ġ ( ok ) Ġa + b <= c ?"),
    "x  y\n\n  z 7": "x Ġ Ġy ĊĊĠ Ġz Ġ 7",
    "don't_stop": "don ' t _ stop",
}
"""Text → words, as llama.cpp's four patterns cut it one after the other: signs first, so that the
apostrophe of an ending stands alone; numbers without the space before them, by three digits."""


@pytest.mark.parametrize("text", SPLIT_BY_DEFAULT)
def test_a_file_that_names_no_splitting_is_cut_as_llama_cpp_does(text, caplog):
    words = []
    for keys in ({"pre": "default"}, {"pre": None}):
        metadata = dict(tokenizer_keys())
        metadata |= {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
        backend = gguf_tokenizer(metadata).backend
        words.append([word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)])
    assert words[0] == words[1] == SPLIT_BY_DEFAULT[text].split()
    [warning] = caplog.messages
    assert "tokenizer.ggml.pre" in warning


def test_merges_are_applied_and_control_tokens_stand_alone():
    backend = gguf_tokenizer(byte_level()).backend
    encoded = backend.encode("he<|im_end|>h e")
    assert encoded.tokens == ["he", "<|im_end|>", "h", "Ġ", "e"]
    assert backend.decode(encoded.ids) == "heh e"


def test_a_word_that_is_a_token_is_taken_whole_where_merges_are_ignored():
    words = {"tokens": [*tokenizer_keys()["tokenizer.ggml.tokens"][:260], "cat"], "merges": ["c a"]}
    words["tokens"].append("ca")
    words["token_type"] = [NORMAL] * 256 + [CONTROL] * 4 + [NORMAL] * 2
    for pre, expected in (("llama-bpe", ["cat"]), ("qwen2", ["ca", "t"])):
        backend = gguf_tokenizer(byte_level(pre, **words)).backend
        assert backend.encode("cat", add_special_tokens=False).tokens == expected


def test_tokens_a_user_defined_stand_alone_and_are_not_skipped():
    kinds = [NORMAL] * 256 + [USER_DEFINED] * 4 + [NORMAL] * 28
    backend = gguf_tokenizer(byte_level(token_type=kinds)).backend
    encoded = backend.encode("a<|im_start|>b")
    assert encoded.tokens == ["a", "<|im_start|>", "b"]
    assert backend.decode(encoded.ids) == "a<|im_start|>b"


@pytest.mark.parametrize("kinds", [None, [NORMAL] * 288])
def test_tokens_with_a_part_stand_alone_whatever_their_type(kinds):
    keys = byte_level(bos_token_id=256, eos_token_id=257)
    del keys["tokenizer.ggml.token_type"]
    if kinds:
        keys["tokenizer.ggml.token_type"] = kinds
    backend = gguf_tokenizer(keys).backend
    names = [keys["tokenizer.ggml.tokens"][token_id] for token_id in (256, 257)]
    encoded = backend.encode(f"a{names[1]}b{names[0]}", add_special_tokens=False)
    assert encoded.tokens == ["a", names[1], "b", names[0]]
    assert backend.decode(encoded.ids) == "ab"


@pytest.mark.parametrize(
    ("pre", "changes", "expected"),
    [
        ("gpt-2", {}, [97]),
        ("gpt-2", {"add_bos_token": True}, [256, 97]),
        ("gpt-2", {"add_eos_token": True}, [97, 257]),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, [256, 97, 257]),
        ("llama-bpe", {}, [256, 97]),
        ("llama-bpe", {"add_bos_token": False}, [97]),
        ("llama-bpe", {"bos_token_id": None}, [97]),
    ],
)
def test_the_ends_of_a_text_are_those_the_file_asks_for(pre, changes, expected):
    assert gguf_tokenizer(byte_level(pre, **changes)).backend.encode("a").ids == expected


def test_every_id_that_ends_an_answer_is_found():
    found = gguf_tokenizer(byte_level(eot_token_id=259, eom_token_id=258))
    assert found.eos_token_ids == {257, 258, 259}


def test_special_tokens_and_the_template_are_passed_on():
    found = gguf_tokenizer(byte_level())
    assert found.special_tokens == {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    assert found.chat_template == tokenizer_keys()["tokenizer.chat_template"]


@pytest.mark.parametrize("none", [2**32 - 1, 288, -1])
@pytest.mark.parametrize(
    ("key", "name"), [("padding_token_id", "pad_token"), ("unknown_token_id", "unk_token")]
)
def test_a_file_may_say_that_it_has_no_token_for_a_part(key, name, none, caplog):
    caplog.set_level("INFO", "pagoda")
    assert gguf_tokenizer(byte_level(**{key: 7})).special_tokens[name] == byte_level()[TOKENS][7]
    assert caplog.messages == []
    assert name not in gguf_tokenizer(byte_level(**{key: none})).special_tokens
    [said] = caplog.messages
    assert f"tokenizer.ggml.{key} is {none}, which is no token" in said


@pytest.fixture(scope="module")
def sentencepiece() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """A BPE with byte fallback as Llama's tokenizer.json has it, and the same as GGUF metadata."""
    own = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    own.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    own.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=520, special_tokens=["<unk>", "<s>", "</s>", *fallback], show_progress=False
    )
    own.train_from_iterator([text for text in TEXTS for _ in range(3)], trainer)
    state = own.get_vocab()
    tokens = sorted(state, key=state.__getitem__)
    # training marks its special tokens as added; in Llama's file the bytes are not
    own = tokenizers.Tokenizer.from_str(without_added(own.to_str()))
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(tokens) - 259)
    scores = [0.0] * 259 + [float(-rank) for rank in range(len(tokens) - 259)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return own, metadata


def without_added(text: str) -> str:
    return re.sub(r'"added_tokens": ?\[.*?\]', '"added_tokens":[]', text, flags=re.DOTALL)


@pytest.mark.parametrize("text", [*TEXTS, "", " ", "a", "\n\n  x", "unseen: ŵ 漢字 🚀"])
def test_sentencepiece_merges_by_score(sentencepiece, text):
    own, metadata = sentencepiece
    backend = gguf_tokenizer(metadata).backend
    expected = own.encode(text, add_special_tokens=False)
    encoded = backend.encode(text)
    assert encoded.ids == [1, *expected.ids]
    assert backend.decode(encoded.ids) == own.decode(expected.ids) == text


def test_sentencepiece_may_leave_the_first_space_out(sentencepiece):
    metadata = {**sentencepiece[1], "tokenizer.ggml.add_space_prefix": False}
    backend = gguf_tokenizer(metadata).backend
    assert backend.encode("fox", add_special_tokens=False).tokens[0] != "▁"
    assert backend.decode(backend.encode(" fox").ids) == " fox"


def test_sentencepiece_may_have_no_unknown_token(sentencepiece, caplog):
    caplog.set_level("INFO", "pagoda")
    keys = {**sentencepiece[1], "tokenizer.ggml.unknown_token_id": 2**32 - 1}
    backend = gguf_tokenizer(keys).backend
    assert len(caplog.messages) == 1
    assert backend.decode(backend.encode("unseen: ŵ 漢字 🚀").ids) == "unseen: ŵ 漢字 🚀"


def test_white_space_behind_a_whole_token_goes_with_it_in_phi3_alone(sentencepiece):
    keys = {**sentencepiece[1], "tokenizer.ggml.add_space_prefix": False}
    tokens = keys["tokenizer.ggml.tokens"]
    for architecture, expected in (("phi3", "</s> a <s> ▁ a"), ("llama", "</s> ▁ a <s> ▁ a")):
        backend = gguf_tokenizer({**keys, "general.architecture": architecture}).backend
        token_ids = backend.encode("</s> a<s> a", add_special_tokens=False).ids
        assert " ".join(tokens[token_id] for token_id in token_ids) == expected


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"model": "bert"}, UnsupportedModelError, "tokenizer.ggml.model='bert': covered are gpt2"),
        ({"model": None}, UnsupportedModelError, "tokenizer.ggml.model=None"),
        ({"pre": "viking"}, UnsupportedModelError, "tokenizer.ggml.pre='viking': covered are"),
        ({"tokens": None}, ModelError, "tokenizer.ggml.tokens=None: a list of strings is needed"),
        ({"tokens": []}, ModelError, "tokenizer.ggml.tokens=[]"),
        ({"merges": None}, ModelError, "tokenizer.ggml.merges=None"),
        (
            {"merges": ["h q"]},
            ModelError,
            "tokenizer.ggml.merges=[('h', 'q')]: do not fit the tokens",
        ),
        (
            {"merges": ["hq"]},
            ModelError,
            "tokenizer.ggml.merges=[('hq', '')]: do not fit the tokens",
        ),
        ({"eos_token_id": 288}, ModelError, "tokenizer.ggml.eos_token_id=288: must be below 288"),
        ({"bos_token_id": 2**32 - 1}, ModelError, "bos_token_id=4294967295: must be below 288"),
        ({"eot_token_id": -1}, ModelError, "tokenizer.ggml.eot_token_id=-1: must be below 288"),
        ({"padding_token_id": "0"}, ModelError, "tokenizer.ggml.padding_token_id='0'"),
        ({"bos_token_id": "0"}, ModelError, "tokenizer.ggml.bos_token_id='0'"),
        ({"model": "llama"}, ModelError, "tokenizer.ggml.scores=[]: must be 288 numbers"),
        ({"token_type": 3}, ModelError, "tokenizer.ggml.token_type=3"),
        ({"token_type": [1, 3]}, ModelError, "token_type='2 numbers': must be 288, one for each"),
        ({"token_type": [1] * 289}, ModelError, "token_type='289 numbers': must be 288"),
        (
            {"token_type": [99] * 288},
            ModelError,
            "token_type='288 numbers': none is a type of tokens",
        ),
    ],
)
def test_what_is_wrong_or_not_covered_is_refused_by_its_key(changes, error, match):
    with pytest.raises(error, match=re.escape(match)):
        gguf_tokenizer(
            byte_level(**changes) if "pre" not in changes else byte_level(changes["pre"])
        )
