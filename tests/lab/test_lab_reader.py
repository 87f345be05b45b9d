"""Reading over the real engine: logits of every position, and the proof that the pool is read."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest
import torch
from lab_subjects import tiny_subject, tiny_text

from pagoda.codecs import CALIBRATED, CODECS
from pagoda.engine.llm import LLM
from pagoda.errors import IntegrityError, InvalidOptionError
from pagoda.lab.method import FULL, Method
from pagoda.lab.proof import prove
from pagoda.lab.reader import Reader
from pagoda.lab.subject import require_known
from pagoda.request import SamplingParams

INT8 = Method("int8_per_token_head")


def reader(method: Method = FULL, chunk: int = 12) -> Reader:
    return Reader(tiny_subject(), method, longest=48, chunk=chunk)


def window() -> tuple[int, ...]:
    return tiny_text().windows(2, 48)[1]


def read(own: Reader) -> torch.Tensor:
    return torch.cat([logits.clone() for logits in own.read(window())])


@pytest.mark.parametrize("method", [FULL, INT8], ids=str)
def test_logits_are_those_behind_the_log_probabilities_of_requests(method: Method) -> None:
    engine, _ = tiny_subject().open(method, longest=49, num_tokens=64)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, prompt_alone=True)
    (output,) = LLM.from_engine(engine).generate(list(window()), params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    told = zip(window(), output.prompt_logprobs, strict=True)
    expected = [place[token].logprob for token, place in told if place is not None]
    logprobs = torch.log_softmax(read(reader(method)), 1)
    found = [logprobs[i, token].item() for i, token in enumerate(window()[1:])]
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_chunk_is_read_when_it_is_asked_for_and_texts_follow_one_another() -> None:
    own = reader(chunk=20)
    first = own.read(window())
    assert [len(next(first)), len(own.block_ids)] == [20, 3]
    assert [len(logits) for logits in first] == [20, 8]
    first.close()
    broken_off = own.read(window())
    next(broken_off)
    broken_off.close()
    assert torch.equal(read(own), read(reader(chunk=20)))


def test_rows_come_as_many_at_a_time_as_are_wanted() -> None:
    pieces = [logits.clone() for logits in reader(chunk=5).read_by(12, window())]
    assert [len(piece) for piece in pieces] == [12, 12, 12, 12]
    assert torch.equal(torch.cat(pieces), read(reader(chunk=48)))


def test_bytes_of_a_token_are_those_of_the_pool() -> None:
    subject = tiny_subject()
    assert subject.numbers_per_token == 2 * 2 * 2 * 16  # layers, K and V, heads, numbers
    assert reader().bytes_per_token == 4 * subject.numbers_per_token
    # A byte a number, and a float32 for each of the eight vectors of two layers.
    assert reader(INT8).bytes_per_token == subject.numbers_per_token + 8 * 4


@pytest.mark.parametrize("name", ["auto", "bfloat16", *CODECS])
def test_every_method_reads_what_its_pool_holds(name: str) -> None:
    own = reader(Method(name))
    prove(own, window())
    assert all(own.storage.export_block(block_id).any() for block_id in own.block_ids)
    assert len(own.block_ids) > 0


@pytest.mark.parametrize(
    "token_ids",
    [[7] * 48, [0] * 48, [*range(12), *range(11, -1, -1), *range(24)]],
    ids=["one token", "the first token", "a palindrome"],
)
def test_a_text_that_is_the_same_backwards_proves_a_pool_too(token_ids: list[int]) -> None:
    own = reader(chunk=12)
    prove(own, token_ids)
    assert all(own.storage.export_block(block_id).any() for block_id in own.block_ids)
    assert len(own.block_ids) > 0


def test_a_pool_that_is_not_what_is_read_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    own = reader()
    monkeypatch.setattr(own.storage, "import_block", lambda *_: None)
    with pytest.raises(IntegrityError, match="auto: attention reads more than what the pool holds"):
        prove(own, window())


def test_a_cache_that_nobody_reads_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    own = reader()

    def forgetful(token_ids: Sequence[int]) -> Generator[torch.Tensor]:
        for first in range(0, len(token_ids), own.chunk):
            yield from Reader.read(own, token_ids[first : first + own.chunk])

    monkeypatch.setattr(own, "read", forgetful)
    with pytest.raises(IntegrityError, match="auto: attention reads no earlier tokens"):
        prove(own, window())


def test_methods_are_the_full_cache_and_each_other_format_once() -> None:
    names = [method.kv_cache_dtype for method in tiny_subject().methods()]
    assert names == ["auto", "bfloat16", *CODECS]  # float32 is what auto is
    # Named or not, another plain dtype tells what is noise.
    asked = tiny_subject().methods(["fp8_e4m3", "fp8", "auto", "float32"])
    assert [method.kv_cache_dtype for method in asked] == ["auto", "bfloat16", "fp8"]


def test_a_retention_or_form_is_tried_once_however_often_it_is_named() -> None:
    subject = tiny_subject()
    named = ["streaming:window=40", "full", "window:16", "streaming:sinks=4,window=40", "window:16"]
    once = (Method(retention="streaming:sinks=4,window=40"), Method(retention="window:16"))
    assert subject.methods(retentions=named) == (FULL, *once)
    assert subject.methods(["fp8"], named)[-3:] == (Method("fp8"), *once)
    assert subject.methods(retentions=["full"]) == (FULL,)
    forms = ["kvtc-4x", "kvtc-5x", "kvtc-4x"]
    once = (Method(tier_form="kvtc-4x"), Method(tier_form="kvtc-5x"))
    assert subject.methods(forms=forms) == (FULL, *once)


def test_an_unknown_method_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidOptionError, match="kv_cache_dtype='int9': one of auto, float32"):
        require_known(tiny_subject().options, ["bfloat16", "int9"])


def test_a_method_that_the_model_cannot_take_is_left_out_or_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = tiny_subject()
    size = type(subject.model.loaded).size

    def picky(loaded: Any, options: Any, max_model_len: int) -> Any:
        if options.kv_cache_dtype == "int8_per_token_head":
            raise InvalidOptionError("kv_cache_dtype", "head size 16", "too small")
        return size(loaded, options, max_model_len)

    monkeypatch.setattr(type(subject.model.loaded), "size", picky)
    assert INT8 not in subject.methods()
    calibrated = [f"kv_cache_dtype='{name}'" for name in CALIBRATED]
    told = ["kv_cache_dtype='head size 16'", *calibrated]
    assert [line.partition(":")[0] for line in subject.left_out()] == told
    with pytest.raises(InvalidOptionError, match="too small"):
        subject.methods(["int8_per_token_head"])
