"""Stores that tests of shared tiers speak with: a Redis, and moto's S3."""

from __future__ import annotations

import http.client
import ipaddress
import shutil
import socket
import subprocess
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pagoda.tiers.deadline import Deadline
from pagoda.tiers.redis_address import RedisAddress
from pagoda.tiers.redis_link import RedisLink

_PATIENCE_S = 20.0
REDIS_SERVERS = ("redis-server", "valkey-server")
ADMIN = "admin"
PASSWORD = "s3cret-p4ss"
BUCKET = "bucket"
KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "s3cret-k3y",
    "AWS_REGION": "us-east-1",
}


class RedisServer:
    """A process of its own, which keeps nothing on disk. `admin` may do everything at any time."""

    def __init__(self, folder: Path) -> None:
        self.port, self.tls_port = _free_port(), _free_port()
        self.certificate = folder / "certificate.pem"
        """Of itself: whoever trusts it trusts this server."""
        self._key = folder / "key.pem"
        certify(self.certificate, self._key)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Begin, with nothing in it."""
        program = next(filter(None, map(shutil.which, REDIS_SERVERS)), None)
        assert program, f"none of {REDIS_SERVERS} is installed: `make redis`"
        options = {
            "port": self.port,
            "tls-port": self.tls_port,
            "tls-cert-file": self.certificate,
            "tls-key-file": self._key,
            "tls-auth-clients": "no",
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "no",
            "dir": self._folder,
            "user": f"{ADMIN} on >{PASSWORD} ~* &* +@all",
            "maxmemory-policy": "noeviction",
        }
        config = self._folder / "redis.conf"
        lines = [f"{key} {value if value != '' else chr(34) * 2}" for key, value in options.items()]
        config.write_text("\n".join(lines) + "\n")
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen([program, config], stdout=log, stderr=log)
        deadline = time.monotonic() + _PATIENCE_S
        while not _listens(self.port):
            assert self._process.poll() is None, (self._folder / "redis.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def kill(self) -> None:
        """As a machine that loses its power."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def ask(self, *command: Any) -> Any:
        """As the administrator."""
        deadline = Deadline(_PATIENCE_S, "the test's redis")
        address = RedisAddress("127.0.0.1", self.port, user=ADMIN, password=PASSWORD)
        link = RedisLink(address, deadline)
        try:
            return link.ask(*command, deadline=deadline)
        finally:
            link.close()

    def make_well(self) -> None:
        """Empty, with room, open to all."""
        self.ask("FLUSHALL")
        self.ask("CONFIG", "SET", "maxmemory", 0)
        self.ask("ACL", "SETUSER", "default", "on", "nopass", "~*", "&*", "+@all")


class S3Server:
    """moto's, in threads of this process, with one bucket.

    Of moto's services this one alone: its server looks for each request through all that there are.
    """

    def __init__(self) -> None:
        from moto.server import create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        WSGIRequestHandler.log_request = lambda *args, **keywords: None  # type: ignore[method-assign]
        self._server = make_server("127.0.0.1", 0, create_backend_app("s3"), threaded=True)
        self.port = self._server.port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.make_well()

    def make_well(self) -> None:
        """Empty."""
        from moto.core.base_backend import BackendDict

        BackendDict.reset()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        connection.request("PUT", f"/{BUCKET}")
        assert connection.getresponse().status == 200
        connection.close()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()


def certify(certificate: Path, key: Path) -> None:
    """For this machine, for a day."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "pagoda's tests")])
    now = datetime.now(UTC)
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder(name, name, secret.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([here]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(secret, hashes.SHA256())
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        secret.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0
