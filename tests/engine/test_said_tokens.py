"""Which tokens and words an engine may say, and what it takes of a long prompt."""

from __future__ import annotations

from itertools import pairwise

import pytest

from checkpoints import SPECIAL_TOKENS
from pagoda.engine.llm import LLM
from pagoda.errors import ContextLengthError, InvalidRequestError
from pagoda.request import RequestOptions, SamplingParams
from pagoda.truncation import Truncation

PROMPT = "the cache"
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def llm(make_llm) -> LLM:
    return make_llm()


def said(llm: LLM, prompts: str | list[str] = PROMPT, **fields) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, **fields)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def pairs(token_ids: list[int]) -> set[tuple[int, int]]:
    return set(pairwise(token_ids))


def test_no_other_tokens_than_the_allowed_are_said(llm: LLM) -> None:
    allowed = (97, 98, 99)
    assert {token for each in said(llm, allowed_token_ids=allowed) for token in each} <= {*allowed}


def test_words_are_not_said_and_the_rest_of_a_batch_is_as_it_was(llm: LLM) -> None:
    [free] = said(llm)
    pair = (free[0], free[1])
    [kept] = said(llm, bad_words_ids=(pair,))
    assert kept[0] == free[0]
    assert pair not in pairs(kept)
    several = [SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)] * 2
    several.append(
        SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, bad_words_ids=(pair,))
    )
    outputs = llm.generate([PROMPT, "another", PROMPT], several, use_tqdm=False)
    assert list(outputs[0].outputs[0].token_ids) == free
    assert list(outputs[2].outputs[0].token_ids) == kept


def test_a_word_is_banned_by_the_tokens_that_spell_it(llm: LLM) -> None:
    intake = llm.engine.intake
    request = intake.request("1", PROMPT, SamplingParams(bad_words=("ab", "c")))
    assert request.sampling.bad_words_ids == ((97, 98), (99,))  # tokens are bytes


@pytest.mark.parametrize(
    ("alone", "behind", "banned"),
    [
        ([1, 2], [3], ((1, 2), (3,))),  # " Berlin" is one token, "Berlin" is two
        ([1], [2, 3], ((1,), (2, 3))),
        ([1, 2], [3, 4], ((1, 2), (3, 4))),
        ([1, 2], [3, 1, 2], ((1, 2),)),  # the space is a token of its own
        ([1, 2], [1, 2], ((1, 2),)),
        ([], [3], ()),
    ],
)
def test_a_word_is_banned_behind_a_space_however_many_tokens_that_are(
    alone: list[int],
    behind: list[int],
    banned: tuple[tuple[int, ...], ...],
    llm: LLM,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    intake, spelled = llm.engine.intake, {"word": alone, " word": behind}
    monkeypatch.setattr(intake.tokenizer.tokenizer, "encode", lambda text, **_: spelled[text])
    request = intake.request("1", [5], SamplingParams(bad_words=("word",)))
    assert request.sampling.bad_words_ids == banned


def test_allowed_tokens_that_are_all_banned_are_refused(llm: LLM) -> None:
    intake, words = llm.engine.intake, ("a", "b", "cd")
    for left in ((97, 99), (98, 97, 100)):
        assert intake.request("1", PROMPT, SamplingParams(bad_words=words, allowed_token_ids=left))
    for banned in ((97,), (98, 97, 98)):
        with pytest.raises(InvalidRequestError, match="bad_words leave none of them") as refused:
            intake.request("1", PROMPT, SamplingParams(bad_words=words, allowed_token_ids=banned))
        assert refused.value.field == "allowed_token_ids"


@pytest.mark.parametrize("field", ["allowed_token_ids", "bad_words_ids"])
def test_ids_of_no_token_are_refused(field: str, llm: LLM) -> None:
    value = (10**6,) if field == "allowed_token_ids" else ((10**6,),)
    with pytest.raises(InvalidRequestError, match=f"{field}=1000000: token ids are"):
        llm.generate(PROMPT, SamplingParams(**{field: value}), use_tqdm=False)


def test_special_tokens_are_part_of_the_text_where_that_is_asked_for(llm: LLM) -> None:
    begins, ends = (256 + SPECIAL_TOKENS.index(f"<|im_{each}|>") for each in ("start", "end"))
    sampling = SamplingParams(max_tokens=20, seed=1, allowed_token_ids=(begins, ends))
    *_, output = llm._grow(PROMPT, sampling, RequestOptions(shown_ids=frozenset({ends})))
    [choice] = output.outputs
    assert choice.text == "<|im_end|>" * choice.token_ids.count(ends) != ""


def test_a_long_prompt_is_cut_where_that_is_asked_for(llm: LLM) -> None:
    intake, length = llm.engine.intake, llm.engine.max_model_len
    prompt = [1 + index % 90 for index in range(length + 5)]
    params = SamplingParams(max_tokens=10)
    with pytest.raises(ContextLengthError, match=f"requested {length + 6} tokens"):
        intake.request("1", prompt, params)
    for truncation, kept in ((Truncation(7), 7), (Truncation(room=10), length - 10)):
        options = RequestOptions(truncation=truncation)
        request = intake.request("1", prompt, params, options)
        assert list(request.prompt_token_ids) == prompt[-kept:]


def test_a_limit_beyond_the_window_is_refused_and_one_within_ends_there(llm: LLM) -> None:
    length = llm.engine.max_model_len
    options = RequestOptions(max_tokens_field="max_tokens")
    prompt = [5] * (length - 4)
    within, beyond = SamplingParams(max_tokens=length), SamplingParams(max_tokens=length + 1)
    assert llm.engine.intake.request("1", prompt, within, options)
    begins = f"This model's maximum context length is {length} tokens. However, you requested "
    with pytest.raises(ContextLengthError, match=begins) as refused:
        llm.engine.intake.request("1", prompt, beyond, options)
    assert refused.value.field == "max_tokens"
    assert f"({length - 4} in the prompt, {length + 1} in the completion)" in str(refused.value)
    assert str(refused.value).endswith(f"max_tokens={length + 1}: at most {length}")
    [output] = llm.generate([prompt], SamplingParams(max_tokens=length, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 4
