"""Stores that tests share: one of each for a process, empty and well at the start of a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tiers.faults import Line
from tiers.stores import KEYS, RedisServer, S3Server, certify


@pytest.fixture(scope="session")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an authority that nobody else trusts."""
    folder = tmp_path_factory.mktemp("certificate")
    certify(folder / "certificate.pem", folder / "key.pem")
    return folder / "certificate.pem"


@pytest.fixture(scope="session")
def running_s3() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def redis_server(running_redis: RedisServer) -> RedisServer:
    running_redis.make_well()
    return running_redis


@pytest.fixture
def redis_line(redis_server: RedisServer) -> Iterator[Line]:
    line = Line(redis_server.port)
    yield line
    line.close()


@pytest.fixture
def s3_server(running_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    running_s3.make_well()
    return running_s3


@pytest.fixture
def s3_line(s3_server: S3Server) -> Iterator[Line]:
    line = Line(s3_server.port)
    yield line
    line.close()
