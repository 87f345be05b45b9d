"""The interactive page as a file: what is in it, and that nothing else is needed."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

import pagoda.calculator.page
from pagoda.calculator.page import PlannedChoice, plan_page
from pagoda.models.config import ModelConfig
from pagoda.planning.alternatives import plan_with_alternatives
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.tables import accelerators, model_rows
from server.test_page import AA_EDGE, AA_TEXT, contrast

FOLDER = Path(pagoda.calculator.page.__file__).parent / "page_files"
DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "feel-the-bytes.html"
PLANNING = DOCUMENT.with_name("planning.md")
NAMESPACE = "http://www.w3.org/2000/svg"
LARGEST_BYTES = 340_000
OWN_CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="module")
def html() -> str:
    return plan_page()


def embedded(html: str, name: str) -> object:
    """The JSON of the script element of that id."""
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', html)
    assert found is not None
    return json.loads(found[1])


def planned(request: PlanRequest, facts: ModelFacts | None = None) -> PlannedChoice:
    own = facts or ModelFacts("mine", "config.json", ModelConfig(OWN_CONFIG))
    return PlannedChoice(own, request, None, plan_with_alternatives(own, request))


def test_the_page_in_the_docs_is_the_one_that_the_tables_make(html: str) -> None:
    """`pagoda plan --html docs/feel-the-bytes.html` makes it anew."""
    assert DOCUMENT.read_text("utf-8") == html


def test_it_is_small_enough_to_open_at_once(html: str) -> None:
    num_bytes = len(html.encode())
    assert num_bytes < LARGEST_BYTES
    said = re.search(r"one file of (\d+) kB", PLANNING.read_text("utf-8"))
    assert said is not None
    assert abs(num_bytes / 1000 - int(said[1])) <= 5, "what the document says"


def test_all_models_and_accelerators_are_in_it(html: str) -> None:
    data = embedded(html, "data")
    assert isinstance(data, dict)
    assert set(data["models"]) == set(model_rows())
    assert set(data["devices"]) == {device.name for device in accelerators()}
    assert embedded(html, "opening") is None


def test_the_policy_allows_its_own_script_and_style_and_nothing_else(html: str) -> None:
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert found is not None
    policy = dict(part.split(" ", 1) for part in found[1].split("; "))
    for name, pattern in (
        ("script-src", r'<script type="module">(.*?)</script>'),
        ("style-src", r"<style>(.*?)</style>"),
    ):
        text = re.search(pattern, html, re.DOTALL)
        assert text is not None
        digest = base64.b64encode(hashlib.sha256(text[1].encode()).digest()).decode()
        assert policy.pop(name) == f"'sha256-{digest}'"
    assert policy.pop("require-trusted-types-for") == "'script'"
    assert policy.pop("img-src") == "data:"
    assert set(policy.values()) == {"'none'"}


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_nothing_in_it_leads_elsewhere_or_becomes_html(path: Path) -> None:
    text = path.read_text("utf-8").replace(NAMESPACE, "")
    assert not re.search(r"https?:|[\"'(=]//|\bfetch\(|XMLHttpRequest|WebSocket", text)
    assert not re.search(r"\son\w+=|\sstyle=|javascript:", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    assert not re.search(r"localStorage|sessionStorage|indexedDB|document\.cookie", text)


def test_every_module_is_in_it_after_those_that_it_imports(html: str) -> None:
    order = re.findall(r"^const (\w+)_js = \(\(\) => \{$", html, re.MULTILINE)
    assert sorted(order) == sorted(path.stem for path in FOLDER.glob("*.js"))
    for place, name in enumerate(order):
        source = (FOLDER / f"{name}.js").read_text("utf-8")
        assert set(re.findall(r'from "\./(\w+)\.js"', source)) <= set(order[:place])


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.js")), ids=lambda path: path.name)
def test_what_a_module_imports_exists_and_is_used(path: Path) -> None:
    source = path.read_text("utf-8")
    imports = re.findall(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', source, re.MULTILINE)
    assert len(imports) == len(re.findall(r"^import ", source, re.MULTILINE))
    body = re.sub(r"^import [^;]*;$", "", source, flags=re.MULTILINE)
    for names, module in imports:
        exporting = (FOLDER / f"{module}.js").read_text("utf-8")
        for name in filter(None, (name.strip() for name in names.split(","))):
            own = re.escape(name)
            assert re.search(rf"^export \w+ {own}(?!\w)", exporting, re.MULTILINE), name
            assert re.search(rf"(?<![\w$]){own}(?!\w)", body), name


def test_a_model_of_ones_own_comes_with_its_choice() -> None:
    request = PlanRequest(memory=2**30, context=512, max_model_len=2048, users=3)
    html = plan_page(planned(request))
    data, opening = embedded(html, "data"), embedded(html, "opening")
    assert isinstance(data, dict)
    assert isinstance(opening, dict)
    assert data["models"]["mine"]["longest"] == 4096
    assert data["devices"]["1 GiB"]["bytes"] == 2**30
    choice = opening["choice"]
    assert (choice["model"], choice["gpu"], choice["users"]) == ("mine", "1 GiB", 3)
    assert (choice["max_model_len"], opening["context"]) == (2048, 512)
    assert opening["flags"] == []
    assert opening["plan"]["model"] == "mine"


def test_flags_that_the_page_cannot_vary_are_named() -> None:
    request = PlanRequest(gpu="H100", quantization="bitsandbytes", block_size=32, price=2.0)
    opening = embedded(plan_page(planned(request)), "opening")
    assert isinstance(opening, dict)
    assert opening["flags"] == ["--block-size 32", "--quantization bitsandbytes"]
    assert opening["choice"]["quantization"] is None
    assert opening["choice"]["price"] == 2.0


def test_each_value_of_a_flag_is_given_as_on_the_command_line() -> None:
    request = PlanRequest(gpu="H100", kv_cache_dtype_skip_layers=(0, 2), tier=("nvme", "s3"))
    opening = embedded(plan_page(planned(request)), "opening")
    assert isinstance(opening, dict)
    assert opening["flags"] == [
        "--kv-cache-dtype-skip-layers 0", "--kv-cache-dtype-skip-layers 2",
        "--tier nvme", "--tier s3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("memory", "name"),
    [(2_000_000 * 2**30, "2,000,000 GiB"), (24 * 10**9, "22.3517 GiB"), (2**29, "0.5 GiB")],
)
def test_a_memory_is_called_by_a_number_that_can_be_read(memory: int, name: str) -> None:
    data = embedded(plan_page(planned(PlanRequest(memory=memory))), "data")
    assert isinstance(data, dict)
    assert data["devices"][name]["bytes"] == memory


def test_what_stays_is_chosen_on_the_page_and_who_may_choose_is_not() -> None:
    config = ModelConfig(OWN_CONFIG | {"architectures": ["LlamaForCausalLM"]})
    request = PlanRequest(
        memory=2**30, engine="pagoda", kv_retention="window:64", request_kv_retention=True
    )
    page = plan_page(planned(request, ModelFacts("mine", "config.json", config)))
    opening = embedded(page, "opening")
    assert isinstance(opening, dict)
    assert opening["flags"] == ["--request-kv-retention"]
    assert opening["choice"]["kv_retention"] == "window:64"
    assert [group["window"] for group in opening["plan"]["groups"]] == [64]


def test_a_codec_of_ones_own_is_named_and_not_offered() -> None:
    name = "levels5-float16-norm/levels4-float16-offset"
    request = PlanRequest(memory=2**30, engine="pagoda", kv_cache_dtype=name)
    own = ModelConfig(OWN_CONFIG | {"architectures": ["LlamaForCausalLM"]})
    page = plan_page(planned(request, ModelFacts("mine", "config.json", own)))
    opening = embedded(page, "opening")
    assert isinstance(opening, dict)
    assert opening["flags"] == [f"--kv-cache-dtype {name}"]
    assert opening["choice"]["kv_cache_dtype"] == "auto"


def test_no_name_closes_the_element_that_it_stands_in() -> None:
    facts = ModelFacts("</script><b>", "x", ModelConfig(OWN_CONFIG))
    html = plan_page(planned(PlanRequest(gpu="L4"), facts))
    assert "</script><b>" not in html
    opening = embedded(html, "opening")
    assert isinstance(opening, dict)
    assert opening["choice"]["model"] == "</script><b>"


TEXT_ON = {
    "ink": ("paper", "sheet", "shade"),
    "quiet": ("paper", "sheet", "shade"),
    "accent": ("paper", "shade", "sheet"),
    "warning": ("paper",),
    "on-accent": ("accent",),
    "on-weights": ("weights",),
    "on-free": ("free",),
}
EDGES = ("edge", "accent", "warning", "weights", "beside")


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_what_is_written_can_be_read(scheme: int) -> None:
    style = (FOLDER / "style.css").read_text("utf-8")
    roots = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): #(\w{6});", roots[scheme]))
    for text, grounds in TEXT_ON.items():
        for ground in grounds:
            assert contrast(colours[text], colours[ground]) >= AA_TEXT, (text, ground)
    for edge in EDGES:
        assert contrast(colours[edge], colours["paper"]) >= AA_EDGE, edge
