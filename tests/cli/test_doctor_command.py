"""`pagoda doctor`: what it asks a server for, prints, refuses and returns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import httpx
import pytest

from cli.http_server import serving
from doctor.doctor_metrics import READINGS, texts_of
from pagoda.cli.main import run
from pagoda.cli.metrics_watch import Clock, metrics_url, watch
from pagoda.cli.plan_model import find_facts
from pagoda.cli.server_client import client_for
from pagoda.cli.watch_options import WatchOptions
from pagoda.errors import InvalidOptionError
from pagoda.planning.request import ModelFacts

KEY = "the-key-of-alice"
RECORDED = ("--watch", "20")
QUICK = ("--watch", "0.2", "--interval", "0.05")


def texts(name: str) -> list[str]:
    """What a recorded server told, one reading after the other."""
    return [text for _, text in texts_of(json.loads((READINGS / f"{name}.json").read_text()))]


@contextmanager
def answering(answer: Callable[[int, str | None], tuple[int, str]]) -> Iterator[str]:
    """A server whose answer to `GET /metrics` number n, with that key, is told by `answer`."""
    asked = 0

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal asked
            status, text = answer(asked, self.headers.get("Authorization"))
            status, text = (status, text) if self.path == "/metrics" else (404, "")
            asked += 1
            self.send_response(status)
            self.end_headers()
            self.wfile.write(f"{text}\n".encode())

    with serving(Handler) as url:
        yield url


@contextmanager
def replaying(name: str) -> Iterator[str]:
    """A server that tells what a recorded one did, a reading at a time."""
    told = texts(name)
    with answering(lambda asked, key: (200, told[min(asked, len(told) - 1)])) as url:
        yield url


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeping takes no time, and is all that does."""
    monkeypatch.setattr("pagoda.cli.metrics_watch.Clock", ticking)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        (
            "vllm-thrash",
            1,
            ("vLLM", "thrashing", "change: preemptions", "--num-gpu-blocks-override"),
        ),
        ("pagoda-prefix", 1, ("Pagoda", "unused", "first lines of two prompts")),
        ("pagoda-decode", 0, ("What bounds it? decode", "Not known how near")),
    ],
)
def test_people_get_four_answers(
    name: str,
    code: int,
    words: Sequence[str],
    no_waiting: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with replaying(name) as url:
        assert run(["doctor", url, *RECORDED]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    assert [f"\n{number}. What" in captured.out or f"\n{number}. How" in captured.out
            for number in range(1, 5)] == [True] * 4  # fmt: skip
    for word in words:
        assert word in captured.out


def test_programs_get_one_object(no_waiting: None, capsys: pytest.CaptureFixture[str]) -> None:
    with replaying("vllm-thrash") as url:
        assert run(["doctor", url, *RECORDED, "--json"]) == 1
    [line] = capsys.readouterr().out.splitlines()
    said = json.loads(line)
    assert set(said) == {
        "schema", "url", "healthy", "engine", "model_name", "engines", "duration_s", "num_scrapes",
        "num_restarts", "answers", "findings", "advice", "missing",
    }  # fmt: skip
    assert (said["schema"], said["healthy"], said["engine"]) == (1, False, "vllm")
    assert [answer["question"] for answer in said["answers"]] == [
        "bound", "bandwidth", "cache", "next",
    ]  # fmt: skip
    for answer in said["answers"]:
        assert set(answer) == {"question", "verdict", "summary", "confidence", "evidence"}
    [finding] = said["findings"]
    assert set(finding) == {"code", "severity", "summary", "confidence", "advice", "evidence"}
    assert set(finding["advice"][0]) == {
        "kind", "action", "effect", "flag", "current", "proposed",
    }  # fmt: skip
    assert set(finding["evidence"][0]) == {"metric", "value", "unit", "meaning"}
    assert finding["advice"] == said["advice"]


def test_a_key_is_sent_and_a_missing_one_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = texts("pagoda-decode")[0]

    def answer(asked: int, key: str | None) -> tuple[int, str]:
        return (200, metrics) if key == f"Bearer {KEY}" else (401, "no")

    with answering(answer) as url:
        assert run(["doctor", url, *QUICK]) == 2
        assert "wants another key (HTTP 401): give --api-key" in capsys.readouterr().err
        assert run(["doctor", url, *QUICK, "--api-key", KEY]) == 0
        monkeypatch.setenv("PAGODA_API_KEY", KEY)
        assert run(["doctor", url, *QUICK]) == 0


METRICS = "vllm:num_requests_running 1"
REFUSED: dict[str, tuple[int, str, str]] = {
    "a page": (200, "<html><body>Hello</body></html>", "does not give Prometheus' text format"),
    "another program's": (200, "node_load1 0.3", "has no engine's metrics"),
    "nowhere": (404, "", "is not there (HTTP 404)"),
    "broken": (500, "", "answers with HTTP 500"),
    "forbidden": (403, "", "wants another key (HTTP 403)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_engine_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, text, message = REFUSED[name]
    with answering(lambda asked, key: (status, text)) as url:
        assert run(["doctor", url, *QUICK]) == 2
    line = one_line(capsys)
    assert line.startswith(f"pagoda: error: url='{url}/metrics': {message}")


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    return line


UNREADABLE = {
    "nobody listens": ("http://127.0.0.1:1", "cannot be read"),
    "no such host": ("http://no-such-host.invalid", "cannot be read"),
    "not a scheme": ("ftp://127.0.0.1", "name a server"),
    "no host": ("http://", "name a server"),
    "a password": ("http://me:secret@127.0.0.1", "carries a password"),
    "a port of letters": ("http://127.0.0.1:http", "name a server"),
    "a port beyond": ("http://127.0.0.1:99999", "name a server"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_address_without_a_server_is_one_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url, message = UNREADABLE[name]
    assert run(["doctor", url, *QUICK]) == 2
    line = one_line(capsys)
    assert message in line
    assert "secret" not in line


def test_tls_to_a_server_without_it_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(lambda asked, key: (200, METRICS)) as url:
        assert run(["doctor", url.replace("http", "https"), *QUICK]) == 2
    assert "SSL" in one_line(capsys)


FLAGS = {
    "no time": (["--watch", "0"], "--watch=0.0: must be between the interval"),
    "no number": (["--watch", "nan"], "--watch=nan: must be"),
    "too often": (["--interval", "0"], "--interval=0.0: must be between"),
    "a word": (["--interval", "often"], "--interval='often': must be a number"),
    "no bandwidth": (["--bandwidth", "-1"], "--bandwidth=-1.0: must be above 0"),
    "infinite": (["--bandwidth", "inf"], "bandwidth=inf: must be above 0"),
    "no size": (["--weight-bytes", "much"], "--weight-bytes='much': a size"),
    "no model": (["--model", "no-such"], "model='no-such': there is no such file"),
    "a key of two lines": (["--api-key", "a\nb"], "--api-key='…': must be plain ASCII"),
    "half an accelerator": (
        ["--tensor-parallel-size", "0.5"],
        "--tensor-parallel-size='0.5': must",
    ),
    "none": (["--tensor-parallel-size", "0"], "--tensor-parallel-size=0: must be at least 1"),
    "no accelerator": (["--gpu", "X-9000"], "--gpu='X-9000': is not in the table"),
    "in its place": (["--gpu", "X-9000"], "; or give --bandwidth"),
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_that_cannot_be_is_refused_before_anything_is_asked(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = FLAGS[name]
    assert run(["doctor", "http://127.0.0.1:1", *arguments]) == 2
    assert message in one_line(capsys)


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("localhost:8000", "http://localhost:8000/metrics"),
        ("http://host/v1", "http://host/metrics"),
        ("https://host/engine/metrics/", "https://host/engine/metrics"),
        ("http://[::1]:8000/", "http://[::1]:8000/metrics"),
    ],
)
def test_an_address_may_be_written_in_several_ways(url: str, asked: str) -> None:
    assert metrics_url(url) == asked


def test_several_models_are_told_before_anybody_waits(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = "".join(f'vllm:num_requests_running{{model_name="{name}"}} 1\n' for name in "ab")
    with answering(lambda asked, key: (200 if asked == 0 else 500, metrics)) as url:
        assert run(["doctor", url]) == 2
    assert "--served-model-name: tell which of a, b" in one_line(capsys)


def test_a_server_that_restarts_is_watched_on() -> None:
    metrics = texts("pagoda-decode")

    def answer(asked: int, key: str | None) -> tuple[int, str]:
        return (503, "") if asked in (2, 3, 4, 5) else (200, metrics[min(asked, 10)])

    with answering(answer) as url, client_for(None) as client:
        scrapes = watch(client, f"{url}/metrics", WatchOptions(1.0, 0.125), clock=ticking())
    assert len(scrapes) == 9 - 4


def test_what_the_check_takes_is_no_part_of_the_watch() -> None:
    clock, metrics = ticking(), texts("pagoda-decode")[0]
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=f"{metrics}\n"))
    with httpx.Client(transport=transport) as client:
        scrapes = watch(
            client,
            "http://server/metrics",
            WatchOptions(1.0, 0.5),
            check=lambda scrape: clock.sleep(60.0),
            clock=clock,
        )
    assert [scrape.time_s for scrape in scrapes] == [0.0, 60.5, 61.0]


def test_a_server_that_goes_away_is_refused() -> None:
    metrics = texts("pagoda-decode")[0]
    with (
        answering(lambda asked, key: (200, metrics) if asked < 4 else (500, "")) as url,
        client_for(None) as client,
        pytest.raises(InvalidOptionError, match="HTTP 500"),
    ):
        watch(client, f"{url}/metrics", WatchOptions(0.5, 0.05), clock=ticking())


def test_a_server_that_drips_is_not_waited_for_beyond_all_measure() -> None:
    clock = ticking()

    class Dripping(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            for letter in texts("pagoda-decode")[0].encode():
                clock.sleep(5.0)
                yield bytes([letter])

    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=Dripping()))
    with (
        httpx.Client(transport=transport) as client,
        pytest.raises(InvalidOptionError, match="does not answer within 10 seconds"),
    ):
        watch(client, "http://server/metrics", WatchOptions(2.0, 1.0), clock=clock)
    assert clock.now() == 15.0


def test_an_interrupt_ends_the_watch_early() -> None:
    def interrupted(seconds: float) -> None:
        nonlocal num_slept
        num_slept += 1
        if num_slept == 3:
            raise KeyboardInterrupt

    num_slept, metrics = 0, texts("pagoda-decode")[0]
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=f"{metrics}\n"))
    with httpx.Client(transport=transport) as client:
        clock = Clock(ticking().now, interrupted)
        scrapes = watch(client, "http://server/metrics", WatchOptions(), clock=clock)
    assert len(scrapes) == 3


def ticking() -> Clock:
    """A clock that goes forward by sleeping alone."""
    time_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal time_s
        time_s += seconds

    return Clock(lambda: time_s, sleep)


def test_what_does_not_go_with_the_server_is_told_before_anybody_waits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    metrics = texts("pagoda-decode")[0]
    with answering(lambda asked, key: (200 if asked == 0 else 500, metrics)) as url:
        assert run(["doctor", url, "--model", "nvidia/Nemotron-H-8B-Base-8K"]) == 2
    assert "architectures='NemotronHForCausalLM': covered are " in one_line(capsys)


def test_a_model_is_looked_up_once(no_waiting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(model: str) -> ModelFacts:
        asked.append(model)
        return find_facts(model)

    monkeypatch.setattr("pagoda.cli.plan_model.find_facts", counted)
    with replaying("vllm-decode") as url:
        assert run(["doctor", url, *RECORDED, "--model", "mistralai/Mistral-7B-v0.1"]) == 0
    assert asked == ["mistralai/Mistral-7B-v0.1"]


def weights_read(metrics: list[str], model: str, capsys: pytest.CaptureFixture[str]) -> float:
    """Bytes of weights a step, as the doctor tells them of a model and such metrics."""
    with answering(lambda n, key: (200, metrics[min(n, len(metrics) - 1)])) as url:
        run(["doctor", url, *RECORDED, "--json", "--model", model, "--bandwidth", "900000"])
    answers = json.loads(capsys.readouterr().out)["answers"]
    [weights] = [one for one in answers[1]["evidence"] if one["metric"] == "--model"]
    found: float = weights["value"]
    return found


def test_each_replica_reads_the_experts_of_its_own_sequences(
    no_waiting: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two replicas of the same load read what one does."""
    told, model = texts("vllm-decode"), "mistralai/Mixtral-8x7B-v0.1"
    others = [text.replace('engine="0"', 'engine="1"') for text in told]
    twice = ["\n".join(pair) for pair in zip(told, others, strict=True)]
    assert weights_read(twice, model, capsys) == weights_read(told, model, capsys) > 0


def test_a_model_is_read_in_the_dtype_that_the_server_computes_in(
    no_waiting: None, capsys: pytest.CaptureFixture[str]
) -> None:
    told, model = texts("pagoda-decode"), "HuggingFaceTB/SmolLM2-135M"
    wide = [text.replace("info{block_size", 'info{dtype="float32",block_size') for text in told]
    assert weights_read(wide, model, capsys) == 2 * weights_read(told, model, capsys) > 0
