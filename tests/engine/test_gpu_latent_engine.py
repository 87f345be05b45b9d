"""A whole engine of DeepSeek's layers on the GPU's path, on a GPU that is made up."""

from __future__ import annotations

from typing import Any

import pytest
from fake_gpu import Card
from preempting import preempt_every_fourth

from checkpoints import Case, write_checkpoint
from latent_cases import LATENT_CASES
from pagoda import SamplingParams
from pagoda.engine import build
from pagoda.engine.build import Model, assemble, connect, load_model
from pagoda.engine.devices.cpu_backend import CPUBackend
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError, UnsupportedModelError

pytestmark = pytest.mark.filterwarnings("ignore:overflow")  # exp of the interpreter

Told = list[list[tuple[int, float]]]
"""Of each answer: its tokens, and how likely each was."""
GREEDY = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=0)
PROMPTS = [
    [(place * place * step) % 251 for place in range(11)] + [step, 2 * step] for step in (3, 4)
]
CONFIG = {
    **LATENT_CASES["deepseek_v3-experts"].config, "num_hidden_layers": 2, "q_lora_rank": 24,
}  # fmt: skip
"""The first layer is dense, the second has experts in groups, and one that is shared."""
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "coded": {"kv_cache_dtype": "int8_per_group", "kv_cache_dtype_skip_layers": (1,)},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint(tmp_path_factory.mktemp("latents"), Case("deepseek_v3", CONFIG)))


@pytest.fixture(scope="module")
def card() -> Card:
    return Card()


@pytest.fixture(scope="module")
def model(directory: str, card: Card) -> Model:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "find_backend", lambda options: card.backend())
        return load_model(options_for(directory))


def options_for(directory: str, **more: Any) -> EngineOptions:
    defaults: dict[str, Any] = {
        "model": directory, "max_model_len": 32, "block_size": 4, "max_num_seqs": 4,
        "num_gpu_blocks_override": 64, "cudagraph_capture_sizes": (2,),
    }  # fmt: skip
    return EngineOptions(**(defaults | more))


def told(llm: LLM, prompts: list[list[int]]) -> Told:
    answers = [output.outputs[0] for output in llm.generate(prompts, GREEDY, use_tqdm=False)]
    llm.engine.scheduler.cache.check_integrity()
    return [
        [
            (token, entry[token].logprob)
            for token, entry in zip(a.token_ids, a.logprobs, strict=True)
        ]
        for a in answers
    ]


def on_cpu(directory: str, **more: Any) -> Told:
    options = options_for(directory, device="cpu", cudagraph_capture_sizes=None, **more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "find_backend", lambda options: CPUBackend())
        return told(LLM.from_engine(connect(load_model(options), options)), PROMPTS)


def assert_alike(found: Told, expected: Told) -> None:
    """The same tokens, as likely but for how products round."""
    for one, other in zip(found, expected, strict=True):
        assert [token for token, _ in one] == [token for token, _ in other]
        assert [p for _, p in one] == pytest.approx([p for _, p in other], abs=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_answers_are_those_of_a_cpu_hit_or_miss_chunked_or_preempted(
    model: Model, card: Card, directory: str, form: str
) -> None:
    """One engine does all at once: misses, hits, chunks, a crowd, preemption, graphs."""
    expected = on_cpu(directory, **FORMS[form])
    options = options_for(directory, max_num_batched_tokens=9, **FORMS[form])
    engine, running = assemble(model, options)
    token_bytes = 2 * (32 + 8) * 4 if form == "plain" else (32 + 8) * 4 + 32 + 4 + 8 * 2
    assert running.storage.size_bytes == 64 * 4 * token_bytes
    llm = LLM.from_engine(engine)
    preempt_every_fourth(llm)
    assert_alike(told(llm, PROMPTS), expected)
    assert_alike(told(llm, PROMPTS), expected)
    stats = llm.stats()
    assert min(stats.num_preemptions, stats.prefix_cache_hits) > 0
    assert card.counters[-1].replays > 0


def test_what_latents_are_not_stored_in_is_refused(model: Model, directory: str) -> None:
    for form in ("fp8_e5m2", "int4_per_token_head", "int4"):
        with pytest.raises(InvalidOptionError) as refusal:
            connect(model, options_for(directory, kv_cache_dtype=form))
        assert refusal.value.field == "kv_cache_dtype"


@pytest.mark.parametrize(
    "asked", [{"kv_retention": "streaming:sinks=2,window=6"}, {"request_kv_retention": True}]
)
def test_windows_of_latents_are_refused(model: Model, directory: str, asked: Any) -> None:
    with pytest.raises(InvalidOptionError, match="on a GPU a model of latent") as refusal:
        connect(model, options_for(directory, **asked))
    assert refusal.value.field == next(iter(asked))


def test_latents_without_a_kernel_are_refused_before_weights_are_read(
    tmp_path_factory: pytest.TempPathFactory, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = Case("deepseek_v3", {**CONFIG, "kv_lora_rank": 544})
    directory = str(write_checkpoint(tmp_path_factory.mktemp("wide"), wide))

    def read(*args: object, **options: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr("pagoda.engine.devices.gpu_backend.load_weights", read)
    monkeypatch.setattr(build, "find_backend", lambda options: card.backend())
    with pytest.raises(UnsupportedModelError, match="kv_lora_rank=544"):
        load_model(options_for(directory))
