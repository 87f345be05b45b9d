"""What is chosen and what is said of it, on the interactive page in Chromium."""

from __future__ import annotations

import json
import shlex
from contextlib import closing
from pathlib import Path

import pytest

from calculator.pages import facts, open_at
from checkpoints import CASES, write_checkpoint
from pagoda.calculator.page import PlannedChoice, plan_page
from pagoda.cli.main import run
from pagoda.planning.alternatives import plan_with_alternatives
from pagoda.planning.request import PlanRequest
from server.browser import Browser, Tab

pytestmark = pytest.mark.browser

Output = pytest.CaptureFixture[str]
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
GEMMA = "google/gemma-3-27b-it"
ENTER, TAB, RIGHT = ("Enter", 13), ("Tab", 9), ("ArrowRight", 39)
MODEL = "document.getElementById('model').value"


def command_of(tab: Tab) -> list[str]:
    """The arguments that the page gives for a terminal."""
    return shlex.split(tab.text("#command").replace("\\\n", " "))[1:]


@pytest.mark.parametrize(
    ("gpu", "cache", "reason"),
    [
        ("H100", "nvfp4", "A cache in nvfp4 is refused on H100."),
        ("XEON-8480", "int4_per_token_head", "A cache in int4_per_token_head is refused on "),
        ("V100-32GB", "fp8", "A cache in fp8 is refused on V100-32GB."),
    ],
)
def test_what_would_not_start_is_not_said_to_fit(
    tab: Tab, address: str, gpu: str, cache: str, reason: str, capsys: Output
) -> None:
    choice = f"#model={LLAMA}&gpu={gpu}&context=4096&kv_cache_dtype={cache}&users="
    for users in ("1", "all"):
        open_at(tab, address + choice + users)
        assert tab.text("#verdict") == "It would not start"
        assert reason in tab.text("#because")
        assert tab.value("document.body.dataset.state") == "short"
        assert tab.value("document.getElementById('printed').hidden")
    assert run(command_of(tab)) == 1
    assert f"would not start: {reason[:-1].lower()}" in capsys.readouterr().out.lower()


def test_a_whole_name_is_chosen_by_whoever_goes_on(tab: Tab) -> None:
    tab.value("document.getElementById('model').focus()")
    tab.write(GEMMA.upper())
    tab.press(*TAB)
    tab.wait_for(f"{MODEL} === {GEMMA!r}")
    assert f"model={GEMMA}" in tab.value("location.hash")


@pytest.mark.parametrize("how", ["a click", "the keyboard"])
def test_a_second_search_takes_the_place_of_the_first(tab: Tab, how: str) -> None:
    tab.click("#model")
    tab.write("qwen2.5-7b")
    tab.press(*ENTER)
    tab.wait_for(f"{MODEL}.startsWith('Qwen/Qwen2.5-7B')")
    if how == "a click":
        tab.click("#model")
    tab.write("gemma-3-27b")
    assert tab.value(MODEL) == "gemma-3-27b"
    tab.press(*ENTER)
    tab.wait_for(f"{MODEL} === {GEMMA!r}")


def test_a_click_into_a_search_leaves_what_is_written(tab: Tab) -> None:
    tab.click("#model")
    tab.write("gemma")
    tab.click("#model")
    tab.write("-3-27b")
    assert len(tab.value(MODEL)) == len("gemma-3-27b")


@pytest.mark.parametrize("typed", ["1e13", "1e21"])
def test_many_users_stay_as_many_in_the_address(tab: Tab, address: str, typed: str) -> None:
    tab.value("document.getElementById('users-exact').select()")
    tab.write(typed)
    tab.press(*ENTER)
    told = command_of(tab)
    users = told[told.index("--users") + 1]
    assert users == {"1e13": "1" + "0" * 13, "1e21": str(2**53 - 1)}[typed]
    hash_ = tab.value("location.hash")
    open_at(tab, f"{address}{hash_}")
    tab.value("dispatchEvent(new Event('hashchange'))")  # the choice is read from there
    assert command_of(tab) == told


def test_the_command_runs_for_a_model_and_a_memory_of_ones_own(
    browser: Browser, tmp_path: Path, capsys: Output
) -> None:
    directory = write_checkpoint(tmp_path / "my 'models" / "a b", CASES["qwen3"], tokenizer=False)
    page = tmp_path / "plan.html"
    asked = ["plan", str(directory), "--memory", "23.4567891GB", "--max-model-len", "64"]
    assert run([*asked, "--users", "3", "--json", "--html", str(page)]) == 0
    planned = json.loads(capsys.readouterr().out)
    with closing(browser.open()) as tab:
        open_at(tab, page.as_uri())
        command = command_of(tab)
        assert (command[1], command[3]) == (str(directory), "23456789100")
        assert run([*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == planned
        assert tab.problems == []


def test_another_model_goes_by_its_own_name(browser: Browser, tmp_path: Path) -> None:
    own = facts("Qwen/Qwen3-8B")
    request = PlanRequest(gpu="H100", users=2, max_model_len=4096)
    answer = plan_with_alternatives(own, request)
    page = tmp_path / "plan.html"
    page.write_text(
        plan_page(PlannedChoice(own, request, None, answer, typed="~/models/qwen")), "utf-8"
    )
    with closing(browser.open()) as tab:
        open_at(tab, page.as_uri())
        assert command_of(tab)[1] == "~/models/qwen"
        open_at(tab, f"{page.as_uri()}#model={LLAMA}")
        tab.wait_for(f"{MODEL} === {LLAMA!r}")
        assert command_of(tab)[1] == LLAMA


@pytest.mark.parametrize("flags", [(), ("--block-size", "32")])
def test_a_command_without_a_device_says_which_one_is_shown(
    browser: Browser, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    page = tmp_path / "plan.html"
    assert run(["plan", "Qwen/Qwen3-8B", *flags, "--html", str(page)]) == 0
    without = ", without --block-size 32" if flags else ""
    with closing(browser.open()) as tab:
        open_at(tab, page.as_uri())
        told = f"No accelerator was named, so this is H100{without}."
        assert tab.text("#notice") == told
        tab.value("document.getElementById('ranks').focus()")
        tab.press(*RIGHT)
        tab.wait_for("document.getElementById('notice').hidden")
