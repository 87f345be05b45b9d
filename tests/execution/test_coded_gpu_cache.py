"""A cache of codes on a device: steps read what they stored, and each layer has its format.

What each codec keeps is held against the plain truth by the tests of kernels.
"""

from __future__ import annotations

import decoders
import pytest
import torch
from decoders import Pager, decoder_spec, on_device, random_weights, rope_spec, tokens

from pagoda.codecs import CODECS
from pagoda.errors import InvalidOptionError
from pagoda.execution.gpu.executor import GPUExecutor
from pagoda.execution.reference import reference_logits
from pagoda.models.decoder import AttentionSpec, QKNorm, RopeSpec
from pagoda.storage.gpu_storage import GPUStorage
from triton_device import DEVICE

NUM_TOKENS, NUM_BLOCKS, BLOCK_SIZE = 40, 40, 8
FULL = AttentionSpec(6, 2, 64, 64**-0.5, rope_spec(64), qk_norm=QKNorm.HEAD, qkv_bias=True)
WINDOW = AttentionSpec(
    6,
    2,
    64,
    0.1,
    RopeSpec((1.0, 0.1, 0.01), 1.2),
    sliding_window=7,
    qk_norm=QKNorm.ROW,
    logit_cap=5.0,
    sink_logits=True,
)
MIXED = decoder_spec([FULL, WINDOW])


def run(
    formats: str | list[str], chunks: list[int], companions: int = 0, padded: tuple[int, ...] = ()
) -> torch.Tensor:
    cache = MIXED.cache_spec(BLOCK_SIZE, formats)
    storage = GPUStorage(cache, 2 * NUM_BLOCKS, DEVICE)
    weights = on_device(random_weights(MIXED), DEVICE)
    executor = GPUExecutor(MIXED, weights, storage, 128, padded)
    others = [tokens(NUM_TOKENS, seed) for seed in range(1, companions + 1)]
    pager = Pager(BLOCK_SIZE, 2 * NUM_BLOCKS, cache.windows)
    return decoders.run(executor, pager, tokens(NUM_TOKENS), chunks, others)


@pytest.mark.parametrize("name", ["fp8_e5m2", "int4_per_token_head", "turboquant_k3v4_nc"])
def test_attention_reads_what_was_stored(name: str) -> None:
    """Much nearer to the plain truth about the codec than this is to a cache without one.

    Whole numbers of eight bits are met in `test_gpu_windows.py`.
    """
    weights = random_weights(MIXED)
    coded = reference_logits(MIXED, weights, tokens(NUM_TOKENS), torch.float32, CODECS[name])
    whole = reference_logits(MIXED, weights, tokens(NUM_TOKENS))
    cost = (coded - whole).square().mean().sqrt()
    assert cost > 0
    logits = run(name, [25, 1, 11, 1, 1, 1], companions=1, padded=(2,))
    assert (logits - coded).square().mean().sqrt() < 0.1 * cost


def test_each_layer_may_have_a_format_of_its_own() -> None:
    chunks = [19, 1]
    mixed = run(["turboquant_4bit_nc", "float32"], chunks)
    for others in ("turboquant_4bit_nc", "float32"):
        assert not torch.equal(run(others, chunks), mixed)


def test_heads_of_odd_chunks_are_refused_by_name() -> None:
    spec = decoder_spec([AttentionSpec(2, 2, 20, 0.2, None)])
    with pytest.raises(InvalidOptionError, match=r"head size 20.*multiple of 16"):
        GPUStorage(spec.cache_spec(16, "int8_per_token_head"), 4, DEVICE)
