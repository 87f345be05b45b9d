"""Lossy forms of tiers: what is read came from one, and its bytes are those of frames."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lab_subjects import CASE, TEXT

from checkpoints import write_checkpoint
from pagoda.engine.build import load_model
from pagoda.engine.devices.transform_packing import TransformPacking
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError
from pagoda.lab.method import FULL, Method
from pagoda.lab.proof import prove
from pagoda.lab.reader import Reader
from pagoda.lab.subject import Subject, require_known
from pagoda.lab.text import TokenText

FORM = Method(tier_form="kvtc-4x")


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    directory = write_checkpoint(tmp_path_factory.mktemp("model"), CASE)
    options = EngineOptions(model=str(directory), device="cpu", threads=1, block_size=8)
    return Subject(load_model(options), options)


def test_each_chunk_reads_what_was_loaded(subject: Subject) -> None:
    packing = subject.packings([FULL, FORM])[FORM]
    full = Reader(subject, FULL, longest=48, chunk=12)
    form = Reader(subject, FORM, longest=48, chunk=12, packing=packing)
    (window, *_) = TokenText.of(TEXT, subject.model.tokenizer).windows(2, 48)
    assert form.bytes_per_token == full.bytes_per_token, "nothing has been stored"
    own = [logits.clone() for logits in form.read(window)]
    others = [logits.clone() for logits in full.read(window)]
    assert torch.equal(own[0], others[0]), "nothing was loaded yet"
    assert torch.equal(own[1], others[1]), "the first block stays as it is"
    assert not torch.equal(own[2], others[2])
    again = [logits.clone() for logits in form.read(window)]
    assert all(map(torch.equal, own, again))
    assert form.bytes_per_token < full.bytes_per_token
    prove(form, window)


def test_a_form_stands_beside_the_full_cache_alone(subject: Subject) -> None:
    assert subject.methods(forms=["kvtc-4x"]) == (FULL, FORM)
    assert str(FORM) == "tier: kvtc-4x"


def test_all_forms_have_one_memory_of_what_was_calibrated(subject: Subject) -> None:
    methods = [FORM, Method(tier_form="kvtc-8x")]
    one, other = subject.packings(methods).values()
    assert isinstance(one, TransformPacking)
    assert isinstance(other, TransformPacking)
    ((own, others),) = zip(one.transforms, other.transforms, strict=True)
    assert own.step < others.step
    assert all(run is its for run, its in zip(own.runs, others.runs, strict=True))
    assert all(own is its for own, its in zip(one.rotary, other.rotary, strict=True))


def test_a_form_that_there_is_not_is_refused(subject: Subject) -> None:
    with pytest.raises(InvalidOptionError, match="one of kvtc-3x"):
        require_known(subject.options, [], forms=["kvtc-4x", "kvtc-7x"])


def test_a_form_is_refused_where_the_engine_would_refuse_it(subject: Subject) -> None:
    """Before anything is calibrated."""
    layer = subject.model.spec.layers[0]
    wide = replace(layer, attention=replace(layer.attention, num_kv_heads=1024))  # type: ignore[type-var]
    loaded = replace(subject.model.loaded, spec=replace(subject.model.spec, layers=(wide,)))  # type: ignore[type-var]
    other = replace(subject, model=replace(subject.model, loaded=loaded))
    with pytest.raises(InvalidOptionError, match=r"kv_tier_form.*up to 1,024 numbers"):
        other.methods(forms=["kvtc-4x"])
