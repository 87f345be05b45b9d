"""The promises where layers let go of what is behind a window: whatever the cache does, the same
tokens, under every mix of windows, retentions and codecs; and the pool that the plan says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from few_layers import with_layers
from preempting import preempt_every_fourth
from served_at_once import most_running

from checkpoints import Case, write_checkpoint
from pagoda.cache import AttentionWindow, CacheManager
from pagoda.engine.build import Model, connect, load_model
from pagoda.engine.llm import LLM
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError, InvalidRequestError
from pagoda.models.decoder import DecoderSpec
from pagoda.request import SamplingParams
from pagoda.scheduling import Scheduler
from prompts import PROMPTS

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

NUM_TOKENS = 8
BLOCK_SIZE = 16
NARROW = "streaming:sinks=4,window=28"
WINDOWS = {
    "none": lambda number: None,
    "half": lambda number: 24 if number % 2 else None,
    "five in six": lambda number: None if number % 6 == 5 else 40,
    "two kinds": lambda number: (None, 20, 33)[number % 3],
    "all": lambda number: 30,
}
MIXES: list[tuple[str, dict[str, object]]] = [
    ("half", {}),
    ("five in six", {}),
    ("two kinds", {}),
    ("all", {}),
    ("half", {"kv_cache_dtype": "int8_per_token_head"}),
    ("five in six", {"kv_cache_dtype": "fp8", "kv_cache_dtype_skip_layers": (0, 3, 5)}),
    ("two kinds", {"kv_cache_dtype": "turboquant_4bit_nc"}),
    ("half", {"kv_cache_dtype": "float32", "kv_cache_dtype_skip_layers": (3,)}),
    ("none", {"kv_retention": NARROW}),
    ("none", {"kv_retention": "streaming:sinks=20,window=20"}),
    ("none", {"kv_retention": "window:32"}),
    ("half", {"kv_retention": "streaming:sinks=4,window=40"}),
    (
        "none",
        {"kv_retention": "streaming:sinks=4,window=28", "kv_cache_dtype": "int4_per_token_head"},
    ),
    ("none", {"kv_retention": "streaming:sinks=4,window=28", "kv_cache_dtype": "int4"}),
]
SPOKEN = [
    ("two kinds", {"kv_cache_dtype": "turboquant_4bit_nc"}),
    ("half", {"kv_retention": "streaming:sinks=4,window=40"}),
]
"""For six layers of the default model as well; all others for a small one, which rests on all that
it has read."""
SHAPE = {"head_dim": 64, "num_hidden_layers": 6, "max_position_embeddings": 1280}
"""TurboQuant leaves two layers at each end as they are."""
FEW_LOGITS = 4096
"""Those of all tokens would take longer than six layers."""
Tokens = list[list[int]]
Told = list[list[tuple[int, float]]]
"""Of each choice: its tokens, and how likely each was."""


def named(mix: tuple[str, dict[str, object]]) -> str:
    return "-".join((mix[0], *map(str, mix[1].values())))


@pytest.fixture(scope="module")
def spoken(default_model: Model) -> Model:
    """Every fifth layer of the default model, and some of its tokens."""
    layers = range(0, len(default_model.spec.layers), 5)
    return with_layers(default_model, layers, FEW_LOGITS)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = write_checkpoint(tmp_path_factory.mktemp("six"), Case("llama", SHAPE))
    return load_model(EngineOptions(model=str(directory), dtype="bfloat16"))


def with_windows(model: Model, kind: str) -> Model:
    """The same weights, where layers see but windows: another model, and a worse one."""
    layers = tuple(
        replace(layer, attention=replace(layer.attention, sliding_window=WINDOWS[kind](number)))
        for number, layer in enumerate(model.spec.layers)
    )
    spec: DecoderSpec = replace(model.spec, layers=layers)
    return replace(model, loaded=replace(model.loaded, spec=spec))  # type: ignore[type-var]


def engine_of(model: Model, max_model_len: int = 256, **options: object) -> LLM:
    defaults: dict[str, object] = {"num_gpu_blocks_override": 256, "block_size": BLOCK_SIZE}
    own = replace(model, max_model_len=max_model_len)
    return LLM.from_engine(connect(own, EngineOptions(**(defaults | options))))  # type: ignore[arg-type]


def told(llm: LLM, prompts: Tokens, n: int = 1, **options: object) -> list[Told]:
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, n=n, logprobs=0)
    outputs = llm.generate(prompts, greedy, use_tqdm=False, **options)  # type: ignore[arg-type]
    llm.engine.scheduler.cache.check_integrity()
    return [[_told(choice) for choice in output.outputs] for output in outputs]


def _told(choice: Any) -> list[tuple[int, float]]:
    return [
        (token_id, entry[token_id].logprob)
        for token_id, entry in zip(choice.token_ids, choice.logprobs, strict=True)
    ]


def tokens_of(llm: LLM, prompts: Tokens, **options: object) -> Tokens:
    """Of the one choice of each answer."""
    return [[token_id for token_id, _ in choice] for [choice] in told(llm, prompts, **options)]


@pytest.mark.parametrize(
    ("which", "mix"),
    [*(("small", mix) for mix in MIXES), *(("spoken", mix) for mix in SPOKEN)],
    ids=lambda value: value if isinstance(value, str) else named(value),
)
def test_hit_miss_chunks_crowd_forks_and_preemption_agree(
    which: str, mix: tuple[str, dict[str, object]], request: pytest.FixtureRequest
) -> None:
    """Not a bit of an answer changes, log-probabilities too."""
    model: Model = request.getfixturevalue(which)
    kind, options = mix
    own = with_windows(model, kind)
    prompts = prompts_of(model)
    alone = engine_of(own, enable_prefix_caching=False, **options)
    expected = [told(alone, [prompt])[0] for prompt in prompts]

    crowd = engine_of(own, max_num_batched_tokens=7 * len(prompts), **options)
    assert told(crowd, prompts) == expected
    assert told(crowd, prompts) == expected
    assert crowd.stats().prefix_cache_hits > 0
    assert told(crowd, prompts, n=3) == [choices * 3 for choices in expected]

    short = engine_of(own, 96, max_num_batched_tokens=16, **options)
    preempt_every_fourth(short)
    assert told(short, prompts) == expected
    assert short.stats().num_preemptions > 0


def prompts_of(model: Model) -> Tokens:
    """Text of 60 tokens; of a small model, which knows bytes, numbers of as many."""
    if model.spec.vocab_size < 1000:
        return [[(place * place * step) % 251 for place in range(60)] for step in range(3, 7)]
    texts = (first + second for first, second in zip(PROMPTS[:4], PROMPTS[6:10], strict=True))
    encoded = (model.tokenizer.encode(text)[:60] for text in texts)
    return [[token_id % FEW_LOGITS for token_id in prompt] for prompt in encoded]


def test_a_next_turn_begins_where_the_last_ended(small: Model) -> None:
    """Blocks of a window go while a turn is computed, but not those that the next one needs."""
    own = with_windows(small, "half")
    llm = engine_of(own, 512, num_gpu_blocks_override=100)
    turns = small.tokenizer.encode(" ".join(PROMPTS[:12]))[:150]
    [answer] = tokens_of(llm, [turns])
    follow_up = [*turns, *answer, *small.tokenizer.encode(" And then?")]
    before = llm.stats().prefix_cache_hits
    tokens_of(llm, [follow_up])
    assert llm.stats().prefix_cache_hits - before == (len(turns) + NUM_TOKENS - 1) // 16 * 16


def test_requests_of_different_retentions_share_nothing(small: Model) -> None:
    llm = engine_of(small, request_kv_retention=True)
    prompt = small.tokenizer.encode(" ".join(PROMPTS[:8]))[:120]
    narrow = "streaming:sinks=4,window=32"
    whole, kept = told(llm, [prompt]), told(llm, [prompt], kv_retention=narrow)
    assert llm.stats().prefix_cache_hits == 0
    assert told(llm, [prompt], kv_retention=narrow) == kept
    assert llm.stats().prefix_cache_hits > 0
    assert told(llm, [prompt]) == whole
    of_all = engine_of(small, kv_retention=narrow)
    assert told(of_all, [prompt]) == kept


def test_16_sequences_of_4096_tokens_in_about_half_the_pool(
    default_model: Model,
) -> None:
    layers = tuple(
        replace(layer, attention=replace(layer.attention, sliding_window=256 if n % 2 else None))
        for n, layer in enumerate(default_model.spec.layers)
    )
    spec: Any = replace(default_model.spec, layers=layers)
    loaded: Any = replace(default_model.loaded, spec=spec)  # type: ignore[type-var]
    options = EngineOptions(max_num_batched_tokens=256, num_gpu_blocks_override=600)
    spec = loaded.size(options, 4096).capacity.spec
    needed = 16 * spec.num_blocks(4096)
    whole = replace(spec, layers=tuple(layer.vectors for layer in spec.layers))
    share = needed * spec.block_bytes / (16 * whole.num_blocks(4096) * whole.block_bytes)
    assert 0.5 < share < 0.6

    cache = CacheManager(needed, 16, windows=spec.windows, under_way_tokens=spec.under_way_tokens)
    scheduler = Scheduler(cache, max_num_batched_tokens=256, max_num_seqs=16, max_model_len=4096)
    assert most_running(cache, scheduler, 16, 3600, 496) == 16
    assert scheduler.stats().num_preemptions == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kv_retention": "streaming:sinks=9,window=8"}, "at most as many sinks"),
        ({"kv_retention": "window:8"}, "at least one block, 16 tokens"),
        ({"kv_retention": "window:0"}, "a window of 1 to 999999999 tokens"),
        ({"kv_retention": "h2o"}, "full, window:1024, streaming"),
        ({"kv_retention": "streaming:heads=3"}, "full, window:1024, streaming"),
        ({"kv_retention": "streaming:sinks=4,window=9000"}, "at most 8192 tokens"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(
    default_model: Model, options: dict[str, object], told: str
) -> None:
    with pytest.raises(InvalidOptionError, match=told) as refusal:
        engine_of(default_model, **options)
    assert refusal.value.field == "kv_retention"


def test_a_request_asks_in_vain_where_the_engine_does_not_let_it(small: Model) -> None:
    llm = engine_of(small)
    with pytest.raises(InvalidRequestError, match="--request-kv-retention lets") as refusal:
        tokens_of(llm, [[1, 2, 3]], kv_retention="streaming")
    assert refusal.value.field == "kv_retention"
    assert tokens_of(llm, [[1, 2, 3]], kv_retention="full") == tokens_of(llm, [[1, 2, 3]])
    narrow = engine_of(small, kv_retention="streaming:sinks=4,window=60", request_kv_retention=True)
    with pytest.raises(InvalidRequestError, match="at most what this engine keeps"):
        tokens_of(narrow, [[1, 2, 3]], kv_retention="streaming:sinks=4,window=100")
    with pytest.raises(InvalidRequestError, match="full, window:1024"):
        tokens_of(narrow, [[1, 2, 3]], kv_retention="snapkv")


def test_a_stream_goes_on_past_the_models_length_in_the_same_blocks(small: Model) -> None:
    length = 100
    spec = replace(small.spec, max_position_embeddings=length)
    own = replace(small, loaded=replace(small.loaded, spec=spec))  # type: ignore[type-var]
    blocks = AttentionWindow(60, 4).num_blocks(10**6, BLOCK_SIZE, 64)
    llm = engine_of(
        own, 10**4, kv_retention="streaming:sinks=4,window=60", num_gpu_blocks_override=blocks,
        max_num_batched_tokens=64,
    )  # fmt: skip
    prompt = small.tokenizer.encode(" ".join(PROMPTS))[:80]
    greedy = SamplingParams(temperature=0, max_tokens=3 * length, ignore_eos=True)
    [output] = llm.generate([prompt], greedy, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 3 * length
