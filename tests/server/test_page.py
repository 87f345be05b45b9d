"""The page as files: how they are served and what is in them."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

import pagoda.server.page
from pagoda.server.app import create_app
from pagoda.server.keys import KeyRing
from server.conftest import client_of
from server.fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

FOLDER = Path(pagoda.server.page.__file__).parent / "page_files"
FILES = sorted(FOLDER.iterdir())
ADDRESSES = {"/": FOLDER / "index.html", **{f"/page/{path.name}": path for path in FILES}}
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
}
POLICY = "content-security-policy"
NAMESPACE = "http://www.w3.org/2000/svg"
LARGEST_BYTES = 30_000


@pytest.mark.parametrize("address", ADDRESSES)
async def test_a_file_comes_with_headers_that_keep_it_to_itself(
    address: str, client: httpx.AsyncClient
) -> None:
    response = await client.get(address)
    path = ADDRESSES[address]
    assert (response.status_code, response.content) == (200, path.read_bytes())
    assert response.headers["content-type"] == MEDIA_TYPES[path.suffix]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["cache-control"] == "private, no-cache"
    policy = dict(part.split(" ", 1) for part in response.headers[POLICY].split("; "))
    assert policy.pop("require-trusted-types-for") == "'script'"
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert set(policy.values()) == {"'none'", "'self'"}


@pytest.mark.parametrize("address", ADDRESSES)
async def test_who_has_a_file_is_not_sent_it_again(address: str, client: httpx.AsyncClient) -> None:
    tag = (await client.get(address)).headers["etag"]
    for held in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        response = await client.get(address, headers={"If-None-Match": held})
        assert (response.status_code, response.content) == (304, b"")
        assert response.headers["etag"] == tag
        assert POLICY in response.headers
    response = await client.get(address, headers={"If-None-Match": '"other"'})
    assert response.status_code == 200


async def test_tags_differ_from_file_to_file(client: httpx.AsyncClient) -> None:
    addresses = [f"/page/{path.name}" for path in FILES]
    tags = {(await client.get(address)).headers["etag"] for address in addresses}
    assert len(tags) == len(FILES)


async def test_head_tells_the_length_alone(client: httpx.AsyncClient) -> None:
    response = await client.head("/")
    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["content-length"]) == ADDRESSES["/"].stat().st_size


@pytest.mark.parametrize("name", ["nothing.js", "../page.py", "..%2fpage.py", ""])
async def test_no_other_file_is_served(name: str, client: httpx.AsyncClient) -> None:
    response = await client.get(f"/page/{name}")
    assert response.status_code == 404
    assert "error" in response.json()


async def test_the_page_needs_a_key_where_the_server_does(engine: FakeEngine) -> None:
    async with client_of(create_app(engine, keys=KeyRing({"alices-key-1": "alice"}))) as client:
        for address in ADDRESSES:
            refused = await client.get(address)
            assert refused.status_code == 401
            schemes = refused.headers.get_list("www-authenticate")
            assert [scheme.split()[0] for scheme in schemes] == ["Bearer", "Basic"]
            opened = await client.get(address, auth=("me", "alices-key-1"))
            assert opened.status_code == 200


def test_the_page_is_small() -> None:
    assert sum(path.stat().st_size for path in FILES) < LARGEST_BYTES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_in_it_leads_elsewhere_or_needs_a_softer_policy(path: Path) -> None:
    text = path.read_text("utf-8").replace(NAMESPACE, "")
    assert not re.search(r"https?:|[\"'(=]//", text)
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    assert not re.search(r"localStorage|sessionStorage|indexedDB|document\.cookie", text)


def test_every_file_that_is_named_is_there_and_every_one_that_is_there_is_named() -> None:
    sources = {path.name: path.read_text("utf-8") for path in FILES}
    named = set(re.findall(r'(?:src|href)="page/([^"]+)"', sources["index.html"]))
    named |= set(re.findall(r'from "\./([^"]+)"', sources["chat.js"]))
    assert named == set(sources) - {"index.html"}


TEXT_ON = {
    "ink": ("paper", "sheet", "shade"),
    "quiet": ("paper", "sheet", "shade"),
    "accent": ("paper", "shade"),
    "on-accent": ("accent",),
    "paper": ("ink",),
}
AA_TEXT, AA_EDGE = 4.5, 3.0


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_what_is_written_can_be_read(scheme: int) -> None:
    style = (FOLDER / "style.css").read_text("utf-8")
    roots = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): #(\w{6});", roots[scheme]))
    for text, grounds in TEXT_ON.items():
        for ground in grounds:
            assert contrast(colours[text], colours[ground]) >= AA_TEXT, (text, ground)
    for edge in ("edge", "accent", "warning"):
        assert contrast(colours[edge], colours["paper"]) >= AA_EDGE, edge
    assert contrast(colours["accent"], colours["computed"]) >= AA_EDGE


def contrast(one: str, other: str) -> float:
    """The ratio that WCAG 2.2 defines, from 1 to 21."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    shares = [int(colour[start : start + 2], 16) / 255 for start in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
