"""The page at `/cache` as files: how they are served and what is in them."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from pagoda.server.app import create_app
from pagoda.server.cache_page import FOLDER
from pagoda.server.keys import KeyRing
from server.conftest import client_of
from server.fake_engine import FakeEngine
from server.test_page import AA_EDGE, AA_TEXT, MEDIA_TYPES, NAMESPACE, POLICY, contrast

FILES = sorted(FOLDER.iterdir())
ADDRESSES = {
    "/cache": FOLDER / "index.html",
    **{f"/cache/page/{path.name}": path for path in FILES},
}
LARGEST_BYTES = 48_000


@pytest.mark.anyio
@pytest.mark.parametrize("address", ADDRESSES)
async def test_a_file_comes_with_headers_that_keep_it_to_itself(
    address: str, client: httpx.AsyncClient
) -> None:
    response = await client.get(address)
    path = ADDRESSES[address]
    assert (response.status_code, response.content) == (200, path.read_bytes())
    assert response.headers["content-type"] == MEDIA_TYPES[path.suffix]
    policy = dict(part.split(" ", 1) for part in response.headers[POLICY].split("; "))
    assert policy.pop("require-trusted-types-for") == "'script'"
    assert set(policy.values()) == {"'none'", "'self'"}


@pytest.mark.anyio
async def test_the_page_needs_a_key_where_the_server_does() -> None:
    async with client_of(create_app(FakeEngine(), keys=KeyRing({"alices-key-1": "al"}))) as client:
        for address in ADDRESSES:
            assert (await client.get(address)).status_code == 401
            assert (await client.get(address, auth=("me", "alices-key-1"))).status_code == 200


@pytest.mark.anyio
async def test_no_other_file_is_served(client: httpx.AsyncClient) -> None:
    assert (await client.get("/cache/page/nothing.js")).status_code == 404


def test_the_page_is_small() -> None:
    assert sum(path.stat().st_size for path in FILES) < LARGEST_BYTES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_in_it_leads_elsewhere_or_needs_a_softer_policy(path: Path) -> None:
    text = path.read_text("utf-8").replace(NAMESPACE, "")
    assert not re.search(r"https?:|[\"'(=]//", text)
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    assert not re.search(r"localStorage|sessionStorage|indexedDB|document\.cookie", text)


def test_every_file_is_named() -> None:
    text = "".join(path.read_text("utf-8") for path in FILES)
    named = set(re.findall(r'(?:src|href)="cache/page/([^"]+)"', text))
    named |= set(re.findall(r'from "\./([^"]+)"', text))
    assert named == {path.name for path in FILES} - {"index.html"}


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_what_is_written_can_be_read_and_tenants_be_told_from_the_ground(scheme: int) -> None:
    style = (FOLDER / "style.css").read_text("utf-8")
    colours = dict(
        re.findall(
            r"--([\w-]+): #(\w{6});", re.findall(r":root \{(.*?)\}", style, re.DOTALL)[scheme]
        )
    )
    for text, grounds in {"ink": ("paper", "shade"), "quiet": ("paper",)}.items():
        for ground in grounds:
            assert contrast(colours[text], colours[ground]) >= AA_TEXT, (text, ground)
    for name in ("warning", "accent", "edge", *(f"tenant-{number}" for number in range(1, 9))):
        assert contrast(colours[name], colours["paper"]) >= AA_EDGE, name
        assert contrast(colours[name], colours["shade"]) >= AA_EDGE, name
