"""Text of a constraint stays text, where it looks like one of the model's special tokens too."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import llguidance
import numpy as np
import pytest
import tokenizers
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE

from checkpoints import SPECIAL_TOKENS, byte_alphabet, byte_tokenizer
from engine.conftest import MakeLLM
from pagoda import LLM, SamplingParams, StructuredOutputs
from pagoda.engine.grammar_vocabulary import vocabulary_of

ENDS = frozenset({257, 259})
SPELLED: dict[str, tuple[dict[str, Any], str]] = {
    "a choice that begins so": ({"choice": ["<|eos|>!"]}, "<|eos|>!"),
    "a choice in the middle": ({"choice": ["a<|im_start|>b"]}, "a<|im_start|>b"),
    "a constant": ({"json": {"const": "<|eos|>"}}, '"<|eos|>"'),
    "a regex": ({"regex": r"<\|bos\|>{2}"}, "<|bos|>>"),
    "GBNF": ({"grammar": 'root ::= "é<|im_end|>" "<|bos|>"'}, "é<|im_end|><|bos|>"),
}


@pytest.fixture(scope="module")
def llm(make_llm: MakeLLM) -> LLM:
    return make_llm()


def vocabulary(backend: tokenizers.Tokenizer) -> llguidance.LLTokenizer:
    tokenizer: Any = SimpleNamespace(backend=backend, eos_token_ids=ENDS)
    return vocabulary_of(tokenizer, 300)


@pytest.mark.parametrize("name", SPELLED)
def test_an_answer_may_spell_a_special_token(name: str, llm: LLM) -> None:
    constraint, text = SPELLED[name]
    params = SamplingParams(max_tokens=60, structured_outputs=StructuredOutputs(**constraint))
    [output] = llm.generate("x", params, use_tqdm=False)
    [choice] = output.outputs
    assert (choice.text, choice.finish_reason) == (text, "stop")
    assert max(choice.token_ids[:-1]) < 256, "bytes alone"


def test_an_object_goes_on_behind_such_a_text(llm: LLM) -> None:
    const = {"t": {"const": "a<|im_start|>b"}, "u": {"enum": [1]}}
    schema = {"type": "object", "properties": const, "required": ["t", "u"]}
    wanted = StructuredOutputs(json=schema, disable_any_whitespace=True)
    params = SamplingParams(max_tokens=60, structured_outputs=wanted, n=3, seed=1)
    [output] = llm.generate("x", params, use_tqdm=False)
    for choice in output.outputs:
        assert json.loads(choice.text) == {"t": "a<|im_start|>b", "u": 1}


def test_all_ends_stay_ends() -> None:
    read = vocabulary(byte_tokenizer())
    assert {*read.eos_tokens} == ENDS
    assert read.vocab_size == 300
    matcher = llguidance.LLMatcher(read, llguidance.LLMatcher.grammar_from_regex("a?"), log_level=0)
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
    assert {*allowed.tolist()} == {ord("a"), *ENDS}


def test_added_tokens_that_are_not_special_stay_text_too() -> None:
    backend = byte_tokenizer()
    backend.add_tokens([tokenizers.AddedToken("<think>", normalized=False)])
    added = backend.token_to_id("<think>")
    assert backend.encode("<think>").ids == [added]
    assert vocabulary(backend).tokenize_str("<think>") == list(b"<think>")


def test_any_other_text_is_spelled_as_the_tokenizer_would() -> None:
    merges = [("a", "b"), ("c", "d"), ("b", "cd")]
    pieces = [*byte_alphabet(), *("".join(pair) for pair in merges)]
    backend = tokenizers.Tokenizer(BPE({each: n for n, each in enumerate(pieces)}, merges))
    backend.pre_tokenizer, backend.decoder = byte_tokenizer().pre_tokenizer, ByteLevel()
    backend.add_special_tokens([*SPECIAL_TOKENS])
    read = vocabulary(backend)
    assert read.tokenize_str("abcd") == backend.encode("abcd").ids == [256, 257]
    assert read.tokenize_str("zé") == list("zé".encode())


def test_a_grammar_may_still_ask_for_a_special_token() -> None:
    source = llguidance.LLMatcher.grammar_from_lark('start: <|im_start|> "a"')
    matcher = llguidance.LLMatcher(vocabulary(byte_tokenizer()), source, log_level=0)
    token_id = 256 + SPECIAL_TOKENS.index("<|im_start|>")
    assert matcher.try_consume_tokens([token_id, ord("a")]) == 2
