"""An output head that is stored although the config ties it to the embedding."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints import CASES, Case, reference_model, write_checkpoint
from pagoda.cli.plan_model import find_facts
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.weights import DecoderWeights
from pagoda.planning.architecture import read_architecture
from pagoda.planning.parameters import count_parameters

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
TIED = CASES["llama-tied"]


def with_head(directory: Path, case: Case, head: torch.Tensor | None) -> Path:
    """A checkpoint of the case that stores this head too; None: the embedding's own numbers."""
    write_checkpoint(directory, case, tokenizer=False)
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors[HEAD] = tensors[EMBEDDING].clone() if head is None else head
    save_file(tensors, path, metadata={"format": "pt"})
    return directory


def loaded(directory: Path) -> DecoderWeights:
    files = locate(str(directory))
    return load_weights(files, load_spec(files), "float32")


@pytest.mark.parametrize("name", ["llama-tied", "smollm3"])
def test_a_head_that_differs_is_used_as_transformers_does(name, tmp_path, caplog):
    head = torch.randn(288, 64, generator=torch.Generator().manual_seed(1))
    with_head(tmp_path, CASES[name], head)
    with caplog.at_level(logging.WARNING, "pagoda"):
        weights = loaded(tmp_path)
    reference = reference_model(tmp_path)
    assert torch.equal(reference.lm_head.weight, head)
    assert torch.equal(weights.lm_head, head)
    assert torch.equal(weights.embedding, reference.model.embed_tokens.weight)
    [line] = [line for line in caplog.messages if line.startswith(HEAD)]
    assert "is used, although the config says tie_word_embeddings" in line


def test_a_head_that_is_the_embedding_is_stored_once(tmp_path, caplog):
    weights = loaded(with_head(tmp_path, TIED, None))
    assert weights.lm_head is weights.embedding
    assert not caplog.messages


def test_the_plan_counts_the_head_that_the_engine_keeps(tmp_path):
    heads = {"differs": torch.ones(288, 64), "equal": None}
    for name, head in heads.items():
        directory = with_head(tmp_path / name, TIED, head)
        config = find_facts(str(directory)).config
        planned = count_parameters(config, read_architecture(config)).total
        assert planned * 4 == loaded(directory).size_bytes
