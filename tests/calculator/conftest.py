"""The page in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from calculator.pages import open_at
from pagoda.calculator.page import plan_page
from server.browser import Browser, Tab


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(plan_page(), "utf-8")
    return path.as_uri()


@pytest.fixture
def tab(browser: Browser, address: str) -> Iterator[Tab]:
    """The page from a disk; whatever a test does, it asks for nothing and does not complain."""
    with closing(browser.open()) as tab:
        open_at(tab, address)
        yield tab
    assert {url.partition("#")[0] for url in tab.requested if not url.startswith("data:")} == {
        address
    }
    assert tab.problems == []
