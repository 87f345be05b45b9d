"""The `config.json` of a model on the hub, and nothing else of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pagoda.errors import ModelError
from pagoda.models.config import CONFIG_FILE
from pagoda.models.json_file import CONFIG_LIMITS, parse_json, read_json

_TIMEOUT_S = 10
_MOST_REDIRECTS = 5


def hub_config(hub_id: str, advice: str) -> tuple[dict[str, Any], str]:
    """The config's fields and where they were read: in the local cache, else on the hub.

    `advice` is said where it is not to be had. Raises `ModelError`.
    """
    # Both take long to import, and only a hub id needs them.
    from huggingface_hub import constants, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.utils import build_hf_headers

    cached = try_to_load_from_cache(hub_id, CONFIG_FILE)
    if isinstance(cached, str):
        return read_json(Path(cached)), cached
    if constants.HF_HUB_OFFLINE:
        raise ModelError("model", hub_id, f"{advice}, and HF_HUB_OFFLINE forbids to ask the hub")
    url = hf_hub_url(hub_id, CONFIG_FILE)
    values = _fetch(hub_id, url, build_hf_headers(), advice)
    return values, url


def _fetch(hub_id: str, url: str, headers: dict[str, str], advice: str) -> dict[str, Any]:
    """Once: somebody waits, and a name that is misspelt does not get better by asking again."""
    import httpx  # leaves the token behind where it is sent on to another host

    deadline = time.monotonic() + _TIMEOUT_S
    content = b""
    try:
        with (
            httpx.Client(
                follow_redirects=True, max_redirects=_MOST_REDIRECTS, timeout=_TIMEOUT_S
            ) as client,
            client.stream("GET", url, headers=headers) as answer,
        ):
            answer.raise_for_status()
            for part in answer.iter_bytes():
                content += part
                if len(content) > CONFIG_LIMITS.most_bytes:
                    raise ValueError(f"it is larger than {CONFIG_LIMITS.most_bytes} bytes")
                if time.monotonic() > deadline:
                    raise ValueError(f"it took longer than {_TIMEOUT_S} s")
        return parse_json(content, CONFIG_FILE, url, CONFIG_LIMITS)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ModelError(
            "model",
            hub_id,
            f"{advice}, and its config could not be fetched from the hub (HF_TOKEN for a gated "
            f"model): {reason}",
        ) from error
