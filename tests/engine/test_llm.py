"""`LLM` as its users call it, over a tiny random model."""

from __future__ import annotations

import gc
import resource
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from typing import Any
from weakref import ref

import numpy as np
import psutil
import pytest
import torch

from checkpoints import reference_model
from engine.conftest import MAX_MODEL_LEN, MakeLLM
from pagoda.engine import core
from pagoda.engine.devices import cpu_backend
from pagoda.engine.devices.memory import free_memory_bytes
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.errors import (
    CapacityError,
    EngineError,
    InvalidOptionError,
    InvalidRequestError,
    ModelError,
)
from pagoda.request import SamplingParams
from pagoda.scheduling import judge
from pagoda.sizing import plan_capacity

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = ["A pagoda is", "a tower", "of tiers; ours is built of pages", "É"]


@pytest.fixture(scope="module")
def llm(make_llm) -> LLM:
    return make_llm()


@pytest.fixture(scope="module")
def alone(make_llm) -> dict[str, list[int]]:
    """What each prompt gives when nothing else runs and nothing is cached."""
    return {
        prompt: list(
            make_llm(enable_prefix_caching=False)
            .generate(prompt, GREEDY, use_tqdm=False)[0]
            .outputs[0]
            .token_ids
        )
        for prompt in PROMPTS
    }


def free_blocks(llm: LLM) -> int:
    return llm.engine.scheduler.cache.num_free_blocks


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM, alone: dict[str, list[int]]) -> None:
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == PROMPTS
    for output in outputs:
        (choice,) = output.outputs
        assert list(choice.token_ids) == alone[output.prompt]
        assert choice.text == llm.engine.tokenizer.decode(list(choice.token_ids))
        assert (choice.finish_reason, output.finished) == ("length", True)
    assert free_blocks(llm) == 256


def test_a_prompt_may_be_token_ids_and_params_may_differ(llm: LLM) -> None:
    prompts = [[1, 2, 3], [4, 5]]
    params = [SamplingParams(max_tokens=n, temperature=0, ignore_eos=True) for n in (2, 5)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [list(output.prompt_token_ids) for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 5]
    (single,) = llm.generate([1, 2, 3], params[0], use_tqdm=False)
    assert single.outputs[0].token_ids == outputs[0].outputs[0].token_ids


def test_a_repeated_prompt_comes_from_the_cache(make_llm) -> None:
    llm = make_llm()
    prompt = "the same words again"
    first, again = (llm.generate(prompt, GREEDY, use_tqdm=False)[0] for _ in range(2))
    assert first.num_cached_tokens == 0
    assert again.num_cached_tokens == len(prompt) - 1
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    llm.reset_prefix_cache()
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].num_cached_tokens == 0


def test_a_salt_keeps_the_cache_apart(make_llm) -> None:
    llm = make_llm()
    for salt, cached in (("a", 0), ("b", 0), ("a", 19), ("", 0)):
        (output,) = llm.generate("the same words again", GREEDY, use_tqdm=False, cache_salt=salt)
        assert output.num_cached_tokens == cached


def test_streams_say_the_same_as_generate_even_two_at_once(
    llm: LLM, alone: dict[str, list[int]]
) -> None:
    streams = [llm.stream(prompt, GREEDY) for prompt in PROMPTS[:2]]
    deltas: list[list[str]] = [[], []]
    last = [None, None]
    for pair in zip(*streams, strict=True):
        for number, output in enumerate(pair):
            deltas[number].append(output.outputs[0].delta)
            last[number] = output
    for number, prompt in enumerate(PROMPTS[:2]):
        assert list(last[number].outputs[0].token_ids) == alone[prompt]
        assert "".join(deltas[number]) == last[number].outputs[0].text


def test_generate_may_run_while_a_stream_is_open(llm: LLM, alone: dict[str, list[int]]) -> None:
    stream = llm.stream(PROMPTS[0], GREEDY)
    next(stream)
    (other,) = llm.generate(PROMPTS[1], GREEDY, use_tqdm=False)
    assert list(other.outputs[0].token_ids) == alone[PROMPTS[1]]
    *_, last = stream
    assert list(last.outputs[0].token_ids) == alone[PROMPTS[0]]


def test_closing_a_stream_frees_its_blocks(llm: LLM) -> None:
    stream = llm.stream("never finished", GREEDY)
    next(stream)
    assert free_blocks(llm) < 256
    stream.close()
    assert free_blocks(llm) == 256
    assert not llm.engine.has_unfinished


def test_choices_are_greedy_alike_and_drawn_apart(llm: LLM, alone: dict[str, list[int]]) -> None:
    (greedy,) = llm.generate(
        PROMPTS[2], SamplingParams(n=3, temperature=0, max_tokens=12, ignore_eos=True),
        use_tqdm=False,
    )  # fmt: skip
    assert [list(choice.token_ids) for choice in greedy.outputs] == [alone[PROMPTS[2]]] * 3
    (drawn,) = llm.generate(
        PROMPTS[2], SamplingParams(n=4, max_tokens=12, ignore_eos=True), use_tqdm=False
    )
    assert [choice.index for choice in drawn.outputs] == [0, 1, 2, 3]
    assert len({tuple(choice.token_ids) for choice in drawn.outputs}) == 4


def test_a_seed_decides_whatever_else_runs(make_llm) -> None:
    seeded = SamplingParams(seed=7, max_tokens=12, n=2, ignore_eos=True)
    other = SamplingParams(seed=8, max_tokens=12, n=2, ignore_eos=True)

    def texts(llm: LLM, prompts: list[str], params: list[SamplingParams]) -> list[list[int]]:
        output = llm.generate(prompts, params, use_tqdm=False)[0]
        return [list(choice.token_ids) for choice in output.outputs]

    expected = texts(make_llm(), ["seeded"], [seeded])
    busy = make_llm(num_gpu_blocks_override=34, max_num_batched_tokens=8)
    crowd = [seeded] + [SamplingParams(max_tokens=90, ignore_eos=True)] * 5
    assert texts(busy, ["seeded", *["another prompt"] * 5], crowd) == expected
    assert busy.stats().num_preemptions > 0
    assert texts(make_llm(), ["seeded"], [other]) != expected


def test_an_engine_seed_repeats_a_whole_run(make_llm) -> None:
    params = SamplingParams(max_tokens=8)
    runs = [make_llm(seed=seed).generate(PROMPTS, params, use_tqdm=False) for seed in (1, 1, 2)]
    tokens = [[list(o.outputs[0].token_ids) for o in run] for run in runs]
    assert tokens[0] == tokens[1] != tokens[2]


def test_a_stop_string_ends_the_text_before_itself(llm: LLM) -> None:
    (free,) = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
    text = free.outputs[0].text
    stop = text[3:5]
    cut = text[: text.index(stop)]
    for included in (False, True):
        params = SamplingParams(
            temperature=0, max_tokens=12, ignore_eos=True, stop=(stop,),
            include_stop_str_in_output=included,
        )  # fmt: skip
        (choice,) = llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs
        assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
        assert choice.text == (cut + stop if included else cut)
    assert free_blocks(llm) == 256


def check_a_stop_string_in_the_last_token(llm: LLM) -> None:
    """It says "stop" to whoever asked and in the engine's counts."""
    (free,) = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
    num_tokens, stop = len(free.outputs[0].token_ids), free.outputs[0].text[1:]
    before = Counter(llm.engine.stats().num_finished)
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, stop=(stop,))
    (choice,) = llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs
    assert len(choice.token_ids) == num_tokens
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    assert Counter(llm.engine.stats().num_finished) - before == {"stop": 1}


def test_a_stop_string_in_the_last_allowed_token_is_a_stop_for_everybody(llm: LLM) -> None:
    check_a_stop_string_in_the_last_token(llm)


def test_a_judge_that_looks_at_the_tokens_alone_is_found_out(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault that there was: the length ended a sequence before its text was read."""
    monkeypatch.setattr(
        core, "judge", lambda sequence, text: judge(sequence) or judge(sequence, text)
    )
    with pytest.raises(AssertionError, match="length"):
        check_a_stop_string_in_the_last_token(llm)


def test_a_stop_token_is_given_but_not_shown(llm: LLM, alone: dict[str, list[int]]) -> None:
    tokens = alone[PROMPTS[0]]
    stop = tokens[4]
    kept = tokens[: tokens.index(stop)]
    params = SamplingParams(temperature=0, max_tokens=12, stop_token_ids=(stop,), ignore_eos=True)
    (choice,) = llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    assert list(choice.token_ids) == [*kept, stop]
    assert choice.text == llm.engine.tokenizer.decode(kept)


def test_logprobs_are_those_of_transformers(llm: LLM, tiny_directory: str) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=6, ignore_eos=True, logprobs=3, prompt_logprobs=2
    )
    prompt = list(b"log-probabilities")
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    (choice,) = output.outputs
    tokens = [*prompt, *choice.token_ids]
    expected = expected_logprobs(tiny_directory, tokens)

    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    entries = [*output.prompt_logprobs[1:], *choice.logprobs]
    for position, entry in enumerate(entries, 1):
        row = expected[position - 1]
        assert entry[tokens[position]].logprob == pytest.approx(row[tokens[position]], abs=1e-4)
        for token_id, found in entry.items():
            assert found.logprob == pytest.approx(row[token_id], abs=1e-4)
        num_top = 2 if position < len(prompt) else 3
        assert {1, num_top} <= {found.rank for found in entry.values()}
    assert choice.cumulative_logprob == pytest.approx(
        sum(expected[i - 1][tokens[i]] for i in range(len(prompt), len(tokens))), abs=1e-3
    )


def expected_logprobs(directory: str, tokens: list[int]) -> list[list[float]]:
    from pagoda.execution.reference import reference_logits
    from pagoda.models.load import load_spec, load_weights
    from pagoda.models.locate import locate

    files = locate(directory)
    spec = load_spec(files)
    weights = load_weights(files, spec, "float32")
    return reference_logits(spec, weights, tokens).log_softmax(-1).tolist()


def test_prompt_logprobs_survive_chunking_and_a_warm_cache(make_llm) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    prompt = "a prompt of several chunks"
    whole = make_llm().generate(prompt, params, use_tqdm=False)[0].prompt_logprobs
    llm = make_llm(max_num_batched_tokens=5)
    llm.generate(prompt, GREEDY, use_tqdm=False)
    chunked = llm.generate(prompt, params, use_tqdm=False)[0].prompt_logprobs
    assert whole is not None
    assert chunked is not None
    for one, other in zip(whole[1:], chunked[1:], strict=True):
        assert one.keys() == other.keys()
        for token_id in one:
            assert one[token_id].logprob == pytest.approx(other[token_id].logprob, abs=1e-4)


def test_chat_goes_through_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert llm.engine.tokenizer.decode(list(output.prompt_token_ids), False) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    two = llm.chat([messages, messages], GREEDY, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in two] == [output.outputs[0].token_ids] * 2
    tool = {"type": "function", "function": {"name": "clock"}}
    for ask in (llm.chat, llm.stream_chat):  # its description is longer than fits
        with pytest.raises(InvalidRequestError, match="tokens'"):
            ask(messages, GREEDY, tools=[tool])
        with pytest.raises(InvalidRequestError) as refused:
            ask(messages, GREEDY, tools=[tool["function"]])
        assert refused.value.field == "tools"
    *_, last = llm.stream_chat(messages, GREEDY, tools=None)
    assert last.outputs[0].token_ids == output.outputs[0].token_ids


def test_what_streams_takes_what_does_not() -> None:
    for whole, streamed in ((LLM.generate, LLM.stream), (LLM.chat, LLM.stream_chat)):
        options = signature(whole).parameters.keys() - {"use_tqdm", "prompts"}
        assert options == signature(streamed).parameters.keys() - {"prompt"}


def test_a_message_may_be_made_of_text_parts(llm: LLM) -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    plain, parted = ([{"role": "user", "content": content}] for content in ("Hello", parts))
    (expected,) = llm.chat(plain, GREEDY, use_tqdm=False)
    (output,) = llm.chat(parted, GREEDY, use_tqdm=False)
    *_, streamed = llm.stream_chat(parted, GREEDY)
    assert output.prompt_token_ids == expected.prompt_token_ids == streamed.prompt_token_ids


def test_messages_that_are_streamed_as_a_prompt_are_told_where_they_go(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="stream_chat") as refused:
        llm.stream([{"role": "user", "content": "Hello"}], GREEDY)  # type: ignore[arg-type]
    assert refused.value.field == "prompt"


@pytest.mark.parametrize("given", [7, "hello", b"hello", [7], ["hello"], []])
def test_what_is_no_conversation_is_refused_by_name(llm: LLM, given: Any) -> None:
    for ask in (llm.chat, llm.stream_chat):
        with pytest.raises(InvalidRequestError, match="must be a list of messages") as refused:
            ask(given, GREEDY)
        assert refused.value.field == "messages"


def test_the_tokenizer_can_be_had(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"
    for token_id in (-1, 2**32):
        with pytest.raises(InvalidRequestError, match="whole numbers from 0 to") as refused:
            tokenizer.decode([1, token_id])
        assert refused.value.field == "token_ids"


@pytest.mark.parametrize("form", [np.array, lambda ids: list(np.array(ids, np.int32))])
def test_token_ids_may_be_numpys(llm: LLM, form: Any) -> None:
    plain, *others = llm.generate([[1, 2, 3], form([1, 2, 3])], GREEDY, use_tqdm=False)
    others += llm.generate(form([1, 2, 3]), GREEDY, use_tqdm=False)
    others += llm.generate({"prompt_token_ids": form([1, 2, 3])}, GREEDY, use_tqdm=False)
    others += list(llm.stream(form([1, 2, 3]), GREEDY))[-1:]
    assert len(others) == 4
    for output in others:
        assert output.outputs[0].token_ids == plain.outputs[0].token_ids
        assert [type(each) for each in output.prompt_token_ids] == [int] * 3


def test_a_table_of_token_ids_is_a_prompt_a_row(llm: LLM) -> None:
    outputs = llm.generate(np.array([[1, 2], [3, 4]]), GREEDY, use_tqdm=False)
    assert [list(output.prompt_token_ids) for output in outputs] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("retention", ["full", "window:100", "streaming:sinks=4,window=100"])
def test_what_lets_go_starts_wherever_what_keeps_all_does(make_llm, retention: str) -> None:
    llm = make_llm(num_gpu_blocks_override=MAX_MODEL_LEN // 4, kv_retention=retention)
    (output,) = llm.generate([[1] * (MAX_MODEL_LEN - 4)], GREEDY, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 4


def test_the_longest_output_ends_at_the_models_length(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    (output,) = llm.generate([[1] * 100], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 28
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompts", "sampling", "field"),
    [
        ("", {}, "prompt"),
        ([[]], {}, "prompt"),
        ([[1, 288]], {}, "prompt"),
        ([[-1]], {}, "prompt"),
        ([[1.5]], {}, "prompt"),
        ([[True]], {}, "prompt"),
        (np.array([1.5]), {}, "prompt"),
        (np.array([[[1]]]), {}, "prompt"),
        ([np.array([True])], {}, "prompt"),
        ([[np.int64(288)]], {}, "prompt"),
        ([None], {}, "prompt"),
        (b"abc", {}, "prompt"),
        ([bytearray(b"abc")], {}, "prompt"),
        ({"prompt_token_ids": b"abc"}, {}, "prompt"),
        (7, {}, "prompts"),
        ([[1] * 128], {}, "prompt"),
        (["word " * 100_000], {}, "prompt"),
        ("x", {"stop_token_ids": (288,)}, "stop_token_ids"),
        ("x", {"logit_bias": {288: 1.0}}, "logit_bias"),
    ],
)
def test_bad_prompts_are_refused_by_name(llm: LLM, prompts, sampling: dict, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(prompts, SamplingParams(**sampling), use_tqdm=False)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
    assert not llm.engine.has_unfinished


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_told_as_it_was_given(llm: LLM, prompt: str | list[int]) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        llm.generate([prompt], use_tqdm=False)
    assert refused.value.value == prompt


def test_one_bad_prompt_among_many_begins_none(llm: LLM) -> None:
    before = llm.stats().prompt_tokens
    with pytest.raises(InvalidRequestError):
        llm.generate(["good", [300]], GREEDY, use_tqdm=False)
    assert llm.stats().prompt_tokens == before


def test_a_refused_request_is_not_noticed_by_one_that_runs(
    llm: LLM, alone: dict[str, list[int]]
) -> None:
    stream = llm.stream(PROMPTS[2], GREEDY)
    next(stream)
    for bad in ("", [999], [1] * 500):
        with pytest.raises(InvalidRequestError):
            llm.stream(bad, GREEDY)
    with pytest.raises(InvalidRequestError):
        llm.generate("x", [GREEDY, GREEDY], use_tqdm=False)
    *_, last = stream
    assert list(last.outputs[0].token_ids) == alone[PROMPTS[2]]


@pytest.mark.parametrize(
    ("options", "error", "field"),
    [
        ({"num_gpu_blocks_override": 31}, CapacityError, "max_model_len"),
        ({"kv_cache_memory_bytes": 1000, "num_gpu_blocks_override": None}, CapacityError,
         "max_model_len"),
        ({"block_size": 0}, InvalidOptionError, "block_size"),
        ({"gpu_memory_utilization": 1.5}, InvalidOptionError, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": float("nan")}, InvalidOptionError, "gpu_memory_utilization"),
        ({"max_num_seqs": 0}, InvalidOptionError, "max_num_seqs"),
        ({"scheduling_policy": "sjf"}, InvalidOptionError, "scheduling_policy"),
        ({"dtype": "float8"}, InvalidOptionError, "dtype"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_by_name(
    make_llm, options: dict[str, object], error: type[Exception], field: str
) -> None:
    with pytest.raises(error) as caught:
        make_llm(**options)
    assert caught.value.field == field


def test_an_unknown_option_and_a_missing_model_are_refused() -> None:
    with pytest.raises(InvalidOptionError) as caught:
        LLM(max_tokens=3)
    assert (caught.value.field, caught.value.value) == ("max_tokens", 3)
    with pytest.raises(InvalidOptionError, match="did you mean max_model_len"):
        LLM(max_model_length=3)
    with pytest.raises(InvalidOptionError, match=r"is no option of the engine$"):
        LLM(colour="red")
    with pytest.raises(ModelError, match="no such file"):
        LLM("/no/such/model")


def test_every_pool_answers_alike(make_llm, alone: dict[str, list[int]]) -> None:
    for options in (
        {"num_gpu_blocks_override": 32},
        {"block_size": 1},
        {"block_size": 16},
        {"max_num_batched_tokens": 3},
        {"max_num_seqs": 1},
    ):
        outputs = make_llm(**options).generate(PROMPTS * 3, GREEDY, use_tqdm=False)
        for output in outputs:
            assert list(output.outputs[0].token_ids) == alone[output.prompt], options


def test_the_tiny_model_is_what_transformers_says(llm: LLM, tmp_path) -> None:
    from checkpoints import CASES, write_checkpoint

    model = reference_model(write_checkpoint(tmp_path, CASES["llama-gqa"]))
    (output,) = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
    tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids]
    with torch.inference_mode():
        best = model(torch.tensor([tokens])).logits[0].argmax(-1).tolist()
    start = output.num_prompt_tokens
    assert best[start - 1 : -1] == tokens[start:]


def test_a_step_that_fails_ends_its_streams_and_nothing_after(
    make_llm, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llm()
    stream = llm.stream("open", GREEDY)
    next(stream)
    execute = llm.engine._runner.execute

    def fail_once(plan, drawn_last):
        monkeypatch.setattr(llm.engine._runner, "execute", execute)
        raise RuntimeError("a broken kernel")

    monkeypatch.setattr(llm.engine._runner, "execute", fail_once)
    with pytest.raises(EngineError):
        llm.generate("another", GREEDY, use_tqdm=False)
    with pytest.raises(EngineError):
        next(stream)
    assert len(llm.generate("later", GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 12
    assert free_blocks(llm) == 256


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"gpu_memory_utilization": "0.5"}, "gpu_memory_utilization"),
        ({"scheduling_policy": ["fcfs"]}, "scheduling_policy"),
        ({"eviction_policy": "fifo"}, "eviction_policy"),
        ({"eviction_policy": None}, "eviction_policy"),
        ({"enable_prefix_caching": "no"}, "enable_prefix_caching"),
        ({"model": 5}, "model"),
        ({"threads": 10**6}, "threads"),
        ({"max_num_seqs": 1.5}, "max_num_seqs"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold"),
    ],
)
def test_options_of_the_wrong_type_are_refused(options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        LLM(**options)
    assert caught.value.field == field


@pytest.mark.parametrize("size", [10 * 2**40, 10**20])
def test_more_memory_than_the_machine_has_is_refused(make_llm, size: int) -> None:
    with pytest.raises(CapacityError) as caught:
        make_llm(kv_cache_memory_bytes=size, num_gpu_blocks_override=None)
    assert caught.value.field == "kv_cache_memory_bytes"


def test_a_cache_that_the_system_does_not_give_is_refused(make_llm, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(cpu_backend, "CPUStorage", refuse)
    with pytest.raises(CapacityError, match="more than the system gives this process") as caught:
        make_llm(kv_cache_memory_bytes=2**20, num_gpu_blocks_override=None)
    assert caught.value.field == "kv_cache_memory_bytes"


def test_a_bound_on_the_process_bounds_what_is_free(monkeypatch) -> None:
    assert free_memory_bytes() > 2**20
    used = psutil.Process().memory_info().vms
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + 2**40, used + 2**40))
    assert 2**20 < free_memory_bytes() < 2**40
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used // 2, used // 2))
    assert free_memory_bytes() == 0


def test_the_default_cache_is_a_share_of_what_is_free(
    tiny_model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_backend, "free_memory_bytes", lambda: 2**30)
    for options, share in (({}, 0.5), ({"gpu_memory_utilization": 0.25}, 0.25)):
        sized = tiny_model.loaded.size(EngineOptions(**options), tiny_model.max_model_len)
        angles = tiny_model.spec.angle_bytes(tiny_model.max_model_len)
        assert sized.capacity.available_bytes == int(share * (2**30 - angles))


@pytest.mark.parametrize("block_size", [1, 16, 48])
def test_what_is_planned_is_what_is_allocated(
    make_llm, tiny_model, block_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    memory = 10_000_000
    with caplog.at_level("INFO", logger="pagoda"):
        llm = make_llm(
            kv_cache_memory_bytes=memory, num_gpu_blocks_override=None, block_size=block_size
        )
    spec = tiny_model.spec.cache_spec(block_size, tiny_model.dtype)
    capacity = plan_capacity(spec, available_bytes=memory, max_model_len=tiny_model.max_model_len)
    storage = llm.engine._runner._executor.storage
    allocated = sum(layer.content.nbytes for layer in storage.layers)
    assert allocated == storage.size_bytes == capacity.size_bytes <= memory
    assert memory - allocated < spec.block_bytes
    assert llm.stats().num_blocks == capacity.num_blocks
    assert caplog.messages[:2] == list(capacity.log_lines("CPU"))


def test_several_threads_share_the_steps_of_one_llm(make_llm) -> None:
    llm = make_llm()
    prompts = [f"thread number {number} asks for something" for number in range(6)]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    alone = [llm.generate(p, params, use_tqdm=False)[0].outputs[0].token_ids for p in prompts]
    llm.reset_prefix_cache()

    def ask(prompt: str) -> list[int]:
        return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids

    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            assert list(pool.map(ask, prompts)) == alone
    assert not llm.engine.has_unfinished


def test_prompts_may_be_named_as_vllm_names_them(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4)
    ids = llm.engine.tokenizer.encode("a prompt")
    plain = llm.generate([ids], params, use_tqdm=False)[0].outputs[0].token_ids
    for prompts in (
        {"prompt_token_ids": ids},
        [{"prompt_token_ids": ids}],
        {"prompt": "a prompt"},
        ["a prompt"],
    ):
        assert llm.generate(prompts, params, use_tqdm=False)[0].outputs[0].token_ids == plain
    for refused in ({"prompt": "a", "multi_modal_data": {}}, [{"text": "a"}], {}):
        with pytest.raises(InvalidRequestError) as refusal:
            llm.generate(refused, params, use_tqdm=False)
        assert refusal.value.field == "prompts"


def test_the_cache_is_not_forgotten_in_the_middle_of_a_step(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, within = llm.engine.advance, []
    other = threading.Thread(target=llm.reset_prefix_cache)

    def long_step() -> None:
        if not within:
            other.start()
            other.join(0.2)
            within.append(other.is_alive())
        advance()

    monkeypatch.setattr(llm.engine, "advance", long_step)
    llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
    other.join()
    assert within == [True]


@pytest.mark.parametrize("given", [{"temperature": 0}, [{"temperature": 0}], 5, "hot"])
def test_sampling_params_of_another_kind_are_refused_by_name(make_llm, given: Any) -> None:
    llm = make_llm()
    for ask in (llm.generate, llm.stream):
        with pytest.raises(InvalidRequestError, match="must be a SamplingParams") as refused:
            ask("hi", given)
        assert refused.value.field == "sampling_params"


def test_a_hint_keeps_a_prompt_while_others_come_and_go(make_llm: MakeLLM) -> None:
    llm = make_llm(num_gpu_blocks_override=64, eviction_policy="lru")
    prompt, found = "a pagoda of pages, floor by floor", {}
    for hint in (None, "session"):
        llm.reset_prefix_cache()
        llm.generate([prompt], GREEDY, use_tqdm=False, cache_hint=hint)
        for number in range(8):
            llm.generate([f"{number} others " * 6], GREEDY, use_tqdm=False)
        [again] = llm.generate([prompt], GREEDY, use_tqdm=False)
        found[hint] = again.num_cached_tokens
    assert found[None] == 0 < found["session"]


def test_an_unknown_hint_is_refused(llm: LLM) -> None:
    calls = (llm.generate, llm.stream)
    for call in calls:
        with pytest.raises(InvalidRequestError, match="cache_hint='keep': must be one of pin"):
            call("x", GREEDY, cache_hint="keep")
    with pytest.raises(InvalidRequestError, match="cache_hint"):
        llm.chat([{"role": "user", "content": "x"}], GREEDY, cache_hint="keep")
    with pytest.raises(InvalidRequestError, match="cache_hint"):
        llm.stream_chat([{"role": "user", "content": "x"}], GREEDY, cache_hint="keep")


def test_an_engine_and_its_pages_go_with_the_last_that_refers_to_it(make_llm: MakeLLM) -> None:
    """At once: whoever makes another one has the memory, without looking for garbage."""
    llm = make_llm()
    llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    engine, storage = ref(llm.engine), ref(llm.engine._runner._executor.storage)
    gc.disable()
    try:
        del llm
        assert engine() is None
        assert storage() is None
    finally:
        gc.enable()
