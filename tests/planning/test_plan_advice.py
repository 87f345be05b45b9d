"""What a plan offers beside itself, and what it warns of: only what an engine takes."""

from __future__ import annotations

from typing import Any

import pytest

from pagoda.errors import CapacityError, InvalidOptionError
from pagoda.planning.alternatives import plan_with_alternatives
from pagoda.planning.request import PlanRequest
from pagoda.planning.subject import read_subject
from pagoda.planning.ways import SMALL_CHECKPOINT
from planning.plans import GIB, LLAMA_3_8B, facts, plan


@pytest.mark.parametrize(("prefix", "is_offered"), [(4000, True), (4096, False), (8192, False)])
def test_half_a_context_is_not_offered_where_all_of_it_is_shared(
    prefix: int, is_offered: bool
) -> None:
    request = PlanRequest(gpu="H100", context=8192, shared_prefix=prefix)
    told = plan_with_alternatives(facts(LLAMA_3_8B), request)
    offered = {other.name: other.flags for other in told.alternatives}
    assert (offered.get("half the context") == "--context 4096") is is_offered


def test_no_longer_context_is_told_than_the_engine_takes() -> None:
    told = plan(LLAMA_3_8B, gpu="H100", max_model_len=8192)
    assert told.low is not None
    assert told.high is not None
    assert told.low.longest_context == told.high.longest_context == 8192


NEARLY_FITS: list[dict[str, Any]] = [
    {"gpu": "RTX-4090"},
    {"kv_cache_memory_bytes": 6 * GIB},
    {"num_gpu_blocks_override": 999},
]


@pytest.mark.parametrize("options", NEARLY_FITS)
def test_the_length_that_is_offered_is_the_longest_that_certainly_fits(
    options: dict[str, Any],
) -> None:
    with pytest.raises(CapacityError) as caught:
        plan_with_alternatives(facts(LLAMA_3_8B), PlanRequest(users=2, **options))
    _, _, words = str(caught.value).partition("--max-model-len ")
    length = int(words.partition(" ")[0])
    told = plan(LLAMA_3_8B, max_model_len=length, **options)
    assert told.low is not None
    assert told.low.concurrency >= 1
    pool = read_subject(facts(LLAMA_3_8B), PlanRequest(**options), None).pool
    assert pool.num_blocks(length + 1) + pool.reserved_blocks > told.low.num_blocks


def test_what_certainly_fits_and_what_perhaps_does_are_told_apart() -> None:
    """8,192 tokens on T4s: two may hold them, four do; and the plan of two warns."""
    with pytest.raises(CapacityError) as caught:
        plan_with_alternatives(facts(LLAMA_3_8B), PlanRequest(gpu="T4", max_model_len=8192))
    told = str(caught.value)
    assert "It certainly fits with --tensor-parallel-size 4 (perhaps with 2)" in told
    two = plan(LLAMA_3_8B, gpu="T4", max_model_len=8192, tensor_parallel_size=2)
    assert two.low is not None
    assert two.low.concurrency < 1
    assert any("perhaps fits" in warning for warning in two.warnings)


def test_the_two_lengths_of_a_refusal_do_not_contradict_each_other() -> None:
    with pytest.raises(CapacityError) as caught:
        plan_with_alternatives(facts(LLAMA_3_8B), PlanRequest(gpu="RTX-4090"))
    told = str(caught.value)
    estimated = told.partition("the estimated maximum model length is ")[2].partition(".")[0]
    assert f"(perhaps with up to {estimated})" in told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "None of parallelism, quantization and a length of 2,048 or more"),
        ({"engine": "pagoda"}, "Neither quantization nor a length of 2,048 or more"),
        ({"engine": "pagoda", "gpu": "H100"}, "No length of 2,048 or more"),
    ],
)
def test_a_model_that_only_may_fit_is_not_told_to_fit(options: dict[str, Any], words: str) -> None:
    asked = PlanRequest(kv_cache_memory_bytes=GIB // 64, max_model_len=8192, **options)
    with pytest.raises(CapacityError, match=rf"{words} alone certainly makes it fit"):
        plan_with_alternatives(facts(LLAMA_3_8B), asked)


def test_a_memory_without_a_unit_is_refused_with_a_hint() -> None:
    with pytest.raises(InvalidOptionError, match="with a unit it would be 24GiB"):
        PlanRequest(memory=24)


@pytest.mark.parametrize("options", [{"max_model_len": 200_000}, {"kv_cache_dtype": "fp9"}])
def test_no_words_of_pagodas_are_told_of_vllm(options: dict[str, Any]) -> None:
    own = ("--kv-retention", "int3")
    told = []
    for engine in ("vllm", "pagoda"):
        with pytest.raises(InvalidOptionError) as caught:
            plan(LLAMA_3_8B, engine=engine, **options)
        told.append(any(word in str(caught.value) for word in own))
    assert told == [False, True]


CANNOT: list[tuple[dict[str, Any], str]] = [
    ({"gpu": "V100-32GB", "dtype": "bfloat16"}, "bfloat16 is refused on V100-32GB"),
    ({"gpu": "T4", "dtype": "bf16", "quantization": "awq"}, "bfloat16 is refused on T4"),
    ({"gpu": "V100-32GB", "quantization": "nvfp4"}, "weights in nvfp4 are refused on V100-32GB"),
    ({"gpu": "V100-32GB", "kv_cache_dtype": "fp8"}, "a cache in fp8 is refused on V100-32GB"),
    ({"gpu": "H100", "kv_cache_dtype": "nvfp4"}, "a cache in nvfp4 is refused on H100"),
    ({"gpu": "H100", "block_size": 24}, "blocks of 24 tokens are refused on H100"),
    ({"gpu": "EPYC-9654", "kv_cache_dtype": "nvfp4"}, "a cache in nvfp4 is refused on EPYC-9654"),
    ({"gpu": "M4-MAX", "kv_cache_dtype": "fp8"}, "a cache in fp8 is refused on M4-MAX"),
]


@pytest.mark.parametrize(("options", "words"), CANNOT)
def test_what_a_device_certainly_cannot_do_is_a_warning(
    options: dict[str, Any], words: str
) -> None:
    told = plan(LLAMA_3_8B, max_model_len=2048, **options)
    assert len([warning for warning in told.warnings if warning.startswith(words)]) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"gpu": "V100-32GB"},
        {"gpu": "V100-32GB", "quantization": "gptq"},
        {"gpu": "A100-80GB", "quantization": "nvfp4"},  # as weights alone
        {"gpu": "A100-80GB", "kv_cache_dtype": "fp8"},
        {"gpu": "B200", "kv_cache_dtype": "nvfp4"},
        {"gpu": "H100", "block_size": 48},
        {"gpu": "EPYC-9654", "block_size": 24},
        {"gpu": "EPYC-9654", "kv_cache_dtype": "fp8"},
    ],
)
def test_what_a_device_may_do_is_no_warning(options: dict[str, Any]) -> None:
    told = plan(LLAMA_3_8B, max_model_len=2048, **options)
    assert not [warning for warning in told.warnings if "refused" in warning]


@pytest.mark.parametrize(
    ("options", "offered"),
    [
        ({"gpu": "H100"}, {"fp8 cache", "int4 cache", "fp8 weights", SMALL_CHECKPOINT}),
        ({"gpu": "EPYC-9654"}, {"fp8 cache", "fp8 weights", SMALL_CHECKPOINT}),
        ({"gpu": "M4-MAX"}, {"fp8 weights", SMALL_CHECKPOINT}),
        ({"gpu": "V100-32GB"}, {"int4 cache", SMALL_CHECKPOINT}),
        ({"gpu": "H100", "block_size": 24}, set()),
        ({"gpu": "H100", "engine": "pagoda"}, {"int8 cache", "int4 cache, uncalibrated"}),
        (
            {"gpu": "EPYC-9654", "engine": "pagoda"},
            {"int8 cache", "int4 cache", "int4 cache, uncalibrated"},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_only_what_would_start_is_offered(options: dict[str, Any], offered: set[str]) -> None:
    """Of formats; the same for half a context and for more devices."""
    request = PlanRequest(max_model_len=2048, **options)
    told = plan_with_alternatives(facts(LLAMA_3_8B), request)
    others = {"half the context", "half of each prompt shared", "1 more device"}
    names = {other.name for other in told.alternatives}
    assert names - others == offered
    assert bool(names & others) == bool(offered)


def test_what_would_buy_less_is_not_offered() -> None:
    """Blocks that are counted out are shorter on more ranks, and hold fewer users."""
    name = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
    request = PlanRequest(
        gpu="RTX-3090",
        engine="vllm@0.9.1",
        tensor_parallel_size=8,
        quantization="gptq",
        kv_cache_dtype="nvfp4",
        max_model_len=32_768,
        num_gpu_blocks_override=1000,
    )
    told = plan_with_alternatives(facts(name), request)
    offered = {other.name for other in told.alternatives}
    assert offered == {"half of each prompt shared", "half the context"}


def test_what_a_device_refuses_is_no_way_to_fit() -> None:
    with pytest.raises(CapacityError) as caught:
        plan_with_alternatives(facts(LLAMA_3_8B), PlanRequest(gpu="V100-16GB", max_model_len=8192))
    told = str(caught.value)
    assert SMALL_CHECKPOINT in told
    assert "fp8" not in told
    with pytest.raises(CapacityError, match="--quantization fp8"):
        plan_with_alternatives(facts(LLAMA_3_8B), PlanRequest(gpu="T4", max_model_len=8192))


@pytest.mark.parametrize(
    ("gpu", "dtype"), [("V100-32GB", "float16"), ("T4", "float16"), ("H100", "bfloat16")]
)
def test_a_dtype_that_the_device_lacks_is_replaced(gpu: str, dtype: str) -> None:
    told = plan(LLAMA_3_8B, gpu=gpu, max_model_len=2048, tensor_parallel_size=4)
    assert told.dtype == dtype
    assert plan(LLAMA_3_8B, gpu=gpu, dtype="float32", tensor_parallel_size=8).dtype == "float32"


def test_of_an_earlier_release_nothing_is_certain() -> None:
    told = plan(
        LLAMA_3_8B, gpu="V100-32GB", kv_cache_dtype="fp8", engine="vllm@0.8", max_model_len=2048
    )
    assert not [warning for warning in told.warnings if "refused" in warning]
