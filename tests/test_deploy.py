"""What is said about serving, and what comes with it, fits the server."""

from __future__ import annotations

import configparser
import dataclasses
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.core import Metric

from pagoda import request
from pagoda.cache import EVICTION_POLICIES
from pagoda.cli.engine_flags import ENGINE_FLAGS
from pagoda.cli.main import run
from pagoda.cli.serve import ADDRESS_FLAGS, SERVER_FLAGS
from pagoda.engine.finite import MAX_LEVELS
from pagoda.engine.gbnf.parser import MAX_RULES
from pagoda.engine.schema_numbers import MAX_MULTIPLES, MAX_WHOLE_NUMBER
from pagoda.models.chat_options import MAX_KWARG_CHARACTERS, MAX_TEMPLATE_KWARGS
from pagoda.server import completion_request
from pagoda.server.admission import REJECTIONS, Admission
from pagoda.server.metric_rows import METRIC_ROWS
from pagoda.server.metrics import COMMON_LABELS, PREFIX, registry_of
from pagoda.server.options import ServerOptions
from pagoda.server.tool_choice import MAX_TOOLS
from pagoda.server.traffic import Answered, Traffic
from pagoda.structured import MAX_CONSTRAINT_CHARACTERS, MAX_SCHEMA_DEPTH, MAX_STRUCTURED_CHOICES
from server.fake_engine import FakeEngine

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
SERVING = (ROOT / "docs" / "serving.md").read_text()
OWN_LABELS = {"histogram": {"le"}, "counter": set(), "gauge": set()}
"""Labels that belong to a kind of metric."""


@pytest.fixture(scope="module")
def families() -> list[Metric]:
    """Everything that `/metrics` can tell."""
    traffic = Traffic()
    traffic.num_answered[Answered("/health", "GET", 200)] += 1
    return list(registry_of(FakeEngine(), Admission(1), traffic).collect())


def labels_of(family: Metric) -> set[str]:
    return {label for sample in family.samples for label in sample.labels}


def test_every_metric_of_the_rows_is_told_as_its_row_says(families: list[Metric]) -> None:
    assert [(family.name, family.type, family.documentation) for family in families] == [
        (PREFIX + row.name, row.kind, row.help) for row in METRIC_ROWS
    ]
    for family, row in zip(families, METRIC_ROWS, strict=True):
        assert labels_of(family) == {*COMMON_LABELS, *row.labels} | OWN_LABELS[row.kind]


def test_the_tables_of_flags_are_what_the_command_takes() -> None:
    ours, _, _ = SERVING.partition("### vLLM's flags")
    rows = re.findall(r"^\| `(--[\w-]+)` \| (.*?) \|", ours, re.MULTILINE)
    of_keys = {"--api-key", "--api-key-file", "--require-api-key", "--tenant-quota"}
    stated = {flag: default for flag, default in rows if flag not in of_keys}
    words = {None: "—", True: "on", False: "off"}
    known = {}
    for group in (ADDRESS_FLAGS, SERVER_FLAGS, ENGINE_FLAGS):
        defaults = {field.name: field.default for field in dataclasses.fields(group.build)}
        for flag in group.flags:
            default: Any = {**defaults, **group.defaults}[flag.name]
            is_word = default is None or isinstance(default, bool)
            shown = words[default] if is_word else str(flag.kind.default(default))
            known[flag.declarations[0].split("/")[0]] = shown
    assert stated == known


def test_the_flag_of_eviction_policies_names_them_all() -> None:
    [row] = re.findall(r"^\| `--eviction-policy` \|.*$", SERVING, re.MULTILINE)
    assert all(re.search(rf"\b{name}\b", row.split("|")[3]) for name in EVICTION_POLICIES)


def test_vllms_flags_that_are_not_here_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, others = SERVING.partition("### vLLM's flags")
    rows = re.findall(r"^\| (`--.*?) \| (.*) \|$", others.partition("\n## ")[0], re.MULTILINE)
    flags = [(flag, words) for cell, words in rows for flag in re.findall(r"`(--[\w-]+)`", cell)]
    assert len(flags) > 25
    for flag, words in flags:
        assert run(["serve", flag]) == 2
        told = capsys.readouterr().err
        assert told == f"pagoda: error: No such option: {flag} ({words.replace('`', '')})\n"


@pytest.mark.parametrize(
    ("row", "limits"),
    [
        ("prompts of one completion", [completion_request.MAX_PROMPTS]),
        ("`n`", [request.MAX_CHOICES, completion_request.MAX_CHOICES]),
        ("`stop`", [request.MAX_STOPS, 1, request.MAX_STOP_CHARACTERS]),
        ("`stop_token_ids`", [request.MAX_STOPS]),
        ("`logit_bias`", [request.MAX_LOGIT_BIASES]),
        ("`logprobs`, `top_logprobs`, `prompt_logprobs`", [request.MAX_LOGPROBS]),
        (
            "structured outputs",
            [
                *(MAX_CONSTRAINT_CHARACTERS, MAX_SCHEMA_DEPTH, MAX_LEVELS, MAX_STRUCTURED_CHOICES),
                *(MAX_RULES, MAX_MULTIPLES, MAX_WHOLE_NUMBER),
            ],
        ),
        ("`chat_template_kwargs`", [MAX_TEMPLATE_KWARGS, MAX_KWARG_CHARACTERS]),
        ("`tools`", [MAX_TOOLS]),
    ],
)
def test_the_limits_of_a_request_are_those_that_hold(row: str, limits: list[int]) -> None:
    [stated] = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", SERVING, re.MULTILINE)
    figures = [int(figure.replace(",", "")) for figure in re.findall(r"\d[\d,]*", stated)]
    assert figures[: len(limits)] == limits


def test_every_status_that_is_told_on_purpose_is_explained() -> None:
    explained = {int(status) for status in re.findall(r"^\| (\d{3}) \|", SERVING, re.MULTILINE)}
    sources = [path.read_text() for path in (ROOT / "src" / "pagoda" / "server").glob("*.py")]
    pattern = r"(?:RejectedError|HTTPException|error_response)\(\s*(\d{3})"
    told = {int(status) for text in sources for status in re.findall(pattern, text)}
    assert told >= {401, 408, 413, 429, 503, 504}
    assert told <= explained


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return json.loads((DEPLOY / "grafana-dashboard.json").read_text())


def strings(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for child in node.values() if isinstance(node, dict) else node:
            yield from strings(child)


def test_the_dashboard_asks_for_what_there_is(
    dashboard: dict[str, Any], families: list[Metric]
) -> None:
    labels = {sample.name: sample.labels for family in families for sample in family.samples}
    asked = 0
    for text in strings(dashboard):
        for name, matchers in re.findall(r"(pagoda:\w+)(?:\{([^}]*)\})?", text):
            asked += 1
            assert name in labels, name
            assert set(re.findall(r"(\w+)[!=]~?", matchers)) <= set(labels[name]), text
    assert asked > 40
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            assert expression.count("(") == expression.count(")")
            names = re.findall(r"pagoda:\w+", expression)
            for grouped in re.findall(r"by \(([^)]*)\)", expression):
                assert set(grouped.split(", ")) <= {key for name in names for key in labels[name]}
            for shown in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert shown in labels[names[0]]


def test_the_dashboard_is_whole(dashboard: dict[str, Any]) -> None:
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) == 23
    for panel in panels:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]


def test_the_unit_waits_longer_than_the_server() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "pagoda.service")
    service = unit["Service"]
    match = re.search(r"--shutdown-timeout (\d+)", service["ExecStart"])
    assert match is not None
    assert float(service["TimeoutStopSec"]) > float(match[1]) + 5
    assert service["Restart"] == "on-failure"
    assert service["SuccessExitStatus"] == str(128 + signal.SIGTERM)
    assert service["Type"] == "notify"  # without it systemd would not look at the watchdog
    assert int(service["WatchdogSec"]) > 0
    assert {"MemoryMax", "TasksMax", "LimitNOFILE"} <= set(service)
    assert service["DynamicUser"] == "yes"
    assert service["EnvironmentFile"]
    assert "PAGODA_API_KEY" not in service.get("Environment", "")


def test_flags_in_the_unit_and_the_image_exist() -> None:
    known = {
        declaration
        for group in (ADDRESS_FLAGS, SERVER_FLAGS)
        for flag in group.flags
        for declaration in flag.declarations
    } | {"--require-api-key"}
    unit = (DEPLOY / "pagoda.service").read_text()
    image = (DEPLOY / "Dockerfile").read_text()
    commands = [
        *re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE),
        *re.findall(r"^ENTRYPOINT (.*)$", image, re.MULTILINE),
    ]
    assert len(commands) == 2
    for command in commands:
        flags = set(re.findall(r"--[\w-]+", command))
        assert "--require-api-key" in flags
        assert flags <= known
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", image, re.MULTILINE)
    assert json.loads(entry)[:2] == ["pagoda", "serve"]  # no shell keeps SIGTERM to itself
    assert ServerOptions().shutdown_timeout < 45


def test_the_image_holds_no_secret_and_has_another_user() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    instructions = [line for line in image.splitlines() if not line.startswith("#")]
    assert not any("KEY" in line for line in instructions)
    assert "USER 10001" in instructions
    assert "--uid 10001 pagoda" in image
    assert any(line.startswith("HEALTHCHECK") for line in instructions)
    sent = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for source in re.findall(r"^COPY (?!--)(.*) \S+$", image, re.MULTILINE):
        for path in source.split():
            assert (ROOT / path).exists()
            assert f"!{path}" in sent


def test_the_container_has_no_more_than_it_needs() -> None:
    [service] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    image = (DEPLOY / "Dockerfile").read_text()
    assert service["init"] is True  # the first process hears no signal without a handler
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"] > 0
    assert service["restart"] == "unless-stopped"
    assert "environment" not in service  # a key would be in the file
    assert service["env_file"]
    [volume] = service["volumes"]
    assert f"VOLUME {volume.split(':')[1]}\n" in image
    written = re.findall(r"(?:HF_HOME|NUMBA_CACHE_DIR)=(\S+)", image)
    assert len(written) == 2
    assert all(path.startswith(volume.split(":")[1] + "/") for path in written)
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    seconds = int(service["stop_grace_period"].removesuffix("s"))
    assert seconds > ServerOptions().shutdown_timeout + 5
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()


def test_the_image_is_built_on_one_that_can_be_pinned() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    bases = re.findall(r"^FROM (\S+)", image, re.MULTILINE)
    assert bases == ["${PYTHON_IMAGE}"] * 2
    assert "--build-arg PYTHON_IMAGE=" in SERVING


def test_prometheus_scrapes_with_a_key_from_a_file() -> None:
    text = (DEPLOY / "prometheus.yml").read_text()
    assert re.search(r"^ +credentials_file: /\S+$", text, re.MULTILINE)
    assert re.search(r"^ +metrics_path: /metrics$", text, re.MULTILINE)


def test_codes_of_rejections_are_told_from_the_start(families: list[Metric]) -> None:
    [family] = [each for each in families if each.name == "pagoda:requests_rejected"]
    assert {sample.labels["code"] for sample in family.samples} == set(REJECTIONS)
