"""The interactive page in Chromium: its figures are the planner's, and it can be used."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from calculator.pages import PLAN, facts, open_at, plan, planned, require_same, require_the_planners
from pagoda.cache.formats import CALIBRATED_FORMATS, CODED_FORMATS
from pagoda.calculator.page import PlannedChoice, plan_page
from pagoda.calculator.page_data import ENGINES, WEIGHT_SCHEMES
from pagoda.planning.alternatives import plan_with_alternatives
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.result import Plan
from pagoda.planning.tables import accelerators, find_model, model_rows
from server.browser import Browser, Tab

pytestmark = pytest.mark.browser

NUM_CHOICES = 60
SEED = 5
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"
ENTER, ESCAPE, DOWN, RIGHT = ("Enter", 13), ("Escape", 27), ("ArrowDown", 40), ("ArrowRight", 39)
WIDTHS = 320, 390, 768, 1000, 1050, 1099, 1360


def some_choice(rng: random.Random) -> dict[str, Any]:
    """Any model, device and flags, also such as cannot be; `model` beside a request's fields."""
    length = rng.choice([512, 1000, 2048, 4096, 8192, 16_384, 32_768, 131_072, None])
    formats = ["auto"] * 4 + [
        "fp8", "fp8_per_token_head", "int8_per_token_head", "int4_per_token_head", "nvfp4",
        "turboquant_k8v4", "turboquant_3bit_nc", "fp8_ds_mla",
    ]  # fmt: skip
    return {
        "model": rng.choice(list(model_rows())),
        "gpu": rng.choice(accelerators()).name,
        "tensor_parallel_size": rng.choice([1, 1, 2, 2, 3, 4, 8, 8, 16]),
        "kv_cache_dtype": rng.choice(formats),
        "quantization": rng.choice([None, None, *WEIGHT_SCHEMES]),
        "max_model_len": length,
        "context": rng.choice([None, None, length and length // 3]),
        "users": rng.choice([None, 1, 4, 32, 200, 1000]),
        "shared_prefix": rng.choice([0, 0, 0, 100]),
        "price": rng.choice([None, 2.5]),
        "engine": rng.choice(["vllm"] * 6 + list(ENGINES)),
        "gpu_memory_utilization": rng.choice([None, None, 0.5, 0.9, 0.95]),
    }


def test_its_figures_are_the_planners_for_60_choices(tab: Tab) -> None:
    """Also a good many that do not fit, or cannot be: then for the same reason."""
    rng = random.Random(SEED)
    seen: Counter[str] = Counter()
    choices = []
    expected = []
    while seen["Plan"] < NUM_CHOICES:
        choice = some_choice(rng)
        answer = planned(choice)
        seen[type(answer).__name__] += 1
        choices.append(choice)
        expected.append(answer)
    require_the_planners(tab, choices, expected)
    assert seen["CapacityError"] > 10
    assert seen["InvalidOptionError"] > 10


@pytest.mark.parametrize("gpu", ["DESKTOP-DDR5", "H100"])
def test_pagodas_codecs_are_offered_where_its_device_and_heads_allow(
    tab: Tab, address: str, gpu: str
) -> None:
    formats = ("auto", "fp8", "float32", "bfloat16", "nvfp4", *CODED_FORMATS)
    common = {"engine": "pagoda", "gpu": gpu, "max_model_len": 2048, "users": 4}
    small = ("HuggingFaceTB/SmolLM2-135M-Instruct", "Qwen/Qwen3-0.6B")
    choices = [
        asdict(PlanRequest(**common, kv_cache_dtype=name)) | {"model": model}
        for model in small
        for name in formats
    ]
    answers = [
        planned({name: value for name, value in choice.items() if value is not None})
        for choice in choices
    ]
    require_the_planners(tab, choices, answers)
    open_at(tab, f"{address}#model={small[0]}&gpu={gpu}&context=2048&users=4&engine=pagoda")
    tab.wait_for("document.getElementById('engine').value === 'pagoda'")
    offered = "[...document.getElementById('kv').options].map((each) => each.value).join(' ')"
    on_cpu = gpu == "DESKTOP-DDR5"
    assert "int8_per_token_head" in tab.value(offered)
    refused = {"nvfp4"} if on_cpu else {"nvfp4", "float32", *CALIBRATED_FORMATS}
    assert sum(isinstance(answer, Plan) for answer in answers) == len(small) * (
        len(formats) - len(refused)
    )
    assert "nvfp4" not in tab.value(offered)


def test_pagodas_latents_are_the_planners(tab: Tab) -> None:
    choices = [
        asdict(PlanRequest(engine="pagoda", max_model_len=2048, users=1, **more))
        | {"model": model}
        for model in ("deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-ai/DeepSeek-V3")
        for more in (
            *({"gpu": "H200", "kv_cache_dtype": name}
              for name in ("auto", "fp8", "fp8_ds_mla", "int8_per_token_head", "float32", "nvfp4")),
            *({"gpu": "DESKTOP-DDR5", "kv_cache_dtype": name} for name in ("auto", "fp8", "int4")),
            {"gpu": "H200", "kv_retention": "window:512"},
            {"gpu": "H200", "request_kv_retention": True},
        )
    ]  # fmt: skip
    answers = [
        planned({name: value for name, value in choice.items() if value is not None})
        for choice in choices
    ]
    require_the_planners(tab, choices, answers)
    assert [type(answer).__name__ for answer in answers[:3]] == ["Plan"] * 3


def test_heads_without_a_kernel_are_refused_on_gpus_alone(tab: Tab) -> None:
    model, common = "tiiuae/falcon-7b", {"engine": "pagoda", "max_model_len": 2048, "users": 1}
    requests = [PlanRequest(**common, gpu=gpu) for gpu in ("H200", "L4", "DESKTOP-DDR5")]
    choices = [asdict(request) | {"model": model} for request in requests]
    answers = [
        planned({name: value for name, value in choice.items() if value is not None})
        for choice in choices
    ]
    require_the_planners(tab, choices, answers)
    assert [type(answer).__name__ for answer in answers] == [*["UnsupportedModelError"] * 2, "Plan"]


def test_what_devices_lack_is_told_as_by_the_planner(tab: Tab) -> None:
    common = {"max_model_len": 2048, "users": 1}
    choices = [
        asdict(PlanRequest(**common, **more)) | {"model": model}
        for model, more in (
            (LLAMA, {"gpu": "V100-32GB"}),
            (LLAMA, {"gpu": "V100-16GB"}),
            (LLAMA, {"gpu": "M4-MAX"}),
            (LLAMA, {"gpu": "EPYC-9654", "kv_cache_dtype": "nvfp4"}),
            ("openai/gpt-oss-20b", {"gpu": "H100", "engine": "pagoda"}),
            ("openai/gpt-oss-20b", {"gpu": "EPYC-9654", "engine": "pagoda"}),
        )
    ]
    answers = [
        planned({name: value for name, value in choice.items() if value is not None})
        for choice in choices
    ]
    require_the_planners(tab, choices, answers)
    assert isinstance(answers[0], Plan)
    assert answers[0].dtype == "float16"


def test_experts_that_a_step_reads_are_the_planners(tab: Tab, address: str) -> None:
    """More of them the more users there are, whoever runs the model; none where there are none."""
    choices = [
        asdict(PlanRequest(engine=engine, gpu="H200", max_model_len=2048, users=users))
        | {"model": model}
        for engine in ("pagoda", "vllm")
        for model in ("Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b", LLAMA)
        for users in (1, 8, 100)
    ]
    answers = [
        planned({name: value for name, value in choice.items() if value is not None})
        for choice in choices
    ]
    require_the_planners(tab, choices, answers)
    speeds = [answer.speed for answer in answers if isinstance(answer, Plan)]
    assert len(speeds) == len(choices)
    assert all((speed is not None) for speed in speeds)
    open_at(tab, f"{address}#model=Qwen/Qwen3-30B-A3B&gpu=H200&context=2048&users=8&engine=pagoda")
    tab.wait_for("document.body.innerText.includes('Experts read')")
    assert "40%" in tab.text("main")


def test_the_figures_are_on_the_page(tab: Tab, address: str) -> None:
    for name, length, users in (("Qwen/Qwen3-8B", 8192, 20), ("openai/gpt-oss-20b", 65_536, 9)):
        open_at(tab, f"{address}#model={name}&gpu=H100&context={length}&users={users}")
        tab.wait_for(f"document.getElementById('model').value === {name!r}")
        own = plan(name, gpu="H100", max_model_len=length, users=users)
        assert own.low is not None
        assert own.high is not None
        shown = tab.text("main")
        assert f"{own.low.num_tokens:,} – {own.high.num_tokens:,}" in shown
        assert f"{own.low.concurrency:.2f} – {own.high.concurrency:.2f}×" in shown
        assert f"{own.low.users - users:,} – {own.high.users - users:,} more" in shown
        for part in own.memory[:-1]:
            assert f"{part.low / 2**30:,.2f} – {part.high / 2**30:,.2f}" in shown
        for other in own.alternatives:
            assert other.flags in shown
            assert f"{other.tokens_low:,} – {other.tokens_high:,}" in shown
        for line in (*own.low.lines, *own.high.lines):
            assert line in tab.text("#lines")


def test_a_choice_that_does_not_fit_says_by_how_much_and_what_would(tab: Tab, address: str) -> None:
    open_at(tab, f"{address}#model={LLAMA_70B}&gpu=H100&context=32768&users=1")
    tab.wait_for("document.body.dataset.state === 'short'")
    assert tab.text("#verdict") == "The model does not fit: 59.5 GiB missing"
    assert "59.5 GiB too much" in tab.text("#scale")
    assert tab.value("!!document.querySelector('#bar .beyond')")
    tab.click("#changes tr:first-child button")
    tab.wait_for("document.body.dataset.state === 'fits'")
    assert "tensor_parallel_size=4" in tab.value("location.hash")
    assert not tab.value("!!document.querySelector('#bar .beyond')")


def test_more_sequences_than_fit_pass_the_limit(tab: Tab, address: str) -> None:
    open_at(tab, f"{address}#model={LLAMA}&gpu=H100&context=32768&users=32")
    tab.wait_for("document.body.dataset.state === 'short'")
    assert tab.text("#verdict") == "12 – 14 of 32 sequences of 32,768 tokens fit"
    assert "70.86 – 77.49 GiB are missing" in tab.text("#because")
    open_at(tab, f"{address}#model={LLAMA}&gpu=H100&context=32768&users=13")
    tab.wait_for("document.body.dataset.state === 'may'")
    assert tab.text("#verdict") == "13 sequences of 32,768 tokens may fit"


def test_a_model_is_searched_and_picked_with_the_keyboard(tab: Tab) -> None:
    tab.value("document.getElementById('model').focus()")
    tab.write("gemma 3 27b")
    assert tab.value("document.getElementById('model').getAttribute('aria-expanded')") == "true"
    assert tab.value("document.querySelectorAll('#models [role=option]').length") >= 1
    tab.press(*ENTER)
    tab.wait_for("document.getElementById('model').value === 'google/gemma-3-27b-it'")
    assert "gemma-3-27b-it" in tab.value("location.hash")
    tab.press(*DOWN)
    assert tab.value("document.querySelector('#models .active span').textContent") == (
        "google/gemma-3-27b-it"
    )
    tab.press(*ESCAPE)
    assert tab.value("document.getElementById('models').hidden")
    assert tab.value("document.getElementById('model').value") == "google/gemma-3-27b-it"


def test_sliders_move_the_choice_and_the_address_keeps_it(tab: Tab, address: str) -> None:
    tab.value("document.getElementById('context').focus()")
    tab.press(*RIGHT)
    tab.wait_for("document.getElementById('context-exact').value === '40960'")
    hash_ = tab.value("location.hash")
    assert "context=40960" in hash_
    verdict = tab.text("#verdict")
    assert "40,960" in verdict
    tab.value("document.getElementById('ranks').focus()")
    tab.press(*RIGHT)
    assert tab.text("#ranks-now") == "2 × H100"
    open_at(tab, f"{address}{hash_}")
    tab.wait_for("document.getElementById('ranks-now').textContent === '1 × H100'")
    assert tab.text("#verdict") == verdict


def test_the_chart_takes_one_where_it_is_pressed(tab: Tab) -> None:
    before = tab.value("location.hash")
    tab.click("#chart svg")
    tab.wait_for(f"location.hash !== {before!r}")
    context = int(tab.value("document.getElementById('context-exact').value"))
    users = int(tab.value("document.getElementById('users-exact').value"))
    assert 2048 < context < 16_384  # the middle of 256 to 128k, in octaves
    assert users > 8


@pytest.mark.parametrize(
    "hash_",
    [
        "#model=nobody/nothing&gpu=none&engine=x&kv_cache_dtype=y&quantization=z&users=-3",
        "#context=99999999999&tensor_parallel_size=7&shared_prefix=88888888",
        f"#model={LLAMA}&tensor_parallel_size=0&max_model_len=0&context=0&price=NaN",
        "#model=deepseek-ai/DeepSeek-V3&kv_cache_dtype=int4_per_token_head",
        "#model=openai/whisper-large-v3&engine=pagoda",
        "#model=__proto__&gpu=constructor&engine=toString",
    ],
)
def test_an_address_that_makes_no_sense_opens_something_that_does(
    tab: Tab, address: str, hash_: str
) -> None:
    open_at(tab, address + hash_)
    assert tab.value("document.body.dataset.state") in ("fits", "may", "short")
    assert tab.text("#verdict")
    assert "NaN" not in tab.text("main")
    assert "undefined" not in tab.text("main")


def test_every_control_and_picture_has_a_name(tab: Tab) -> None:
    tab.value("document.getElementById('more').open = true")
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    roles = ("combobox", "slider", "spinbutton", "button", "image", "textbox", "listbox", "table")
    named = [
        (node["role"]["value"], node.get("name", {}).get("value"))
        for node in nodes
        if not node.get("ignored") and node["role"]["value"] in roles
    ]
    assert {role for role, _ in named} >= {"combobox", "slider", "spinbutton", "button", "image"}
    assert [role for role, name in named if not name and role != "table"] == []


@pytest.mark.parametrize("name", [LLAMA, LLAMA_70B, "meta-llama/Llama-4-Scout-17B-16E-Instruct"])
def test_nothing_sticks_out_sideways(tab: Tab, address: str, name: str) -> None:
    """Neither of the page nor of a table in it, whose last columns would be out of sight."""
    open_at(tab, f"{address}#model={name}&gpu=B200&context=65536&users=100")
    tab.wait_for(f"document.querySelector('#model').value === {name!r}")
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
    for width in WIDTHS:
        tab.resize(width, 800)
        tab.wait_for(f"innerWidth === {width}")
        tab.value("dispatchEvent(new Event('hashchange'))")  # the page is drawn for this width
        assert tab.value("document.documentElement.scrollWidth <= innerWidth"), width
        assert width < 768 or tab.value(f"{cut}.length") == 0, width


@pytest.mark.parametrize(("field", "name"), [("model", "nobody/nothing"), ("gpu", "H999")])
def test_a_name_that_is_not_in_the_tables_is_said(
    tab: Tab, address: str, field: str, name: str
) -> None:
    open_at(tab, f"{address}#{field}={name}&context=8192")
    assert f"is called {name} here, so this is" in tab.text("#notice")
    tab.value("document.getElementById('ranks').focus()")
    tab.press(*RIGHT)
    tab.wait_for("document.getElementById('notice').hidden")


def test_a_name_that_is_typed_and_not_there_is_said(tab: Tab) -> None:
    tab.value("document.getElementById('model').focus()")
    tab.write("no such model")
    tab.press(*ENTER)
    tab.wait_for(f"document.getElementById('model').value === {LLAMA!r}")
    assert "no model is called no such model here" in tab.text("#notice").casefold()


def test_a_command_opens_with_its_choice(browser: Browser, tmp_path: Path) -> None:
    found = find_model("gpt-oss-120b")
    assert found is not None
    own = ModelFacts.of_row(*found)
    request = PlanRequest(gpu="H200", tensor_parallel_size=2, context=32_000, users=200, price=3.0)
    answer = plan_with_alternatives(own, request)
    path = tmp_path / "plan.html"
    path.write_text(plan_page(PlannedChoice(own, request, None, answer)), "utf-8")
    tab = browser.open()
    open_at(tab, path.as_uri())
    assert answer.low is not None
    assert answer.high is not None
    assert tab.text("#verdict") == (
        f"{answer.low.users} – {answer.high.users} of 200 sequences of 32,000 tokens fit"
    )
    assert f"{answer.low.num_tokens:,} – {answer.high.num_tokens:,}" in tab.text("#tiles")
    assert tab.value("document.getElementById('length').value") == str(answer.max_model_len)
    assert not tab.text("#notice")
    assert tab.problems == []


def test_a_command_with_flags_of_its_own_shows_its_plan_until_something_is_changed(
    browser: Browser, tmp_path: Path
) -> None:
    own = facts("Qwen/Qwen3-32B")
    request = PlanRequest(gpu="H100", pipeline_parallel_size=2, users=20)
    answer = plan_with_alternatives(own, request)
    path = tmp_path / "plan.html"
    path.write_text(plan_page(PlannedChoice(own, request, None, answer)), "utf-8")
    tab = browser.open()
    open_at(tab, path.as_uri())
    assert answer.low is not None
    assert f"{answer.low.num_tokens:,} – " in tab.text("#tiles")
    assert "--pipeline-parallel-size 2" in tab.text("#notice")
    tab.value("document.getElementById('users').focus()")
    tab.press(*RIGHT)
    tab.wait_for("document.getElementById('notice').hidden")
    assert f"{answer.low.num_tokens:,} – " not in tab.text("#tiles")
    assert tab.problems == []


def test_a_file_that_pagoda_keeps_as_stored_has_its_bytes(browser: Browser, tmp_path: Path) -> None:
    found = find_model("Llama-3.1-8B-Instruct")
    assert found is not None
    types = {f"blk.{layer}.ffn_down.weight": "Q6_K" for layer in range(32)}
    row = ModelFacts.of_row(*found)
    own = replace(row, name="mine", stored_as="Q4_K", tensor_types=types, kind="gguf")
    machine = {"max_model_len": 4096, "gpu_memory_utilization": 0.9}
    choices: list[dict[str, Any]] = [
        {"gpu": "DESKTOP-DDR5"}, {"gpu": "DESKTOP-DDR5", "quantization": "none"}, {"gpu": "H100"},
        {"gpu": "H100", "quantization": "none"}, {"gpu": "DESKTOP-DDR5", "quantization": "q4_k"},
    ]  # fmt: skip
    asked = [PlanRequest(engine="pagoda", **choice, **machine) for choice in choices]
    path = tmp_path / "plan.html"
    path.write_text(plan_page(PlannedChoice(own, asked[0], None, None)), "utf-8")
    tab = browser.open()
    open_at(tab, path.as_uri())
    requests = json.dumps([{"model": "mine", **asdict(request)} for request in asked])
    shown = json.loads(tab.value(f"JSON.stringify({requests}.map({PLAN}))"))
    for request, figures in zip(asked, shown, strict=True):
        require_same(plan_with_alternatives(own, request).as_json(), figures, str(request))
    stored_as = [figures["quantization"] for figures in shown]
    assert stored_as == ["Q6_K", None, None, None, "Q4_K and Q6_K"]
    names = "[...document.getElementById('weights').options].map((each) => each.text).join('; ')"
    made = [f"quantised to {bits} bits ({name})" for bits, name in
            ((8, "q8_0"), (6, "q6_k"), (4, "q4_k"), (4, "q4_0"))]  # fmt: skip
    assert tab.value(names).split("; ") == ["Q6_K, as published", "bfloat16, not quantised", *made]
    assert tab.problems == []
