"""Where a bucket is: `s3://bucket/prefix`, at an endpoint, in a region.

Who asks is told by the environment, as AWS's tools do: `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, a web identity, a container's or a machine's own
role. It is never in a URL.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pagoda.errors import InvalidOptionError
from pagoda.tiers.certificates import read_certificates
from pagoda.tiers.credentials import without_credentials

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_PATTERN = "has to be s3://bucket or s3://bucket/prefix"
_ENDPOINT_PATTERN = "has to be http://host[:port] or https://host[:port]"
_CONNECT_S = 5
_REQUEST_S = 300
"""Bounds of the library's own: calls have deadlines, which are shorter."""
_NUM_RETRIES = 2
_BACKOFF_S = 0.02


@dataclass(frozen=True, slots=True)
class S3Address:
    """What the options say."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    """None: Amazon's own."""
    region: str | None = None
    """None: what `AWS_REGION` says, or us-east-1."""
    ca: bytes | None = field(default=None, repr=False)
    """Certificates of an authority that is trusted beside those that the machine trusts (PEM)."""

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        ca_file: str | None = None,
        option: str = "kv_tier",
    ) -> S3Address:
        """Raises InvalidOptionError, which names `option` and what is wrong with it."""
        shown = without_credentials(url)
        try:
            parts = urlsplit(url)
        except ValueError:
            raise InvalidOptionError(option, shown, _PATTERN) from None
        is_odd = parts.query or parts.fragment or "@" in parts.netloc or ":" in parts.netloc
        if parts.scheme != "s3" or not parts.netloc or is_odd:
            raise InvalidOptionError(option, shown, _PATTERN)
        if endpoint is not None:
            _check_endpoint(endpoint, option)
        ca = None if ca_file is None else read_certificates(ca_file, option)
        return cls(parts.netloc, parts.path.strip("/"), endpoint, region, ca)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def open(self, option: str = "kv_tier") -> ObjectStore:
        """Nobody is asked. Raises InvalidOptionError where the library is missing."""
        try:
            from obstore.store import S3Store
        except ImportError:
            raise InvalidOptionError(
                option, str(self), "S3 needs a library more: pip install 'pagoda-llm[s3]'"
            ) from None
        given: dict[str, Any] = {"endpoint": self.endpoint, "region": self.region}
        client: Any = {
            "allow_http": self.endpoint is not None and self.endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "timeout": timedelta(seconds=_REQUEST_S),
        }
        if self.ca is not None:
            client["root_certificate"] = self.ca
        return S3Store(
            self.bucket,
            prefix=self.prefix or None,
            client_options=client,
            retry_config={
                "max_retries": _NUM_RETRIES,
                "backoff": {"init_backoff": timedelta(seconds=_BACKOFF_S)},
                "retry_timeout": timedelta(seconds=_REQUEST_S),
            },
            **{name: value for name, value in given.items() if value is not None},
        )


def _check_endpoint(endpoint: str, option: str) -> None:
    try:
        parts = urlsplit(endpoint)
        is_right = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right or "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidOptionError(
            f"{option} endpoint", without_credentials(endpoint), _ENDPOINT_PATTERN
        )
