"""Streamed text equals text decoded at once, for three kinds of tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from pagoda.engine.detokenizer import Detokenizer
from pagoda.engine.vocabulary import Vocabulary
from pagoda.request import SamplingParams
from pagoda.server.text_offsets import TextOffsets

CORPUS = [
    "the quick brown fox",
    "héllo wörld",
    "日本語 日本",
    "👩‍🚀👩‍🚀 и так далее",
    "a  b\n\n\tc",
] * 3
TEXT = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("the o日👩")))
STOPS = st.lists(
    st.one_of(st.text("the o日👩", min_size=1, max_size=4), TEXT.filter(bool)), max_size=3
)


@dataclass(frozen=True)
class Backed:
    """As much of a tokenizer as the detokeniser needs."""

    backend: tokenizers.Tokenizer


@cache
def byte_level() -> Backed:
    """As GPT-2, Llama 3, Qwen and SmolLM have it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(CORPUS, BpeTrainer(vocab_size=380, initial_alphabet=alphabet))
    backend.add_special_tokens(["<|end|>", "<|an other|>"])
    backend.add_tokens(["<think>", "two words", "ünïcode Ġ", "日 x"])
    return Backed(backend)


@cache
def sentencepiece() -> Backed:
    """As Llama 2 and Mistral have it: words begin with ▁, other characters fall back to bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "t", "h", "e", "o", "日", "th", "▁th", "▁the"]
    merges = [("t", "h"), ("▁", "th"), ("▁th", "e")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Backed(backend)


@cache
def word_pieces() -> Backed:
    """A decoder of which nothing special is known."""
    words = ["[UNK]", "the", "quick", "##er", "fox", ",", "日"]
    backend = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([AddedToken("[UNK]")])
    return Backed(backend)


def encode(tokenizer: Backed, text: str) -> list[int]:
    return tokenizer.backend.encode(text, add_special_tokens=False).ids


def stream(
    detokenizer: Detokenizer, token_ids: Sequence[int], size: int = 1, flush: bool = True
) -> list[str]:
    """The deltas of each append and of the flush, `size` tokens at a time."""
    deltas = []
    for start in range(0, len(token_ids), size):
        piece = token_ids[start : start + size]
        detokenizer.append(piece, start + len(piece))
        deltas.append(detokenizer.take_delta())
    if flush:
        detokenizer.flush()
        deltas.append(detokenizer.take_delta())
    return deltas


def cut(text: str, stops: Sequence[str], keep: bool = False) -> tuple[str, str | None]:
    """`text` up to the stop string that ends first, of those the longest; and that string."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if keep else end - len(stop)], stop
    return text, None


def could_be_a_stop(text: str, stops: Sequence[str]) -> bool:
    return any(stop.startswith(text) for stop in stops)


# ---- any text, any stop strings --------------------------------------------------------------


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
@given(text=TEXT, stops=STOPS, keep=st.booleans(), size=st.integers(1, 4))
def test_deltas_add_up_to_the_text_before_the_first_stop(
    make: Callable[[], Backed], text: str, stops: list[str], keep: bool, size: int
) -> None:
    tokenizer = make()
    params = SamplingParams(stop=tuple(stops), include_stop_str_in_output=keep)
    detokenizer = Detokenizer(Vocabulary(tokenizer.backend), params, encode(tokenizer, "the"))
    # Behind a prompt the first word keeps its space, which SentencePiece puts before any text.
    whole = text if make is byte_level or not text else " " + text
    expected, stop = cut(whole, stops, keep)

    deltas = stream(detokenizer, encode(tokenizer, text), size)
    assert "".join(deltas) == expected == detokenizer.text
    assert detokenizer.stop == stop


@given(text=TEXT, stops=STOPS)
def test_nothing_is_let_out_too_early_or_held_too_long(text: str, stops: list[str]) -> None:
    tokenizer = byte_level()
    detokenizer = Detokenizer(Vocabulary(tokenizer.backend), SamplingParams(stop=tuple(stops)), ())
    expected, _ = cut(text, stops)
    token_ids = encode(tokenizer, text)
    for count, token_id in enumerate(token_ids, 1):
        detokenizer.append([token_id], count)
        assert expected.startswith(detokenizer.text)
        if detokenizer.stop is None:
            seen = tokenizer.backend.decode(token_ids[:count], skip_special_tokens=False)
            held = seen.rstrip("\ufffd")[len(detokenizer.text) :]
            assert not held or could_be_a_stop(held, stops)


@given(data=st.data(), skip=st.booleans())
def test_any_tokens_of_a_byte_level_tokenizer(data: st.DataObject, skip: bool) -> None:
    """Broken UTF-8, special tokens and added ones included."""
    tokenizer = byte_level()
    ids = st.integers(0, tokenizer.backend.get_vocab_size() + 2)
    token_ids = data.draw(st.lists(ids, max_size=30))
    prompt = encode(tokenizer, data.draw(TEXT))
    detokenizer = Detokenizer(
        Vocabulary(tokenizer.backend), SamplingParams(skip_special_tokens=skip), prompt
    )
    expected = tokenizer.backend.decode(token_ids, skip_special_tokens=skip)
    assert "".join(stream(detokenizer, token_ids)) == expected == detokenizer.text


@given(data=st.data(), skip=st.booleans())
def test_places_of_tokens_are_where_the_text_was_before_them(
    data: st.DataObject, skip: bool
) -> None:
    tokenizer = byte_level()
    vocabulary, params = Vocabulary(tokenizer.backend), SamplingParams(skip_special_tokens=skip)
    words = [encode(tokenizer, "日本 a"), encode(tokenizer, "the"), sorted(vocabulary.special_ids)]
    token_ids = [*chain(*data.draw(st.lists(st.sampled_from(words), max_size=6)))]
    deltas = stream(Detokenizer(vocabulary, params, ()), token_ids)
    before = list(accumulate(map(len, deltas), initial=0))[: len(token_ids)]
    assert TextOffsets().of(map(vocabulary.text_bytes(params), token_ids)) == before


def test_special_tokens_may_be_shown_where_others_are_not() -> None:
    tokenizer = byte_level()
    vocabulary = Vocabulary(tokenizer.backend)
    shown, hidden, *_ = sorted(vocabulary.special_ids)
    detokenizer = Detokenizer(vocabulary, SamplingParams(), (), None, frozenset({shown}))
    said = "".join(stream(detokenizer, [hidden, shown, hidden]))
    assert said == vocabulary.token_text(shown)


@given(text=TEXT, cut_at=st.integers(0, 40))
def test_a_prompt_may_end_within_a_character(text: str, cut_at: int) -> None:
    tokenizer = byte_level()
    token_ids = encode(tokenizer, text + "👩‍🚀")
    prompt, output = token_ids[:cut_at], token_ids[cut_at:]
    whole = tokenizer.backend.decode(prompt).removesuffix("\ufffd")
    text = "".join(
        stream(Detokenizer(Vocabulary(tokenizer.backend), SamplingParams(), prompt), output)
    )
    assert not output or whole + text == tokenizer.backend.decode(token_ids)


def test_a_prompt_that_ends_in_broken_bytes_leaves_no_trace() -> None:
    tokenizer = byte_level()
    broken = encode(tokenizer, "ਊ")[:1]
    assert tokenizer.backend.decode(broken) == "\ufffd"
    detokenizer = Detokenizer(Vocabulary(tokenizer.backend), SamplingParams(), broken)
    assert "".join(stream(detokenizer, encode(tokenizer, "the fox"))) == "the fox"
    assert stream(Detokenizer(Vocabulary(tokenizer.backend), SamplingParams(), broken), []) == [""]


# ---- one behaviour each ----------------------------------------------------------------------


def test_a_character_comes_out_when_it_is_whole() -> None:
    tokenizer = byte_level()
    token_ids = encode(tokenizer, "ਊa")
    assert len(token_ids) == 4
    detokenizer = Detokenizer(Vocabulary(tokenizer.backend), SamplingParams(), ())
    assert stream(detokenizer, token_ids) == ["", "", "ਊ", "a", ""]


def test_an_unfinished_character_is_a_replacement_at_the_end() -> None:
    tokenizer = byte_level()
    detokenizer = Detokenizer(Vocabulary(tokenizer.backend), SamplingParams(), ())
    assert stream(detokenizer, encode(tokenizer, "aਊ")[:-1]) == ["a", "", "", "\ufffd"]


def test_endless_broken_bytes_are_not_held_back() -> None:
    tokenizer = byte_level()
    detokenizer = Detokenizer(Vocabulary(tokenizer.backend), SamplingParams(), ())
    first_byte = encode(tokenizer, "ਊ")[0]
    assert stream(detokenizer, [first_byte] * 5, flush=False) == ["", *["\ufffd"] * 4]


def test_sentencepiece_assembles_bytes() -> None:
    tokenizer = sentencepiece()
    detokenizer = Detokenizer(
        Vocabulary(tokenizer.backend), SamplingParams(), encode(tokenizer, "the")
    )
    token_ids = encode(tokenizer, "the 👩")
    assert stream(detokenizer, token_ids) == [" the", " ", "", "", "", "👩", ""]


def test_a_decoder_nothing_is_known_of() -> None:
    tokenizer = word_pieces()
    detokenizer = Detokenizer(
        Vocabulary(tokenizer.backend), SamplingParams(), encode(tokenizer, "the")
    )
    token_ids = encode(tokenizer, "quicker fox, 日")
    whole = tokenizer.backend.decode(encode(tokenizer, "the") + token_ids)
    assert "the" + "".join(stream(detokenizer, token_ids)) == whole


def test_no_decoder_at_all() -> None:
    backend = Tokenizer(models.WordLevel({"the": 0, "fox": 1, "[UNK]": 2}, unk_token="[UNK]"))
    detokenizer = Detokenizer(Vocabulary(backend), SamplingParams(), [0])
    assert "".join(stream(detokenizer, [1, 0])) == " fox the"


@pytest.mark.parametrize(("skip", "expected"), [(True, "ab"), (False, "a<|end|>b")])
def test_special_tokens(skip: bool, expected: str) -> None:
    tokenizer = byte_level()
    end = tokenizer.backend.token_to_id("<|end|>")
    detokenizer = Detokenizer(
        Vocabulary(tokenizer.backend), SamplingParams(skip_special_tokens=skip), ()
    )
    token_ids = [*encode(tokenizer, "a"), end, *encode(tokenizer, "b")]
    assert "".join(stream(detokenizer, token_ids)) == expected


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_every_token_alone(make: Callable[[], Backed]) -> None:
    """Among them added tokens that are not written in the byte alphabet."""
    tokenizer = make()
    anchor = tokenizer.backend.token_to_id("t")
    params = SamplingParams(skip_special_tokens=False)
    for token_id in range(tokenizer.backend.get_vocab_size()):
        whole = tokenizer.backend.decode([anchor, token_id], skip_special_tokens=False)
        detokenizer = Detokenizer(Vocabulary(tokenizer.backend), params, [anchor])
        assert "t" + "".join(stream(detokenizer, [token_id])) == whole


def test_a_stop_string_ends_the_text_within_a_batch_of_tokens() -> None:
    tokenizer = byte_level()
    token_ids = encode(tokenizer, "zyx")
    assert len(token_ids) == 3
    detokenizer = Detokenizer(Vocabulary(tokenizer.backend), SamplingParams(stop=("y",)), ())
    assert detokenizer.append(token_ids, 3) == 2
    assert (detokenizer.text, detokenizer.stop) == ("z", "y")
    assert detokenizer.append(token_ids, 6) == 0
    detokenizer.flush()
    assert detokenizer.text == "z"


@pytest.mark.parametrize(("min_tokens", "expected"), [(0, ""), (1, "y"), (2, "yy"), (4, "yyyy")])
def test_a_stop_string_counts_from_the_token_behind_min_tokens(
    min_tokens: int, expected: str
) -> None:
    tokenizer = byte_level()
    params = SamplingParams(stop=("y",), min_tokens=min_tokens)
    detokenizer = Detokenizer(Vocabulary(tokenizer.backend), params, ())
    assert "".join(stream(detokenizer, encode(tokenizer, "y") * 4)) == expected
    assert detokenizer.stop == ("y" if min_tokens < 4 else None)


def test_a_stop_string_may_begin_before_min_tokens() -> None:
    tokenizer = byte_level()
    params = SamplingParams(stop=("xy",), min_tokens=1)
    detokenizer = Detokenizer(Vocabulary(tokenizer.backend), params, ())
    assert stream(detokenizer, encode(tokenizer, "xy")) == ["", "", ""]
    assert detokenizer.stop == "xy"


def test_what_is_held_comes_out_at_the_end() -> None:
    tokenizer = byte_level()
    detokenizer = Detokenizer(Vocabulary(tokenizer.backend), SamplingParams(stop=("xyz",)), ())
    assert stream(detokenizer, encode(tokenizer, "xyxy")) == ["", "", "xy", "", "xy"]


def test_a_token_costs_one_look_into_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_level()
    looks: list[int] = []
    token_bytes = Vocabulary.token_bytes

    def counted(vocabulary: Vocabulary, token_id: int) -> bytes:
        looks.append(token_id)
        return token_bytes(vocabulary, token_id)

    token_ids = encode(tokenizer, "the quick brown fox " * 50)
    monkeypatch.setattr(Vocabulary, "token_bytes", counted)
    detokenizer = Detokenizer(Vocabulary(tokenizer.backend), SamplingParams(), token_ids)
    looks.clear()
    stream(detokenizer, token_ids)
    assert looks == token_ids
