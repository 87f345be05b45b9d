"""Every covered family against transformers: random checkpoints, float32, through the pages."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from decoders import Pager

from checkpoints import CASES, build_model
from latent_cases import LATENT_CASES
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.execution.cpu.panel_weights import PanelWeights
from pagoda.execution.reference import reference_logits
from pagoda.models.decoder import DecoderSpec
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.weights import DecoderWeights
from pagoda.storage.cpu_storage import CPUStorage

EVERY_CASE = {**CASES, **LATENT_CASES}
NUM_TOKENS = 96  # past every window, and past the original length of the scaled rotary cases
TOLERANCE = 1e-4
WAYS = {
    "one-prefill": [NUM_TOKENS],
    "chunks": [23, 23, 1, 40, 9],
    "steps": [56, *[1] * 16, 24],  # one by one where scaled cases pass their original length
}


@dataclass(frozen=True)
class Loaded:
    """One checkpoint as Pagoda loads it, and what transformers makes of it."""

    spec: DecoderSpec
    weights: DecoderWeights
    panels: PanelWeights
    token_ids: list[int]
    expected: torch.Tensor


@pytest.fixture(scope="module", params=EVERY_CASE)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    directory = tmp_path_factory.mktemp("checkpoint")
    model = build_model(EVERY_CASE[request.param])
    model.save_pretrained(directory)
    files = locate(str(directory))
    spec = load_spec(files, max_model_len=NUM_TOKENS)
    weights = load_weights(files, spec, "float32", lambda done, total: None)
    panels = PanelWeights.take_over(deepcopy(weights))
    token_ids = np.random.default_rng(3).integers(0, spec.vocab_size, NUM_TOKENS).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([token_ids])).logits[0]
    return Loaded(spec, weights, panels, token_ids, expected)


@pytest.mark.parametrize("way", WAYS)
def test_logits_are_those_of_transformers(loaded: Loaded, way: str):
    cache = loaded.spec.cache_spec(16, "float32")
    num_blocks = NUM_TOKENS // 16 * len(cache.groups)
    storage = CPUStorage(cache, num_blocks)
    executor = CPUExecutor(loaded.spec, loaded.panels, storage, NUM_TOKENS, num_threads=1)
    pager = Pager(16, num_blocks, storage.spec.windows)
    sequence = pager.sequence(loaded.token_ids)
    steps = [executor.forward(pager.batch([(sequence, count)])).clone() for count in WAYS[way]]
    logits = torch.cat(steps)
    assert (logits - loaded.expected).abs().max() < TOLERANCE
    assert torch.equal(logits.argmax(-1), loaded.expected.argmax(-1))


def test_the_plain_reference_agrees_with_transformers(loaded: Loaded):
    logits = reference_logits(loaded.spec, loaded.weights, loaded.token_ids)
    assert (logits - loaded.expected).abs().max() < TOLERANCE
