from __future__ import annotations

import dataclasses
import resource
import socket
from pathlib import Path

import pytest
from fastapi import FastAPI

from pagoda.cli.main import run
from pagoda.server.listener import bind, start_listening
from pagoda.server.options import ServerOptions
from pagoda.tiers.key_file import write_new_secret
from server.conftest import client_of
from server.fake_engine import MODEL, FakeEngine


def test_a_port_in_use_is_told_before_the_model_loads(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    with bind("127.0.0.1", 0) as other:
        start_listening(other)
        port = other.getsockname()[1]
        assert run(["serve", "--port", str(port)]) == 2
    message = f"--port={port}: another process listens on 127.0.0.1:{port}"
    assert capsys.readouterr().err == f"pagoda: error: {message}\n"
    assert not hasattr(engine, "options")


def test_the_application_serves_the_engine(
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    served: list[str] = []
    told: dict[str, object] = {}

    def run_once(app: FastAPI, listener: socket.socket, options: ServerOptions) -> None:
        async def ask() -> None:
            async with client_of(app) as client:
                served.append((await client.get("/v1/models")).json()["data"][0]["id"])
                info = (await client.get("/server_info")).json()
                told.update(info["engine_options"])

        import asyncio

        asyncio.run(ask())
        served.append(str(listener.getsockname()[0]))

    monkeypatch.setattr("pagoda.server.run.run", run_once)
    write_new_secret("file", tmp_path / "key")
    flags = ["--dev-mode", "--max-num-seqs", "3", "--no-enable-prefix-caching"]
    flags += ["--kv-tier", "redis://me:secret@host:1,ttl=7d", "--kv-tier", "disk:/kv,size=1GiB"]
    flags += ["--kv-tier-key-file", str(tmp_path / "key")]
    assert run(["serve", "named-model", "--port", "0", *flags]) == 0
    assert engine.options.model == "named-model"
    assert served == [MODEL, "127.0.0.1"]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert engine.is_warm
    assert f"serving {MODEL} on http://127.0.0.1:" in captured.err
    tiers = ["redis://…@host:1,ttl=7d", "disk:/kv,size=1GiB"]
    assert told == {**dataclasses.asdict(engine.options), "kv_tier": tiers}
    assert "secret" not in f"{engine.options!r} {captured.err}"
    assert (told["max_num_seqs"], told["enable_prefix_caching"]) == (3, False)


def test_an_address_may_name_its_interface(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[str, ...]] = []
    monkeypatch.setattr("pagoda.cli.serve.bind", lambda host, port: bind("127.0.0.1", port))
    monkeypatch.setattr(
        "pagoda.server.run.run", lambda *given: served.append(given[2].allowed_hosts)
    )
    assert run(["serve", "--host", "fe80::1%eth0", "--port", "0"]) == 0
    assert served == [("fe80::1",)]


def test_a_model_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "one", "--model", "other", "--port", "0"]) == 2
    assert capsys.readouterr().err == "pagoda: error: --model='other': one is named as well\n"


def test_a_model_without_a_chat_template_is_told(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pagoda.server.run.run", lambda *_: None)
    assert run(["serve", "--port", "0"]) == 0
    assert "chats will be refused" not in capsys.readouterr().err
    engine.tokenizer.has_chat_template = False
    assert run(["serve", "--port", "0"]) == 0
    assert "the model has no chat template: chats will be refused" in capsys.readouterr().err


def test_an_empty_key_in_the_environment_is_refused(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PAGODA_API_KEY", "")
    assert run(["serve", "--port", "0"]) == 2
    assert "--api-key=" in capsys.readouterr().err


def test_an_open_server_for_other_machines_is_told(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pagoda.server.run.run", lambda *_: None)
    assert run(["serve", "--port", "0", "--host", "0.0.0.0"]) == 0
    assert "no API key is set" in capsys.readouterr().err
    assert run(["serve", "--port", "0", "--host", "0.0.0.0", "--api-key", "a-long-key"]) == 0
    assert "no API key is set" not in capsys.readouterr().err


def test_a_key_may_be_required(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pagoda.server.run.run", lambda *_: None)
    required = ["serve", "--port", "0", "--require-api-key"]
    assert run(required) == 2
    assert "--api-key: is required: set PAGODA_API_KEY" in capsys.readouterr().err
    assert not hasattr(engine, "options")
    assert run([*required, "--no-require-api-key"]) == 0  # as flags after an image's own
    monkeypatch.setenv("PAGODA_API_KEY", "a-long-key")
    assert run(required) == 0


@pytest.mark.parametrize(
    ("num_files", "flags", "is_told"),
    [(64, [], True), (129, [], True), (130, [], False), (129, ["1"], False)],
)
def test_few_open_files_are_told(
    num_files: int,
    flags: list[str],
    is_told: bool,
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where they leave fewer connections than sequences may run, unless that was asked for."""
    monkeypatch.setattr("pagoda.server.run.run", lambda *_: None)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (num_files, num_files))
    asked = [part for number in flags for part in ("--max-num-connections", number)]
    assert run(["serve", "--port", "0", *asked]) == 0
    words = " ".join(capsys.readouterr().err.split())
    told = "limited to 1 at a time, fewer than the 2 sequences that may run: raise the limit on"
    assert (told in words) == is_told


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ('["*"]', ("*",)),
        ('["https://a.example", "https://b.example"]', ("https://a.example", "https://b.example")),
        ("https://a.example, https://b.example", ("https://a.example", "https://b.example")),
        ("[]", ()),
    ],
)
def test_origins_are_written_as_for_vllm(
    given: str, read: tuple[str, ...], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[ServerOptions] = []
    monkeypatch.setattr("pagoda.server.run.run", lambda _, __, options: served.append(options))
    assert run(["serve", "--port", "0", "--host", "localhost", "--allowed-origins", given]) == 0
    [options] = served
    assert options.allowed_origins == read
    assert options.allowed_methods == options.allowed_headers == ("*",)
    assert options.allowed_hosts == ("localhost",)
    assert options.max_num_connections


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--allowed-origins", '["a"'),
        ("--allowed-hosts", "[1]"),
        ("--allowed-headers", '[""]'),
        ("--max-num-connections", str(2**40)),
        ("--max-num-connections", "0"),
        ("--usage-file", "/no/such/folder/usage.json"),
        ("--record-trace", "/no/such/folder/day.jsonl"),
        ("--record-trace", "/"),
    ],
)
def test_bad_values_of_the_door_are_refused_before_the_model_loads(
    flag: str, value: str, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--port", "0", flag, value]) == 2
    assert f"{flag}=" in capsys.readouterr().err
    assert not hasattr(engine, "options")
