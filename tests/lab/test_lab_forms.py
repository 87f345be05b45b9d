"""Lossy forms of tiers: what is read came from one, and its bytes are those of frames."""

from __future__ import annotations

import pytest
import torch
from lab_subjects import CASE, TEXT

from checkpoints import write_checkpoint
from pagoda.engine.build import load_model
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError
from pagoda.lab.method import FULL, Method
from pagoda.lab.proof import prove
from pagoda.lab.reader import Reader
from pagoda.lab.subject import Subject, require_forms
from pagoda.lab.text import TokenText

FORM = Method(tier_form="kvtc-4x")


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    directory = write_checkpoint(tmp_path_factory.mktemp("model"), CASE)
    options = EngineOptions(model=str(directory), device="cpu", threads=1, block_size=8)
    return Subject(load_model(options), options)


def test_each_chunk_reads_what_was_loaded(subject: Subject) -> None:
    full, form = (Reader(subject, method, longest=48, chunk=12) for method in (FULL, FORM))
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


def test_a_form_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="one of kvtc-3x"):
        require_forms(["kvtc-4x", "kvtc-7x"])
