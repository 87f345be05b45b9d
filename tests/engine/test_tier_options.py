"""What options of tiers make, and what of an engine's blocks outlives it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiered import let_load

from pagoda.cache.miss import Cause, Gated, Miss
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.devices import numerics
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.engine.prefill_rate import PrefillRate
from pagoda.engine.transfers.facts import namespace_of
from pagoda.engine.transfers.transfers import NoTransfers
from pagoda.engine.transfers.weights_digest import weights_digest
from pagoda.errors import InvalidOptionError
from pagoda.models.locate import ModelFiles, locate
from pagoda.request import RequestOptions, SamplingParams
from pagoda.server.explanation import PromptLookup
from pagoda.server.keys import ANYBODY
from tiers.fake_tier import FakeTier

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
PROMPTS = ["The pagoda has five floors and a roof", "x" * 50, "nothing like it"]
SMALL = {"num_gpu_blocks_override": 64, "block_size": 4}


def ask(llm: LLM) -> tuple[list[list[int]], list[int]]:
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    return [each.outputs[0].token_ids for each in outputs], [
        each.num_cached_tokens for each in outputs
    ]


def test_an_engine_that_is_made_anew_finds_its_prompts_on_disk(
    tiny_model: Model, tmp_path: Path
) -> None:
    options = EngineOptions(kv_tier=f"disk:{tmp_path / 'blocks'},size=16MiB", **SMALL)  # type: ignore[arg-type]
    first = LLM.from_engine(connect(tiny_model, options))
    said, cached = ask(first)
    assert sum(cached) == 0
    first.close()
    second = LLM.from_engine(connect(tiny_model, options))
    let_load(second.engine)
    again, cached = ask(second)
    assert again == said
    lengths = [len(second.get_tokenizer().encode(prompt)) for prompt in PROMPTS]
    assert cached == [min(length // 4 * 4, length - 1) for length in lengths]
    stats = second.engine.transfers.stats()
    assert stats.shelves[0].name == "disk"
    assert stats.num_tokens_loaded == sum(length // 4 * 4 for length in lengths)
    second.close()


def test_a_tenants_floor_holds_on_disk_and_over_restarts(tiny_model: Model, tmp_path: Path) -> None:
    def num_loaded(tenant: str, prompts: list[str], **options: Any) -> int:
        """By an engine that is made and closed for it."""
        tier = f"disk:{tmp_path / 'blocks'},size=400KB"
        engine = connect(tiny_model, EngineOptions(kv_tier=tier, **SMALL, **options))
        let_load(engine)
        for number, prompt in enumerate(prompts):
            by = RequestOptions(tenant=tenant)
            engine.add(engine.intake.request(str(number), prompt, GREEDY, by))
        while engine.has_unfinished:
            engine.advance()
            engine.news.clear()
        loaded = engine.transfers.stats().num_tokens_loaded
        engine.close()
        return loaded

    quotas = {"tenant_quotas": {"bob": "floor=40%"}}
    flood = [f"{number} {'and more ' * 8}" for number in range(20)]
    assert num_loaded("bob", PROMPTS[:1], **quotas) == 0
    assert num_loaded("carol", flood, **quotas) == 0
    assert num_loaded("bob", PROMPTS[:1], **quotas) > 30
    assert num_loaded("bob", PROMPTS[:1]) == 0, "without a share its frames have other names"
    num_loaded("carol", flood)
    assert num_loaded("bob", PROMPTS[:1]) == 0, "nothing is his own now"


def test_an_async_engine_that_is_shut_down_has_stored_all(tiny_model: Model) -> None:
    tier = FakeTier()
    engine = connect(tiny_model, EngineOptions(kv_tier=tier, **SMALL))  # type: ignore[arg-type]

    async def serve() -> None:
        served = AsyncEngine(engine)
        served.start()
        async for _ in served.generate(PROMPTS[0], GREEDY, request_id="a"):
            pass
        await served.shutdown()

    asyncio.run(serve())
    assert tier.is_closed
    assert len(tier.frames) >= len(PROMPTS[0]) // 4


class OwnTier(FakeTier):
    """The class has all that its objects have."""

    kind = "own"
    is_shared = False


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kv_tier": "redis://somewhere:6379"}, "new-key"),
        ({"kv_tier": ["disk:/data/blocks"]}, "disk:PATH,size=20GiB"),
        ({"kv_tier": [5]}, "must be a string or a Tier"),
        ({"kv_tier": OwnTier}, "must be a string or a Tier"),
        ({"kv_tier": [FakeTier(), OwnTier]}, "must be a string or a Tier"),
        ({"kv_tier": ["disk:/data,size=1GiB", "disk:/data,size=2GiB"]}, "is named twice"),
        ({"kv_tier": "host:size=1GiB", "kv_offloading_size": 1}, "is named twice"),
        ({"kv_tier": FakeTier(is_shared=True)}, "new-key"),
        ({"kv_tier_key_file": 5}, "must be a path"),
        ({"kv_offloading_size": 0}, "must be a number of GiB above 0"),
        ({"kv_offloading_size": True}, "must be a number of GiB above 0"),
        ({"kv_offloading_backend": "lmcache"}, "one of native"),
    ],
)
def test_options_that_will_not_do_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidOptionError, match=told):
        EngineOptions(**options)


def test_a_key_that_cannot_be_read_is_refused(tiny_model: Model, tmp_path: Path) -> None:
    options = EngineOptions(
        kv_tier=FakeTier(is_shared=True), kv_tier_key_file=str(tmp_path / "none"), **SMALL
    )  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="cannot be read"):
        connect(tiny_model, options)


def test_what_can_be_no_tier_is_refused_before_weights_are_read(
    tiny_directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")

    def read(*args: object) -> None:
        raise AssertionError("the model is read")

    monkeypatch.setattr("pagoda.engine.build.load_spec", read)
    for told, option in (
        ("is a file", {"kv_tier": ["host:size=1GiB", f"disk:{tmp_path / 'file'},size=1GiB"]}),
        ("holds other files", {"kv_tier": f"disk:{tmp_path},size=1GiB"}),
        ("cannot be read", {"kv_tier_key_file": str(tmp_path / "none")}),
    ):
        with pytest.raises(InvalidOptionError, match=told):
            load_model(EngineOptions(model=tiny_directory, **option))  # type: ignore[arg-type]
    options = EngineOptions(model=tiny_directory, kv_tier=f"disk:{tmp_path / 'kv'},size=1GiB")
    with pytest.raises(AssertionError, match="the model is read"):
        load_model(options)


def test_a_copy_in_the_same_memory_is_not_made(
    tiny_model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pagoda"):
        engine = connect(tiny_model, EngineOptions(kv_offloading_size=1, **SMALL))  # type: ignore[arg-type]
    assert "on a CPU it lies there itself" in caplog.text
    assert isinstance(engine.transfers, NoTransfers)


def test_a_shared_tier_keeps_nothing_that_is_plain(tiny_model: Model, tmp_path: Path) -> None:
    key, tier = tmp_path / "key", FakeTier(is_shared=True)
    key.write_bytes(bytes(range(32)))
    options = EngineOptions(kv_tier=tier, kv_tier_key_file=str(key), **SMALL)  # type: ignore[arg-type]
    llm = LLM.from_engine(connect(tiny_model, options))
    let_load(llm.engine)
    said, _ = ask(llm)
    assert not tier.frames, "nobody has found them yet"
    assert ask(llm)[0] == said
    assert llm.engine.transfers._mover.wait_until_stored(10)  # type: ignore[attr-defined]
    num_frames = len(tier.frames)
    assert num_frames > 10
    llm.reset_prefix_cache()
    assert ask(llm)[0] == said
    assert llm.engine.transfers.stats().num_tokens_loaded > 0
    llm.close()
    key.write_bytes(bytes(32))
    other = LLM.from_engine(connect(tiny_model, replace(options)))
    let_load(other.engine)
    assert ask(other)[0] == said
    assert other.engine.transfers.stats().num_tokens_loaded == 0
    other.close()


def test_an_engine_that_nobody_closes_gives_its_tiers_up(tiny_model: Model) -> None:
    tier = FakeTier()
    engine = connect(tiny_model, EngineOptions(kv_tier=tier, **SMALL))  # type: ignore[arg-type]
    del engine
    assert tier.is_closed


def test_weights_are_told_apart_by_what_they_hold(
    tiny_directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    weights = tmp_path / "model.safetensors"
    files = ModelFiles("directory", tmp_path, "model")
    weights.write_bytes(b"one")
    first = weights_digest(files)
    assert weights_digest(files) == first
    assert len(list((tmp_path / "cache" / "pagoda" / "weights").iterdir())) == 1
    weights.write_bytes(b"three")
    second = weights_digest(files)
    assert second != first
    times = weights.stat()
    time.sleep(0.02)  # longer than a tick of the clock that files have their times from
    weights.write_bytes(b"seven")  # as many bytes, in the same file, and of the same time
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert weights_digest(files) not in {first, second}
    moved = tmp_path / "elsewhere.gguf"
    moved.write_bytes(b"one")
    assert weights_digest(ModelFiles("gguf", moved, "elsewhere")) == first, "called something else"
    monkeypatch.setattr("pagoda.engine.transfers.weights_digest._digest", lambda paths: "asked")
    assert weights_digest(locate(tiny_directory)) == "asked"


def test_weights_are_those_that_the_index_names(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.safetensors").write_bytes(name.encode())
    found = set()
    for name in ("first", "second", "first"):
        index = {"weight_map": {"embedding": f"{name}.safetensors"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        found.add(weights_digest(ModelFiles("directory", tmp_path, "model")))
    assert len(found) == 2


@pytest.mark.parametrize("left", [bytes(64), b"\xff" * 64, b"", b"0" * 64, b"0" * 200])
def test_a_digest_that_was_not_kept_whole_is_found_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bytes
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model.safetensors").write_bytes(b"one")
    files = ModelFiles("directory", tmp_path, "model")
    digest = weights_digest(files)
    (kept,) = (tmp_path / "cache" / "pagoda" / "weights").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(left)
    assert weights_digest(files) == digest
    assert kept.read_bytes() == whole
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"two")
    second = weights_digest(ModelFiles("directory", other, "model"))
    (kept_too,) = set(kept.parent.iterdir()) - {kept}
    kept.write_bytes(kept_too.read_bytes())
    assert weights_digest(files) == digest != second, "that of other files"


def test_any_fact_makes_another_namespace(tiny_model: Model) -> None:
    spec = tiny_model.loaded.size(EngineOptions(**SMALL), 128).capacity.spec  # type: ignore[arg-type]
    facts: list[Any] = [
        tiny_model.files,
        tiny_model.spec,
        tiny_model.held,
        "auto",
        spec,
        "a,a",
        "n",
        "",
    ]
    others: list[Any] = [
        None,
        replace(tiny_model.spec, embedding_scale=2.0),
        replace(tiny_model.held, quantised=("Q8_0",)),
        "int8",
        replace(spec, block_size=8),
        "b",
        "m",
        "kvtc-8x a",
    ]
    own = namespace_of(*facts)
    assert namespace_of(*facts).digest == own.digest
    found = {own.digest}
    for place, other in enumerate(others):
        found.add(namespace_of(*facts[:place], other, *facts[place + 1 :]).digest)
    assert len(found) == 1 + len(others)
    later = namespace_of(*facts[:4], replace(spec, under_way_tokens=77), *facts[5:])
    assert later.digest == own.digest, "how large steps are changes no block"
    moved = namespace_of(replace(tiny_model.files, name="elsewhere"), *facts[1:])
    assert (moved.digest, moved.model_name) == (own.digest, "elsewhere"), "the same weights"
    assert own.model_name == tiny_model.files.name


def test_numbers_of_other_code_and_other_processors_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import llvmlite.binding as llvm
    from numba.core import config

    read: list[Path] = []

    def note(files: Iterable[Path]) -> str:
        read.extend(files)
        return "code"

    monkeypatch.setattr(numerics, "fingerprint_of", note)
    own = numerics.cpu_numerics()
    assert own == numerics.cpu_numerics()
    package = Path(numerics.__file__).parents[2]
    rooms = {file.relative_to(package).parts[0] for file in read}
    assert rooms == {"codecs", "execution", "kernels", "models", "storage"}
    found = {own}
    features = llvm.get_host_cpu_features()
    with monkeypatch.context() as patch:
        patch.setattr(llvm, "get_host_cpu_name", lambda: "another")
        found.add(numerics.cpu_numerics())
    with monkeypatch.context() as patch:
        patch.setattr(llvm, "get_host_cpu_features", lambda: {**features, "new": True})
        found.add(numerics.cpu_numerics())
        patch.setattr(llvm, "get_host_cpu_features", lambda: {**features, "new": False})
        assert numerics.cpu_numerics() == own, "what it has not does not count"
    for name, chosen in (("generic", ""), ("generic", "+avx2"), ("haswell", "")):
        monkeypatch.setattr(config, "CPU_NAME", name)
        monkeypatch.setattr(config, "CPU_FEATURES", chosen)
        found.add(numerics.cpu_numerics())
    assert len(found) == 6


def test_what_prompts_take_is_the_middle_of_what_they_took() -> None:
    rate = PrefillRate()
    assert rate.seconds(100) is None
    rate.note(16, 1, 5.0)  # too few tokens to tell
    rate.note(64, 60, 5.0)  # answers
    assert rate.tokens_per_s is None
    for seconds in (1.0, 1.0, 30.0):
        rate.note(100, 2, seconds)
    assert rate.seconds(100) == pytest.approx(1.0)
    assert rate.tokens_per_s == pytest.approx(100)


def test_what_was_elsewhere_is_explained() -> None:
    miss = Miss(Cause.NEVER_SEEN, 16, {Cause.NEVER_SEEN: 184}, gated=Gated("s3", 160, 1.8, 0.4))
    told = PromptLookup.of(miss, range(200)).told(ANYBODY, lambda _: b"", lossy_form=None)
    assert told.explanation.endswith("160 of them were on s3: 1.8 s to load, 0.4 s to compute.")
    assert told.on_tier is not None
    assert told.on_tier.load_seconds == 1.8


def test_an_answer_says_what_the_gate_left_out(tiny_model: Model) -> None:
    llm = LLM.from_engine(connect(tiny_model, EngineOptions(kv_tier=FakeTier(), **SMALL)))  # type: ignore[arg-type]
    ask(llm)
    llm.engine.transfers._mover.wait_until_stored(10)  # type: ignore[attr-defined]
    llm.reset_prefix_cache()
    let_load(llm.engine)
    llm.engine.transfers.loads._gate = lambda segments, row_s: 0  # type: ignore[attr-defined]
    [output, *_] = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert output.cache_miss is not None
    assert output.cache_miss.gated is not None
    assert output.cache_miss.gated.tier == "fake"
    assert output.cache_miss.gated.num_tokens == 36
    llm.close()
