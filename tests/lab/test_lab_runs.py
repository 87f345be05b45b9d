"""Whole runs of the lab over a tiny random model: what is compared, asked and kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from lab_subjects import tiny_subject, tiny_text

from pagoda.engine.build import Model
from pagoda.engine.options import EngineOptions
from pagoda.errors import EngineError, InvalidOptionError
from pagoda.lab import lab as lab_module
from pagoda.lab.comparison import Comparison
from pagoda.lab.lab import Lab
from pagoda.lab.method import FULL, Method
from pagoda.lab.passkey import PasskeyScore, PasskeyTest
from pagoda.lab.reader import Reader
from pagoda.lab.sizes import Sizes
from pagoda.lab.speed import Speed, measure_speed
from pagoda.lab.subject import Subject
from pagoda.lab.text import TokenText, default_text

INT8, INT4 = Method("int8_per_token_head"), Method("int4_per_token_head")
SIZES = Sizes(windows=3, window=64, chunk=24, passkey_lengths=(128, 192), passkey_depths=2)
FIELDS = {
    *("kv_cache_dtype", "retention", "tier_form", "bytes_per_token", "bits_per_number"),
    *("perplexity", "perplexity_change", "perplexity_change_low", "perplexity_change_high"),
    *("kl_mean", "kl_p99", "top1", "tokens", "windows", "first_1k", "last_half", "passkey"),
    *("prefill_tokens_per_second", "decode_tokens_per_second", "model", "dtype", "text", "window"),
}


def ignore(part: str) -> None:
    """Nobody is told."""


@pytest.fixture
def finds(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Method, int]]:
    """Stands in for passkeys, of which a random model finds none, and for speed: who was asked.

    The full cache finds all in the shorter prompts and half in the longer ones.
    """
    asked: list[tuple[Method, int]] = []

    def look(self: object, subject: object, method: Method, length: int) -> object:
        asked.append((method, length))
        num_found = 4 if length == 128 else 2
        return (PasskeyScore(length, 0.5, num_found, 4),)

    monkeypatch.setattr(PasskeyTest, "look", look)
    monkeypatch.setattr(lab_module, "measure_speed", lambda *_: Speed(100.0, 10.0))
    return asked


def run_lab(methods: Sequence[Method], on_part: object = ignore) -> Lab:
    own = Lab(tiny_subject(), methods, SIZES, tiny_text())
    own.run(on_part)  # type: ignore[arg-type]
    return own


def test_a_line_for_each_method_and_the_noise_floor_with_the_full_cache(
    finds: list[tuple[Method, int]],
) -> None:
    parts: list[str] = []
    run = run_lab([FULL, INT8], parts.append)
    full, int8 = (json.loads(json.dumps(line)) for line in run.report().lines())
    assert set(int8) == FIELDS
    assert set(full) == FIELDS | {"noise_floor"}
    assert (full["kv_cache_dtype"], full["retention"]) == ("auto", "full")
    assert (full["kl_mean"], full["top1"], full["perplexity_change"]) == (0.0, 1.0, 0.0)
    assert full["noise_floor"]["kl_mean"] == 0.0  # bit for bit on CPUs
    assert full["tokens"] == int8["tokens"] == 3 * 63
    assert int8["kl_mean"] > 0.0
    assert int8["bytes_per_token"] < 0.4 * full["bytes_per_token"]
    assert int8["bits_per_number"] == pytest.approx(10.0)  # a float32 beside 16 numbers
    assert int8["prefill_tokens_per_second"] == 100.0
    assert len(parts) <= run.num_parts


def test_passkeys_count_where_the_full_cache_finds_nine_of_ten(
    finds: list[tuple[Method, int]],
) -> None:
    report = run_lab([FULL, INT8, INT4]).report()
    assert finds == [(FULL, 128), (FULL, 192), (INT8, 128), (INT4, 128)]
    assert [score.length for each in report.methods for score in each.passkey] == [128] * 3
    (note,) = report.notes
    assert note.startswith("passkeys in 192 tokens: the full cache finds 50%")


@pytest.mark.parametrize("short", ["window:16", "streaming:sinks=4,window=16"])
def test_retentions_are_tried_beside_the_full_cache(
    short: str, finds: list[tuple[Method, int]]
) -> None:
    """One that is longer than the text lets go of nothing."""
    methods = tiny_subject().methods(retentions=[short, "window:200"])
    full, lets_go, keeps = run_lab(methods).report().lines()
    assert [each["retention"] for each in (full, lets_go, keeps)] == ["full", short, "window:200"]
    assert keeps["kl_mean"] == 0.0 < lets_go["kl_mean"]
    assert lets_go["bytes_per_token"] < full["bytes_per_token"]


def test_fewer_bits_diverge_more() -> None:
    comparison = Comparison(tiny_subject(), [FULL, INT8, INT4], SIZES)
    for each in tiny_text().windows(2, SIZES.window):
        comparison.read(each, lambda: None)
    (full, int8, int4), noise = comparison.qualities()
    assert full is not None
    assert int8 is not None
    assert int4 is not None
    assert noise == full
    assert 0 < int8.kl_mean < int4.kl_mean
    assert int8.top1 >= int4.top1


def test_what_was_done_is_kept_when_a_run_is_broken_off() -> None:
    def stop_in_third(part: str) -> None:
        if part == "window 3 of 3":
            raise KeyboardInterrupt

    run = Lab(tiny_subject(), [FULL, INT8], SIZES, tiny_text())
    with pytest.raises(KeyboardInterrupt):
        run.run(stop_in_third)
    _, int8 = run.report().lines()
    assert (int8["windows"], int8["passkey"]) == (2, [])
    assert int8["decode_tokens_per_second"] is int8["prefill_tokens_per_second"] is None


def test_a_run_that_is_broken_off_early_knows_the_bytes() -> None:
    run = Lab(tiny_subject(), [FULL, INT8], SIZES, tiny_text())
    full, int8 = run.report().lines()
    assert full["bytes_per_token"] == 4 * tiny_subject().numbers_per_token
    assert (set(full), set(int8)) == ({*FIELDS, "noise_floor"}, FIELDS), "nothing is left out"
    known = {name for name in FIELDS if int8[name] is not None}
    assert known == {
        *("kv_cache_dtype", "retention", "bytes_per_token", "bits_per_number", "passkey"),
        *("model", "dtype", "text", "window"),
    }
    assert full["noise_floor"] is None


def test_logits_that_are_no_numbers_name_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Reader.read

    def sick(self: Reader, token_ids: Sequence[int]) -> object:
        for logits in read(self, token_ids):
            yield torch.full_like(logits, np.nan) if self.method == INT8 else logits

    monkeypatch.setattr(Reader, "read", sick)
    comparison = Comparison(tiny_subject(), [FULL, INT8], SIZES)
    with pytest.raises(EngineError, match="int8_per_token_head: the model's logits are not finite"):
        comparison.read(tiny_text().windows(2, SIZES.window)[0], lambda: None)


def test_a_text_too_short_for_passkeys_is_refused() -> None:
    text = dataclasses.replace(tiny_text(), token_ids=tiny_text().token_ids[:191])
    with pytest.raises(InvalidOptionError, match=r"has 191 tokens, and prompts of 192 take 192"):
        Lab(tiny_subject(), [FULL], dataclasses.replace(SIZES, window=32), text)


def test_a_prompt_has_its_key_at_its_depth_and_leaves_room_for_the_answer() -> None:
    tokenizer = tiny_subject().model.tokenizer
    test = PasskeyTest(tiny_text(), tokenizer, SIZES)
    places = []
    for depth in (0.0, 0.5, 1.0):
        words = tokenizer.decode(test.prompt(192, depth, 71432))
        assert len(words) <= 192 - len(" 71432")  # a byte a token
        assert words.endswith("What is the pass key? The pass key is")
        places.append(words.index("71432"))
    assert places == sorted(set(places))


def test_keys_are_looked_for_in_answers() -> None:
    scores = PasskeyTest(tiny_text(), tiny_subject().model.tokenizer, SIZES).look(
        tiny_subject(), INT8, 128
    )
    assert [score.depth for score in scores] == [0.75, 0.25]
    assert [(score.num_found, score.num_trials) for score in scores] == [(0, 2)] * 2


def test_both_speeds_are_told() -> None:
    speed = measure_speed(tiny_subject(), INT8, tiny_text().windows(2, 32))
    assert set(speed.as_json()) == {"prefill_tokens_per_second", "decode_tokens_per_second"}
    assert min(speed.prefill, speed.decode) > 0


@pytest.mark.model
def test_the_default_model_finds_its_passkey_and_prefers_more_bits(default_model: Model) -> None:
    options = EngineOptions(device="cpu", max_model_len=300)
    subject = Subject(dataclasses.replace(default_model, max_model_len=300), options)
    sizes = Sizes(windows=2, window=32, chunk=31, passkey_depths=1, passkey_trials=1)
    text = TokenText.of(default_text(), subject.model.tokenizer)
    comparison = Comparison(subject, [FULL, INT8, INT4], sizes)
    for window in text.windows(sizes.windows, sizes.window):
        comparison.read(window, lambda: None)
    (_, int8, int4), _ = comparison.qualities()
    assert int8 is not None
    assert int4 is not None
    assert int8.kl_mean < 0.01 < int4.kl_mean < 0.2
    assert abs(int8.whole.change.mean) < 0.02
    assert comparison.bytes_per_token == [23040, 12240, 6480]
    (score,) = PasskeyTest(text, subject.model.tokenizer, sizes).look(subject, INT8, 144)
    assert (score.num_found, score.num_trials) == (1, 1)
