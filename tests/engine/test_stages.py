"""What every device promises on the way from it to a running engine, stage by stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from fake_gpu import Card

from checkpoints import Case, write_checkpoint
from pagoda.engine.devices.backend import Backend, Loaded, Running, Sized
from pagoda.engine.devices.cpu_backend import CPUBackend
from pagoda.engine.options import EngineOptions
from pagoda.errors import CapacityError, InvalidOptionError, RefusedError
from pagoda.models.load import load_spec
from pagoda.models.locate import locate
from pagoda.storage.block_storage import BlockStorage

BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN = 12, 4, 16
VERBS = ("prepare", "hold", "load", "size", "start")


@dataclass(frozen=True)
class Kind:
    """A kind of device, and what it cannot follow."""

    open: Callable[[], Backend]
    foreign: dict[str, Any]
    """Options of the other kind."""
    dtype: str
    """What weights stored as float16 become there."""
    own: dict[str, Any] = field(default_factory=dict)
    """Options that spare the interpreter work."""


NOT_A_CPUS = {"device": "cuda", "cudagraph_capture_sizes": [1], "dtype": "float16"}
NOT_A_GPUS = {"device": "cpu", "threads": 1}
SMALL_STEPS = {"cudagraph_capture_sizes": (), "max_num_seqs": 2, "max_num_batched_tokens": 8}
KINDS = {
    "CPU": Kind(CPUBackend, NOT_A_CPUS, "bfloat16"),
    "GPU": Kind(lambda: Card().backend(), NOT_A_GPUS, "float16", SMALL_STEPS),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = {"num_hidden_layers": 1, "head_dim": 16, "tie_word_embeddings": True}
    return str(write_checkpoint(tmp_path_factory.mktemp("stages"), Case("qwen3", config)))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def options(kind: Kind, **more: Any) -> EngineOptions:
    stated = {"num_gpu_blocks_override": BLOCKS, "block_size": BLOCK_SIZE}
    return EngineOptions(**(stated | kind.own | more))


def load(kind: Kind, directory: str, **more: Any) -> Loaded:
    files = locate(directory)
    prepared = kind.open().prepare(options(kind, **more))
    return prepared.load(files, load_spec(files), None)


def verbs(stage: object) -> list[str]:
    return [verb for verb in VERBS if hasattr(stage, verb)]


def test_each_stage_leads_to_the_next_and_no_further(kind: Kind, directory: str) -> None:
    backend = kind.open()
    prepared = backend.prepare(options(kind))
    files = locate(directory)
    loaded = prepared.load(files, load_spec(files), None)
    sized = loaded.size(options(kind), MAX_MODEL_LEN)
    stages = (backend, prepared, loaded, sized)
    assert list(map(verbs, stages)) == [["prepare", "hold"], ["load"], ["size"], ["start"]]
    assert loaded.backend is backend


def test_options_of_another_kind_are_refused_before_loading_and_after(
    kind: Kind, directory: str
) -> None:
    loaded = load(kind, directory)
    for name, value in kind.foreign.items():
        foreign = options(kind, **{name: value})
        for ask in (
            lambda given=foreign: kind.open().prepare(given),
            lambda given=foreign: loaded.size(given, MAX_MODEL_LEN),
        ):
            with pytest.raises(InvalidOptionError) as refusal:
                ask()
            assert refusal.value.field == name


def test_weights_have_the_dtype_of_the_policy(kind: Kind, directory: str) -> None:
    files = locate(directory)
    spec = load_spec(files)
    loaded = kind.open().prepare(options(kind)).load(files, spec, None)
    assert (loaded.dtype, loaded.weights.dtype) == (spec.dtype, getattr(torch, spec.dtype))
    assert kind.open().policy.dtype("auto", "float16") == kind.dtype
    named = load(kind, directory, dtype="bfloat16")
    assert (named.dtype, named.weights.dtype) == ("bfloat16", torch.bfloat16)


def test_weights_that_are_there_already_are_taken_as_they_are(kind: Kind, directory: str) -> None:
    loaded = load(kind, directory)
    held = loaded.backend.hold(loaded.spec, loaded.weights, loaded.dtype)
    assert held.weights is loaded.weights
    assert held.size(options(kind), MAX_MODEL_LEN).capacity.num_blocks == BLOCKS


def test_a_size_that_is_stated_is_taken(kind: Kind, directory: str) -> None:
    loaded = load(kind, directory)
    block_bytes = loaded.spec.cache_spec(BLOCK_SIZE, loaded.dtype).block_bytes
    for stated, num_blocks in (
        ({}, BLOCKS),
        ({"num_gpu_blocks_override": None, "kv_cache_memory_bytes": 8 * block_bytes - 1}, 7),
    ):
        capacity = loaded.size(options(kind, **stated), MAX_MODEL_LEN).capacity
        assert (capacity.num_blocks, capacity.max_model_len) == (num_blocks, MAX_MODEL_LEN)
        assert capacity.size_bytes == num_blocks * block_bytes


@pytest.mark.parametrize(
    ("stated", "field"),
    [
        ({"num_gpu_blocks_override": 3}, "max_model_len"),
        ({"num_gpu_blocks_override": None, "kv_cache_memory_bytes": 1}, "max_model_len"),
        ({"num_gpu_blocks_override": 2**50}, "num_gpu_blocks_override"),
        (
            {"num_gpu_blocks_override": None, "kv_cache_memory_bytes": 2**60},
            "kv_cache_memory_bytes",
        ),
    ],
)
def test_a_size_that_will_not_do_is_laid_to_what_decided_it(
    kind: Kind, directory: str, stated: dict[str, Any], field: str
) -> None:
    with pytest.raises(RefusedError) as refusal:
        load(kind, directory).size(options(kind, **stated), MAX_MODEL_LEN)
    assert isinstance(refusal.value, CapacityError)
    assert refusal.value.field == field


def test_steps_are_the_policys_where_nothing_is_said(kind: Kind, directory: str) -> None:
    loaded = load(kind, directory)
    unsaid = options(kind, max_num_seqs=None, max_num_batched_tokens=None)
    assert loaded.size(unsaid, MAX_MODEL_LEN).limits == loaded.backend.policy.default_limits
    given = options(kind, max_num_seqs=3, max_num_batched_tokens=7)
    assert loaded.size(given, MAX_MODEL_LEN).limits == (7, 3)


def test_engines_share_weights_and_have_caches_of_their_own(kind: Kind, directory: str) -> None:
    loaded = load(kind, directory)
    first = loaded.size(options(kind), MAX_MODEL_LEN)
    second = loaded.size(options(kind, num_gpu_blocks_override=5), MAX_MODEL_LEN)
    storages = [storage_of(sized, sized.start()) for sized in (first, second)]
    assert [storage.num_blocks for storage in storages] == [BLOCKS, 5]
    assert storages[0] is not storages[1]


def storage_of(sized: Sized, running: Running) -> BlockStorage:
    """The cache of an engine that runs, which has exactly the bytes that were decided."""
    storage: BlockStorage = running.runner._executor.storage  # type: ignore[attr-defined]
    assert storage.size_bytes == sized.capacity.size_bytes
    running.warm_up_draws()
    assert all(done is None for done in running.chores)
    return storage
