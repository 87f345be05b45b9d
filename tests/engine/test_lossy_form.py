"""A lossy form of tiers: what was loaded in it is never taken for what was computed."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiered import let_load

from checkpoints import write_checkpoint
from latent_cases import LATENT_CASES
from pagoda.engine.build import Model, assemble, connect, load_model
from pagoda.engine.devices import transform_packing
from pagoda.engine.devices.transform_packing import TransformPacking
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError
from pagoda.request import SamplingParams
from pagoda.server.explanation import PromptLookup
from pagoda.server.keys import ANYBODY
from pagoda.storage.cpu_storage import CPUStorage
from pagoda.tiers.frame import FrameError, FrameFormat, Rejection
from pagoda.tiers.names import BlockName
from pagoda.tiers.packing import PackingError
from pagoda.tiers.seal import Checksum
from tiers.fake_tier import FakeTier

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
PROMPTS = ["The pagoda has five floors and a roof", "x" * 50, "nothing like it"]
SMALL: dict[str, Any] = {"num_gpu_blocks_override": 64, "block_size": 4, "device": "cpu"}
FORM = "kvtc-4x"


@pytest.fixture(scope="module", autouse=True)
def kept(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What is calibrated once serves all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def packing_of(model: Model, form: str = FORM) -> TransformPacking:
    options = EngineOptions(**SMALL)
    spec = model.loaded.size(options, model.max_model_len).capacity.spec
    (packing,) = model.loaded.packings("kv_tier form", [form], spec, options)
    assert isinstance(packing, TransformPacking)
    return packing


def block_of(model: Model, text: str = "Some forty words of prose") -> tuple[CPUStorage, bytes]:
    """The second block of a text, and the storage that it is in."""
    engine, running = assemble(model, EngineOptions(**SMALL))
    LLM.from_engine(engine).generate([text], GREEDY, use_tqdm=False)
    assert isinstance(running.storage, CPUStorage)
    used = [block_id for block_id in range(64) if running.storage.export_block(block_id).any()]
    return running.storage, running.storage.export_block(used[1]).tobytes()


NAME, FIRST, NO_TOKENS = (BlockName(bytes(32), 0, number) for number in (1, 0, None))


def test_a_block_comes_back_near_and_smaller(tiny_model: Model) -> None:
    packing = packing_of(tiny_model)
    _, block = block_of(tiny_model)
    payload = packing.pack(NAME, memoryview(block))
    assert len(payload) < len(block) / 1.5  # of 32 numbers a side there is not much to gain
    back = packing.unpack(NAME, memoryview(payload))
    assert bytes(back) != block
    for layer in packing.numbers.groups[0]:
        pairs = zip(
            packing.numbers.read(layer, block), packing.numbers.read(layer, back), strict=True
        )
        for own, other in pairs:
            assert np.abs(own - other).mean() < 0.3 * np.abs(own).mean()


def test_another_form_is_smaller(tiny_model: Model) -> None:
    _, block = block_of(tiny_model)
    sizes = [
        len(packing_of(tiny_model, form).pack(NAME, memoryview(block)))
        for form in ("kvtc-4x", "kvtc-8x")
    ]
    assert sizes[1] < 0.7 * sizes[0]


@pytest.mark.parametrize("name", [FIRST, NO_TOKENS])
def test_first_blocks_and_what_holds_no_tokens_stay_whole(
    tiny_model: Model, name: BlockName
) -> None:
    packing = packing_of(tiny_model)
    _, block = block_of(tiny_model)
    assert bytes(packing.unpack(name, memoryview(packing.pack(name, memoryview(block))))) == block


def test_what_is_no_number_stays_whole(tiny_model: Model) -> None:
    packing, block = packing_of(tiny_model), bytearray(block_of(tiny_model)[1])
    block[:4] = b"\xff\xff\xff\x7f"
    assert bytes(packing.unpack(NAME, memoryview(packing.pack(NAME, memoryview(block))))) == block


def test_bad_payloads_are_refused(tiny_model: Model) -> None:
    packing = packing_of(tiny_model)
    payload = packing.pack(NAME, memoryview(block_of(tiny_model)[1]))
    whole = packing.pack(FIRST, memoryview(block_of(tiny_model)[1]))
    for name, bad in (
        (NAME, b""),
        (NAME, b"\2" + payload[1:]),
        (NAME, payload[:-1]),
        (NAME, payload + b"x"),
        (NAME, b"\0" + payload[1:]),
        (NAME, whole[:-1]),
        (FIRST, payload),
        (NO_TOKENS, payload),
    ):
        with pytest.raises(PackingError):
            packing.unpack(name, memoryview(bad))


def test_blocks_behind_the_longest_sequence_have_no_place(tiny_model: Model) -> None:
    """As of a session that was saved where sequences may be longer."""
    packing = packing_of(tiny_model)
    payload = packing.pack(NAME, memoryview(block_of(tiny_model)[1]))
    last = packing.longest // packing.numbers.block_size
    assert packing.unpack(NAME._replace(number=last - 1), memoryview(payload))
    with pytest.raises(PackingError):
        packing.unpack(NAME._replace(number=last), memoryview(payload))


def test_a_frame_of_another_form_is_refused_for_it(tiny_model: Model) -> None:
    packing, (_, block) = packing_of(tiny_model), block_of(tiny_model)
    form = FrameFormat(bytes(32), len(block), Checksum(), packing=packing)
    plain = replace(form, packing=None)
    assert len(form.decode(NAME, form.encode(NAME, block))) == len(block)
    for writer, reader, reason in (
        (plain, form, Rejection.FORM),
        (form, plain, Rejection.LENGTH),
    ):
        with pytest.raises(FrameError) as refused:
            reader.decode(NAME, writer.encode(NAME, block))
        assert refused.value.reason is reason


def test_a_restart_finds_its_prompts_in_the_form_and_says_so(
    tiny_model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = EngineOptions(kv_tier=f"disk:{tmp_path},size=16MiB,form={FORM}", **SMALL)
    with caplog.at_level(logging.WARNING, "pagoda"):
        first = LLM.from_engine(connect(tiny_model, options))
    assert f"in the form {FORM}" in caplog.text
    first.generate(PROMPTS, GREEDY, use_tqdm=False)
    first.close()
    second = LLM.from_engine(connect(tiny_model, options))
    let_load(second.engine)
    outputs = second.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert all(
        each.num_cached_tokens > 8 and len(each.outputs[0].token_ids) == 6 for each in outputs
    )
    stats = second.engine.transfers.stats()
    assert (stats.lossy_form, stats.num_tokens_loaded > 40) == (FORM, True)
    assert outputs[0].cache_miss is not None
    form = second.engine.transfers.lossy_form
    lookup = PromptLookup.of(outputs[0].cache_miss, range(200))
    told = lookup.told(ANYBODY, lambda _: b"", lossy_form=form)
    assert told.lossy_form == FORM
    assert f"may have gone through {FORM}" in told.explanation
    second.close()


def test_no_other_engine_finds_what_went_through_it(tiny_model: Model, tmp_path: Path) -> None:
    tier = f"disk:{tmp_path},size=16MiB"
    lossy = LLM.from_engine(
        connect(tiny_model, EngineOptions(kv_tier=f"{tier},form={FORM}", **SMALL))
    )
    lossy.generate(PROMPTS, GREEDY, use_tqdm=False)
    lossy.close()
    for others in (tier, f"{tier},form=kvtc-8x"):
        engine = connect(tiny_model, EngineOptions(kv_tier=others, **SMALL))
        other = LLM.from_engine(engine)
        let_load(engine)
        outputs = other.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert [each.num_cached_tokens for each in outputs] == [0] * len(PROMPTS)
        assert engine.transfers.stats().num_tokens_loaded == 0
        other.close()


def test_blocks_behind_the_form_have_other_keys(
    tiny_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = set()

    def note(form: str) -> None:
        tier = f"disk:{tmp_path / str(len(roots))},size=1MiB{form}"
        engine = connect(tiny_model, EngineOptions(kv_tier=tier, **SMALL))
        roots.add(engine.scheduler.cache.open().root)
        engine.transfers.close()

    for form in ("", ",form=kvtc-4x", ",form=kvtc-8x"):
        note(form)
    monkeypatch.setattr(transform_packing, "_LAYOUT", "another")
    note(",form=kvtc-8x")
    assert len(roots) == 4


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kv_tier": "disk:/a,size=1MiB,form=kvtc-7x"}, "one of kvtc-3x"),
        ({"kv_tier": "disk:/a,size=1MiB,form=kvtc-4x,compression=zstd"}, "packed already"),
        (
            {"kv_tier": ["disk:/a,size=1MiB,form=kvtc-4x", "disk:/b,size=1MiB"]},
            "kvtc-4x, none.*one form",
        ),
        (
            {"kv_tier": [f"disk:/{name},size=1MiB,form=kvtc-{name}x" for name in (4, 8)]},
            "kvtc-4x, kvtc-8x.*one form",
        ),
        ({"kv_tier": ["disk:/a,size=1MiB,form=kvtc-4x", FakeTier()]}, "one form"),
        (
            {
                "kv_tier": "disk:/a,size=1MiB,form=kvtc-4x",
                "kv_retention": "streaming:sinks=4,window=60",
            },
            "leave kv_retention out",
        ),
        (
            {"kv_tier": "disk:/a,size=1MiB,form=kvtc-4x", "request_kv_retention": True},
            "leave kv_retention out",
        ),
    ],
)
def test_what_it_does_not_go_with_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidOptionError, match=told):
        EngineOptions(**options)


def test_caches_that_it_is_not_for_are_refused(tiny_model: Model, tmp_path: Path) -> None:
    tier = f"disk:{tmp_path / 'blocks'},size=1MiB,form={FORM}"
    coded = EngineOptions(kv_tier=tier, kv_cache_dtype="int8_per_token_head", **SMALL)
    model = str(write_checkpoint(tmp_path / "model", LATENT_CASES["deepseek_v2"]))
    latents = EngineOptions(model=model, kv_tier=tier, **SMALL)
    for loaded, options, told in (
        (tiny_model, coded, "plain keys and values"),
        (load_model(replace(latents, kv_tier=None)), latents, "latents"),
    ):
        with pytest.raises(InvalidOptionError, match=told):
            connect(loaded, options)
    with pytest.MonkeyPatch.context() as patch:
        read = "pagoda.engine.devices.cpu_backend.load_weights"
        patch.setattr(read, lambda *_, **__: pytest.fail("weights are read"))
        with pytest.raises(InvalidOptionError, match="layer 0 keeps latents"):
            load_model(latents)
    alone = replace(tiny_model, loaded=replace(tiny_model.loaded, files=None))  # type: ignore[type-var]
    with pytest.raises(InvalidOptionError, match="weights alone"):
        connect(alone, EngineOptions(kv_tier=tier, **SMALL))
