"""What stays of a sequence, on the page: the planner's figures, the control, and the strips."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from calculator.pages import open_at, planned, require_the_planners
from pagoda.errors import CapacityError, RefusedError
from server.browser import Tab

pytestmark = pytest.mark.browser

LLAMA, LLAMA_70B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
MISTRAL = "mistralai/Mistral-7B-v0.1"
"""Its layers have windows of their own, of 4,096 tokens."""
DEEPSEEK = "deepseek-ai/DeepSeek-V2-Lite-Chat"
"""It keeps latents."""
STREAMING = "streaming:sinks=4,window=1020"
NAMES = (
    *("full", "full:", "window:1024", "window:16", "streaming", STREAMING, "streaming:window=99"),
    *("streaming:sinks=0,window=500", "streaming:sinks=16", "streaming:sinks=2000,window=3000"),
    *("window:8", "window:0", "window:", "streaming:sinks=9,window=8", "streaming:heads=3", "h2o"),
    *("streaming:window=8189", "streaming:window=999999999", "streaming:window=1e3", "", "window"),
    *("streaming:", "streaming:sinks=1,sinks=2", "window:-5", "window:1000000000", "full:window"),
    *("window:0000001024", "window:064", "streaming:sinks=-0", "streaming:sinks=00,window=64"),
)
CASES: list[dict[str, Any]] = [
    *({"model": SMOLLM2, "kv_retention": name} for name in NAMES),
    *(
        {"model": model, "kv_retention": name, "max_model_len": length, "users": 3}
        for model, name, length in itertools.product(
            (MISTRAL, LLAMA),
            ("window:2000", "streaming:sinks=64,window=4096", STREAMING),
            (4096, 2**20),
        )
    ),
    {"model": SMOLLM2, "kv_retention": STREAMING, "max_model_len": 2**22},
    {"model": SMOLLM2, "kv_retention": STREAMING, "max_model_len": 2**22 + 1},
    {"model": LLAMA, "kv_retention": STREAMING, "max_model_len": 2**22, "gpu": "M4-MAX"},
    {"model": LLAMA, "kv_retention": "window:100000", "gpu_memory_utilization": 0.1},
    {"model": LLAMA_70B, "kv_retention": STREAMING, "max_model_len": 100_000},
    {"model": SMOLLM2, "kv_retention": STREAMING, "shared_prefix": 512, "kv_cache_dtype": "int4"},
    {"model": SMOLLM2, "kv_retention": "streaming", "request_kv_retention": True},
    {"model": MISTRAL, "request_kv_retention": True, "max_model_len": 20_000},
    {"model": SMOLLM2, "kv_retention": STREAMING, "gpu": "H100"},
    {"model": SMOLLM2, "kv_retention": STREAMING, "max_model_len": 2**20, "gpu": "RTX-4090"},
    {"model": MISTRAL, "kv_retention": "window:100", "max_model_len": 50_000, "gpu": "L4"},
    {"model": MISTRAL, "kv_retention": "streaming:sinks=96,window=4096", "gpu": "H100"},
    {"model": SMOLLM2, "request_kv_retention": True, "gpu": "H100"},
    {"model": SMOLLM2, "kv_retention": STREAMING, "engine": "vllm"},
    {"model": SMOLLM2, "request_kv_retention": True, "engine": "vllm"},
    {"model": MISTRAL, "gpu": "H100"},
    {"model": DEEPSEEK, "users": 1, "kv_retention": STREAMING},
    {
        "model": DEEPSEEK,
        "users": 1,
        "kv_retention": "window:64",
        "kv_cache_dtype": "int8_per_group",
    },
    {"model": DEEPSEEK, "users": 1, "request_kv_retention": True},
    {"model": DEEPSEEK, "users": 1, "kv_retention": STREAMING, "gpu": "H100"},
    {"model": DEEPSEEK, "users": 1, "request_kv_retention": True, "gpu": "H100"},
]
NOTHING_SAID = {
    "gpu_memory_utilization": None, "context": None, "users": None, "price": None,
    "quantization": None, "max_model_len": None,
}  # fmt: skip
USUAL = {
    "engine": "pagoda", "gpu": "DESKTOP-DDR5", "tensor_parallel_size": 1, "shared_prefix": 0,
    "kv_cache_dtype": "auto", **NOTHING_SAID,
}  # fmt: skip


def test_its_figures_and_refusals_are_the_planners(tab: Tab) -> None:
    choices = [USUAL | case for case in CASES]
    answers = [planned(choice) for choice in choices]
    require_the_planners(tab, choices, answers)
    refused = [answer for answer in answers if isinstance(answer, RefusedError)]
    assert 15 < len(refused) < len(answers) - 15
    assert any(isinstance(answer, CapacityError) for answer in refused)


def test_what_stays_is_chosen_shown_and_kept_in_the_address(tab: Tab, address: str) -> None:
    there = f"{address}#model={SMOLLM2}&gpu=DESKTOP-DDR5&context=8192&users=4&engine=pagoda"
    open_at(tab, there)
    tab.wait_for("document.getElementById('retention').value === 'full'")
    assert tab.value("document.getElementById('keeping').hidden")
    pick(tab, "retention", "streaming")
    assert tab.text("#strips small") == "the first 4 and the last 1,020"
    assert tab.value("[...document.querySelectorAll('.strip i')].length") == 2
    assert f"--kv-retention {STREAMING}" in tab.text("#command")
    assert tab.value("Number(document.getElementById('context').max)") == 56, (
        "past the model's own length"
    )
    pick(tab, "context-exact", "1000000")
    assert "1,000,000 tokens fit" in tab.text("#verdict")
    pick(tab, "last", "3")
    assert tab.value("document.getElementById('last').value") == "1020", "no block: not taken"
    pick(tab, "last", "16")
    pick(tab, "first", "8")
    hash_ = tab.value("location.hash")
    open_at(tab, address + hash_)
    tab.wait_for("document.getElementById('first').value === '8'")
    assert "--kv-retention streaming:sinks=8,window=16" in tab.text("#command")
    pick(tab, "retention", "window")
    assert "--kv-retention window:1024" in tab.text("#command")
    pick(tab, "gpu", "H100")
    assert "--kv-retention window:1024" in tab.text("#command")
    pick(tab, "engine", "vllm")
    assert tab.value("document.getElementById('retention-field').hidden")
    assert "--kv-retention" not in tab.text("#command")
    assert "8,192 tokens fit" in tab.text("#verdict")


def test_windows_of_a_model_are_drawn_too(tab: Tab, address: str) -> None:
    open_at(tab, f"{address}#model=openai/gpt-oss-20b&gpu=H100&context=65536&users=9")
    tab.wait_for("!document.getElementById('keeping').hidden")
    words = tab.value("[...document.querySelectorAll('#strips small')].map((e) => e.innerText)")
    assert sorted(words) == ["every token", "the last 128"]


def pick(tab: Tab, control: str, value: str) -> None:
    """Give a control a value, as a hand would."""
    found = f"document.getElementById({control!r})"
    tab.value(f"{found}.value = {value!r}; {found}.dispatchEvent(new Event('change'))")
