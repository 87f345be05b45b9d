"""`pagoda plan` for a model of the hub: one small file, asked for once, by a server of the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from pagoda.cli.main import run

Output = pytest.CaptureFixture[str]
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4,
    "hidden_size": 64, "vocab_size": 100, "intermediate_size": 10,
    "max_position_embeddings": 64,
}  # fmt: skip


@dataclass
class Hub:
    """What it answers, and what it was asked."""

    body: bytes = b""
    status: int = 200
    location: str | None = None
    is_broken: bool = False
    tokens: list[str | None] = field(default_factory=list)
    port: int = 0


def serve(hub: Hub) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        own: ClassVar[Hub] = hub

        def do_GET(self) -> None:
            self.own.tokens.append(self.headers.get("Authorization"))
            if self.own.is_broken:
                self.wfile.write(b"this is no HTTP\r\n\r\n")
                return
            self.send_response(self.own.status)
            if self.own.location is not None:
                self.send_header("Location", self.own.location)
            self.send_header("Content-Length", str(len(self.own.body)))
            self.end_headers()
            self.wfile.write(self.own.body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.port = server.server_address[1]
    told_every_s = 0.01  # that it shall end; of its own accord it looks twice a second
    threading.Thread(target=server.serve_forever, args=(told_every_s,), daemon=True).start()
    return server


@pytest.fixture
def hubs(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hub, Hub]]:
    """The hub, and another host beside it."""
    hub, other = Hub(json.dumps(CONFIG).encode()), Hub(json.dumps(CONFIG).encode())
    servers = [serve(hub), serve(other)]
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_url", lambda *_: f"http://127.0.0.1:{hub.port}/config.json"
    )
    yield hub, other
    for server in servers:
        server.shutdown()
        server.server_close()


def refusal(capsys: Output) -> str:
    assert run(["plan", "nobody/Llama-3.1-8B"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "is not in the table (the nearest are meta-llama/" in line
    return line


def test_a_hub_s_answer_is_read(hubs: tuple[Hub, Hub], capsys: Output) -> None:
    assert run(["plan", "nobody/tiny-llama", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["token_bytes"] == 2 * 4 * 32 * 2
    assert hubs[0].tokens == ["Bearer hf_secret"]


def test_the_token_stays_with_the_hub(hubs: tuple[Hub, Hub], capsys: Output) -> None:
    hub, other = hubs
    hub.status, hub.location = 302, f"http://localhost:{other.port}/config.json"
    assert run(["plan", "nobody/tiny-llama", "--json"]) == 0
    assert hub.tokens == ["Bearer hf_secret"]
    assert other.tokens == [None]
    assert capsys.readouterr().out


def test_offline_nobody_is_asked(
    hubs: tuple[Hub, Hub], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE forbids" in refusal(capsys)
    assert hubs[0].tokens == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": 404}, "404"),
        ({"is_broken": True}, "could not be fetched"),
        ({"body": b"{"}, "could not be fetched"),
        ({"body": b"[" * 200_000}, "could not be fetched"),
        ({"body": b" " * (5 * 2**20)}, "it is larger than 4194304 bytes"),
        ({"status": 302, "location": "/config.json"}, "redirect"),
    ],
    ids=["missing", "no http", "no json", "deep", "large", "round and round"],
)
def test_an_answer_that_is_no_config_is_one_line(
    hubs: tuple[Hub, Hub], capsys: Output, change: dict[str, object], words: str
) -> None:
    for name, value in change.items():
        setattr(hubs[0], name, value)
    assert words in refusal(capsys)
