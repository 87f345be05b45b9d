"""A cache of codes: attention reads what was stored, and not a bit depends on company."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import decoders
import numpy as np
import pytest
import torch
from cpu_executors import panel_weights
from decoders import Pager, decoder_spec, random_weights, rope_spec, tokens

import calibrated_examples
from pagoda.codecs import CALIBRATED, CODECS, Codec, codec_of
from pagoda.errors import InvalidOptionError
from pagoda.execution.cpu.executor import CPUExecutor
from pagoda.execution.cpu.layer_codes import coded_form, page_form
from pagoda.execution.reference import reference_logits
from pagoda.kernels.cpu.whole_form import TAKES_WHOLE
from pagoda.models.decoder import AttentionSpec, DecoderSpec, QKNorm, RopeSpec
from pagoda.storage.cpu_storage import CPUStorage

NUM_TOKENS = 280
OWN = "levels5-float16-norm-hadamard/levels6-float32-offset-signs"
NAMES = (*CODECS, OWN)
FEW_NAMES = ("fp8_e4m3", "int8_per_token_head", "int4_per_token_head", "turboquant_k3v4_nc", OWN)
"""Codes of each width and each kind of numbers."""
FULL = AttentionSpec(6, 2, 64, 64**-0.5, rope_spec(64), qk_norm=QKNorm.HEAD, qkv_bias=True)
WINDOW = AttentionSpec(
    6,
    2,
    64,
    0.1,
    RopeSpec((1.0, 0.1, 0.01), 1.2),
    sliding_window=7,
    logit_cap=5.0,
    sink_logits=True,
)
MIXED = decoder_spec([FULL, WINDOW])
UNCAPPED = decoder_spec([FULL, replace(WINDOW, logit_cap=None, sink_logits=False)])
ODD = decoder_spec([AttentionSpec(4, 4, 80, 80**-0.5, rope_spec(80))])


@cache
def plain_logits(spec: DecoderSpec) -> torch.Tensor:
    """Of a cache without a codec."""
    return reference_logits(spec, random_weights(spec), tokens(NUM_TOKENS))


@cache
def found_codec(name: str) -> Codec | None:
    """Of a format, calibrated for heads of 64 if it has to be; None: plain numbers."""
    return calibrated_examples.codec(name, 2, 64) if name in CALIBRATED else codec_of(name)


def run(
    formats: str | list[str],
    chunks: list[int],
    *,
    spec: DecoderSpec = MIXED,
    codec: Codec | None = None,
    companions: int = 0,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    num_threads: int = 1,
    filler: int = 0,
) -> torch.Tensor:
    """Logits of one sequence given in chunks, perhaps among others in chunks of their own.

    codec: of all layers; None: as the formats say. filler: every byte of the pool before anything
    is written.
    """
    cache_spec = spec.cache_spec(block_size, formats)
    num_blocks = 1600 // block_size * len(cache_spec.groups)
    codecs = [codec or found_codec(layer.dtype) for layer in cache_spec.layers]
    storage = CPUStorage(cache_spec, num_blocks, codecs)
    for layer in storage.layers:
        layer.array.view(np.uint8)[:] = filler
    executor = CPUExecutor(spec, panel_weights(spec, dtype), storage, 512, num_threads)
    others = [tokens(NUM_TOKENS, seed) for seed in range(1, companions + 1)]
    pager = Pager(block_size, num_blocks, cache_spec.windows)
    return decoders.run(executor, pager, tokens(NUM_TOKENS), chunks, others, pace=5)


@pytest.mark.parametrize(
    ("name", "spec"),
    [*product((*NAMES, *CALIBRATED), [MIXED]), *product(FEW_NAMES, [ODD])],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_attention_reads_what_was_stored(name: str, spec: DecoderSpec):
    """Much nearer to the plain truth about the codec than this is to a cache without one."""
    weights = random_weights(spec)
    coded = reference_logits(spec, weights, tokens(NUM_TOKENS), torch.float32, found_codec(name))
    whole = plain_logits(spec)
    logits = run(name, [NUM_TOKENS], spec=spec)
    error, cost = (logits - coded).square().mean().sqrt(), (coded - whole).square().mean().sqrt()
    assert error < 0.1 * cost
    assert cost > 0


@pytest.mark.parametrize("block_size", [16, 1])
@pytest.mark.parametrize("name", ["int4", "turboquant_4bit_nc"])
def test_what_is_stored_is_turned_back_in_bfloat16(name: str, block_size: int):
    """A wrong matrix, or one that lies otherwise, would cost as much as a codec does, or more.

    In blocks of odd size numbers do not come in pairs.
    """
    weights = random_weights(MIXED)
    coded = reference_logits(MIXED, weights, tokens(NUM_TOKENS), torch.float32, found_codec(name))
    logits = run(name, [NUM_TOKENS], block_size=block_size, dtype=torch.bfloat16)
    error, cost = ((each - coded).square().mean().sqrt() for each in (logits, plain_logits(MIXED)))
    assert error < 0.7 * cost


@pytest.mark.parametrize(
    ("name", "wide"),
    [("int4", 16), ("turboquant_4bit_nc", 0), ("int4_per_token_head", 0),
     ("int8_per_token_head", None), ("fp8_e4m3", None), ("bfloat16", None),
     ("levels4-float16-offset/levels4-float16-offset", None)],
)  # fmt: skip
def test_queries_are_whole_where_keys_are_levels_in_a_basis(name: str, wide: int | None):
    """And the model computes in bfloat16, on a CPU with the instructions for it."""
    spec = MIXED.cache_spec(16, name)
    layer = CPUStorage(spec, 4, [found_codec(each.dtype) for each in spec.layers]).layers[0]
    assert page_form(layer, is_paired=True).wide == (wide if TAKES_WHOLE else None)
    assert page_form(layer, is_paired=False).wide is None


def test_layers_that_round_queries_otherwise_have_kernels_of_their_own():
    plain = codec_of("levels4-float16-offset/levels4-float16-offset")
    turned = codec_of("int4_per_token_head")
    storage = CPUStorage(MIXED.cache_spec(16, "int4_per_token_head"), 4, [plain, turned])
    first, second = storage.layers
    assert coded_form(first)[:-1] == coded_form(second)[:-1]
    assert coded_form(first) != coded_form(second)


@pytest.mark.parametrize(
    ("dtype", "block_size", "other"),
    [*product([torch.float32], (1, 24), [16]), (torch.bfloat16, 24, 8), (torch.bfloat16, 32, 16)],
    ids=str,
)
def test_blocks_may_have_any_size(dtype: torch.dtype, block_size: int, other: int):
    """Where queries are whole in blocks of both sizes, or of neither."""
    whole = run("int4_per_token_head", [NUM_TOKENS], block_size=other, dtype=dtype)
    logits = run("int4_per_token_head", [NUM_TOKENS], block_size=block_size, dtype=dtype)
    bound = 1e-2 if dtype == torch.float32 else 5e-2
    assert (logits - whole).abs().max() < bound * whole.abs().max()


@pytest.mark.parametrize("name", ["int4", "int4_per_token_head"])
def test_whole_queries_cost_less_than_bfloat16_does(name: str):
    """Blocks of 24 have others, by which it is told."""
    exact = run(name, [NUM_TOKENS])
    whole, floating = (
        run(name, [NUM_TOKENS], block_size=size, dtype=torch.bfloat16) for size in (16, 24)
    )
    error, cost = ((each - floating).square().mean().sqrt() for each in (whole, exact))
    assert torch.equal(whole, floating) is not TAKES_WHOLE
    assert error < 0.6 * cost


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", [*NAMES, *CALIBRATED])
def test_not_a_bit_depends_on_chunks_companions_or_threads(name: str, dtype: torch.dtype):
    """Nor on what a block held before: bytes of ones are no number in any float."""
    whole = run(name, [NUM_TOKENS], dtype=dtype)
    assert torch.equal(run(name, [7] * 12 + [196], dtype=dtype), whole)
    chunks, by_two = [108, *[1] * 8, 3, 161], {"num_threads": 2, "filler": 0xFF}
    assert torch.equal(run(name, chunks, companions=2, dtype=dtype, **by_two), whole)


@pytest.mark.parametrize("name", ["fp8_e4m3", "int4_per_token_head"])
def test_what_is_taken_out_of_keys_is_missed_by_nobody(name: str):
    """Before they are turned, where the form turns them."""
    mean = np.random.default_rng(2).normal(size=(2, 64)).astype(np.float32) * 2
    form = codec_of(name)
    assert form is not None
    codec = replace(form, key_mean=mean)
    weights = random_weights(UNCAPPED)
    coded = reference_logits(UNCAPPED, weights, tokens(NUM_TOKENS), torch.float32, codec)
    logits = run(name, [NUM_TOKENS], spec=UNCAPPED, codec=codec)
    error = (logits - coded).square().mean().sqrt()
    cost = (coded - plain_logits(UNCAPPED)).square().mean().sqrt()
    assert error < 0.1 * cost
    assert torch.equal(run(name, [7] * 40, spec=UNCAPPED, codec=codec, num_threads=2), logits)


def test_each_layer_may_have_a_format_of_its_own():
    logits = run(["turboquant_4bit_nc", "float32"], [NUM_TOKENS])
    assert torch.equal(run(["turboquant_4bit_nc", "float32"], [9] * 31 + [1]), logits)
    assert not torch.equal(run("turboquant_4bit_nc", [NUM_TOKENS]), logits)
    assert not torch.equal(run("float32", [NUM_TOKENS]), logits)


def test_each_layer_has_a_calibrated_codec_of_its_own():
    weights, text = random_weights(MIXED), tokens(NUM_TOKENS)
    cache_spec = MIXED.cache_spec(16, "int4")
    first, second = (calibrated_examples.codec("int4", 2, 64, seed) for seed in (0, 50))

    def logits(*codecs: Codec) -> torch.Tensor:
        num_blocks = 100 * len(cache_spec.groups)
        storage = CPUStorage(cache_spec, num_blocks, codecs)
        executor = CPUExecutor(MIXED, panel_weights(MIXED), storage, 512)
        return decoders.run(
            executor, Pager(16, 100, cache_spec.windows), text, [NUM_TOKENS], [], pace=5
        )

    mixed = logits(first, second)
    truth = reference_logits(MIXED, weights, text, torch.float32, [first, second])
    other = reference_logits(MIXED, weights, text, torch.float32, first)
    assert (mixed - truth).square().mean() < 0.1 * (truth - other).square().mean()


def test_what_is_calibrated_needs_a_codec():
    with pytest.raises(InvalidOptionError, match=r"int4.*calibrated"):
        CPUStorage(MIXED.cache_spec(16, "int4"), 4)


def test_heads_of_odd_chunks_are_refused_by_name():
    spec = decoder_spec([AttentionSpec(2, 2, 20, 0.2, None)])
    with pytest.raises(InvalidOptionError, match=r"head size 20.*multiple of 16"):
        CPUStorage(spec.cache_spec(16, "int8_per_token_head"), 4)
