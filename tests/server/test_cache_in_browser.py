"""The page at `/cache` in Chromium, over a real engine at work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from checkpoints import CASES, write_checkpoint
from pagoda.engine.async_engine import AsyncEngine
from pagoda.engine.options import EngineOptions
from pagoda.server.keys import KeyRing
from server.browser import Browser, Tab
from server.live import live_server

pytestmark = pytest.mark.browser

KEYS = {"key-of-ann": "ann", "key-of-bob": "bob", "key-of-the-house": "house"}
TEXT = "a pagoda on a hill, and the bells of evening "
IS_LIVE = (
    "document.body.dataset.state === 'live' && verdict.textContent !== 'Nothing has been seen yet'"
)
PICTURE = "map.toDataURL()"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), CASES["llama-gqa"])


@pytest.fixture
def url(checkpoint: Path) -> Iterator[str]:
    options = EngineOptions(
        str(checkpoint), max_model_len=256, num_gpu_blocks_override=100, block_size=4, threads=1
    )
    engine = AsyncEngine.load(options)
    engine.warm_up()  # as `pagoda serve` does: what is compiled in a step, no event tells of
    keys = KeyRing(KEYS, operators=["key-of-the-house"])
    with live_server(engine, keys=keys) as url:
        yield url


@pytest.fixture
def tab(browser: Browser, url: str) -> Iterator[Tab]:
    """An operator's; whatever a test does, the page stays at home and does not complain."""
    with closing(browser.open(key="key-of-the-house")) as tab:
        tab.go(f"{url}/cache")
        tab.wait_for(IS_LIVE)
        yield tab
    assert [address for address in tab.requested if not address.startswith(f"{url}/")] == []
    assert tab.problems == []


def complete(url: str, key: str, prompt: str = TEXT, **fields: Any) -> None:
    body = {"prompt": prompt, "max_tokens": 1, **fields}
    answer = httpx.post(f"{url}/v1/completions", json=body, headers={"x-api-key": key}, timeout=60)
    assert answer.status_code == 200, answer.text


@contextmanager
def load(url: str, *keys: str) -> Iterator[None]:
    """Requests of these keys, one after the other, as long as the block runs."""
    is_over = threading.Event()

    def ask(key: str) -> None:
        while not is_over.is_set():
            complete(url, key, "x", max_tokens=200, ignore_eos=True, temperature=1.0)

    asking = [threading.Thread(target=ask, args=(key,)) for key in keys]
    for each in asking:
        each.start()
    try:
        yield
    finally:
        is_over.set()
        for each in asking:
            each.join()


def test_blocks_change_while_requests_run(tab: Tab, url: str) -> None:
    assert tab.text("#verdict") == "0 of 100 blocks are held, 0 more can be found again"
    seen = [tab.value(PICTURE)]
    with load(url, "key-of-ann", "key-of-bob"):
        tab.wait_for("shares.rows.length === 2")
        tab.wait_for("/^[1-9]/.test(verdict.textContent)")  # some are held
        seen.append(tab.value(PICTURE))
        tab.wait_for("evicted.textContent.includes('evicted meanwhile')")  # 100 are too few
        tab.wait_for("timeline.querySelector('.loss') !== null")
    tab.wait_for("verdict.textContent.startsWith('0 of 100 blocks are held')")
    seen.append(tab.value(PICTURE))
    assert len(set(seen)) == 3
    assert tab.text("#found").endswith("tokens since the start")
    names = tab.value("[...shares.querySelectorAll('th')].map((each) => each.innerText).sort()")
    assert names == ["ann", "bob"]


def test_a_running_sequence_has_a_row_that_shows_its_blocks(tab: Tab, url: str) -> None:
    with load(url, "key-of-ann"):
        tab.wait_for("rows.querySelector('button') !== null")
        before = tab.value(PICTURE)
        tab.wait_for("!!(rows.querySelector('button')?.click(), 'pressed')")
        assert tab.value(PICTURE) != before
        tab.wait_for("rows.querySelector('.strip')?.ariaLabel.includes('tokens are computed')")
        tab.wait_for("queue.textContent === '1 sequence runs, 0 wait.'")
    tab.wait_for("rows.children.length === 0")
    assert tab.text("#queue") == "0 sequences run, 0 wait."


def test_a_block_is_told_by_pointer_and_by_keys(tab: Tab, url: str) -> None:
    complete(url, "key-of-ann")
    tab.wait_for("shares.rows.length === 1")
    tab.value("map.focus()")
    tab.press("ArrowRight", 39)
    tab.wait_for("block.textContent.startsWith('Block 0: cached, held by nobody, for')")
    assert tab.text("#block").endswith("of ann.")
    tab.press("End", 35)
    assert tab.text("#block") == "Block 99: blank."
    tab.press("Escape", 27)
    assert tab.text("#block").startswith("A square is a block.")


def test_what_is_seen_of_a_block_goes_on_and_is_read_aloud_once(tab: Tab, url: str) -> None:
    complete(url, "key-of-ann")
    tab.wait_for("shares.rows.length === 1")
    tab.value("map.focus()")
    tab.press("ArrowRight", 39)
    tab.wait_for("block.textContent.includes('of ann')")
    tab.press("End", 35)
    tab.press("Home", 36)
    read = tab.text("#moved")
    assert read == tab.text("#block")
    assert read.startswith("Block 0: cached")
    with load(url, "key-of-bob"):  # 100 blocks are too few
        tab.wait_for("!block.textContent.includes('of ann')")
    assert tab.text("#moved") == read
    assert tab.value("document.activeElement.id") == "map"
    assert tab.value("block.closest('[aria-live]') === null")
    assert tab.value("moved.getAttribute('aria-live')") == "polite"


def test_a_block_that_is_gone_with_its_pool_is_not_picked(tab: Tab) -> None:
    picked = """Promise.all(['map', 'colours'].map((name) => import(`/cache/page/${name}.js`)))
      .then(([{ PoolMap }, { Colours }]) => {
        const canvas = document.body.appendChild(document.createElement('canvas'));
        const map = new PoolMap(canvas, () => {});
        const cells = (number) => ({ number, low: new Uint8Array(9), high: new Uint8Array(9) });
        map.draw(cells(9), new Colours(), false);
        canvas.dispatchEvent(new KeyboardEvent('keydown', { key: 'End' }));
        return [9, 8].map((number) => {
          map.draw(cells(number), new Colours(), false);
          return map.picked;
        });
      })"""
    assert tab.value(picked) == [8, None]


@contextmanager
def seen_by_an_operator(browser: Browser, checkpoint: Path, names: list[str]) -> Iterator[Tab]:
    """The page where each of these tenants has asked something."""
    keys = {f"key-of-{number}": name for number, name in enumerate(names)} | {"key-h": "house"}
    options = EngineOptions(
        str(checkpoint), max_model_len=64, num_gpu_blocks_override=100, block_size=4, threads=1
    )
    ring = KeyRing(keys, operators=["key-h"])
    engine = AsyncEngine.load(options)
    with live_server(engine, keys=ring) as url, closing(browser.open(key="key-h")) as tab:
        tab.go(f"{url}/cache")
        tab.wait_for(IS_LIVE)
        for number in range(len(names)):
            complete(url, f"key-of-{number}")
        tab.wait_for(f"shares.rows.length === {len(names)}")
        yield tab
    assert tab.problems == []


def test_the_first_eight_tenants_have_a_colour_and_all_others_one(
    browser: Browser, checkpoint: Path
) -> None:
    colour = "firstElementChild.style.getPropertyValue('--colour')"
    with seen_by_an_operator(browser, checkpoint, [f"tenant{each}" for each in range(10)]) as tab:
        colours = tab.value(f"[...shares.querySelectorAll('th')].map((each) => each.{colour})")
        assert len(set(colours[:8])) == 8
        assert colours[8] == colours[9]
        assert colours[8] not in colours[:8]
        told = tab.value("[...legend.children].map((each) => each.textContent)")
        assert told[-2:] == ["tenant7", "other tenants"]
        assert tab.value(f"legend.lastChild.{colour}") == colours[9]


def test_a_long_name_is_broken(browser: Browser, checkpoint: Path) -> None:
    with seen_by_an_operator(browser, checkpoint, ["x" * 200, "y" * 200]) as tab:
        tab.resize(390, 800)
        tab.wait_for("document.documentElement.scrollWidth <= innerWidth")
        cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
        assert tab.value(f"{cut}.length") == 0


def test_a_tenant_sees_its_own_alone(browser: Browser, url: str) -> None:
    complete(url, "key-of-ann")
    complete(url, "key-of-bob", TEXT * 3)
    with closing(browser.open(key="key-of-ann")) as tab:
        tab.go(f"{url}/cache")
        tab.wait_for(f"{IS_LIVE} && shares.rows.length")
        assert tab.text("#verdict").startswith("You have ")
        assert tab.text("#shares th") == "ann"
        assert "bob" not in tab.value("document.body.innerText")
        assert tab.problems == []


def test_a_pause_ends_the_look_and_it_goes_on(tab: Tab, url: str) -> None:
    tab.click("#pause")
    assert (tab.text("#state"), tab.text("#pause")) == ("Paused", "Go on")
    complete(url, "key-of-ann")
    assert tab.value("shares.rows.length") == 0
    tab.click("#pause")
    tab.wait_for("shares.rows.length === 1")


def test_colours_follow_age_and_the_scheme(tab: Tab, url: str) -> None:
    complete(url, "key-of-ann")
    tab.wait_for("shares.rows.length === 1")
    by_tenant = tab.value(PICTURE)
    tab.click("[value=age]")
    by_age = tab.value(PICTURE)
    assert by_age != by_tenant
    tab.prefer(prefers_color_scheme="dark")
    tab.wait_for(f"{PICTURE} !== {by_age!r}")


@pytest.mark.parametrize("width", [360, 1600])
def test_nothing_is_wider_than_the_window(width: int, tab: Tab, url: str) -> None:
    complete(url, "key-of-ann")
    tab.resize(width, 800)
    tab.wait_for("shares.rows.length === 1")
    assert tab.value("document.documentElement.scrollWidth <= innerWidth")


def test_a_server_that_is_gone_is_told(browser: Browser, checkpoint: Path) -> None:
    options = EngineOptions(
        str(checkpoint), max_model_len=64, num_gpu_blocks_override=20, block_size=4, threads=1
    )
    with closing(browser.open()) as tab:
        with live_server(AsyncEngine.load(options)) as url:
            tab.go(f"{url}/cache")
            tab.wait_for(IS_LIVE)
        tab.wait_for("document.body.dataset.state === 'waiting' && !notice.hidden")
        assert tab.text("#notice") == "The server cannot be reached. It is asked again every 2 s."


def test_other_sizes_are_drawn_for_an_operator(browser: Browser, url: str) -> None:
    for _ in range(2):
        complete(url, "key-of-ann")
    for key, is_drawn in (("key-of-the-house", True), ("key-of-ann", False)):
        with closing(browser.open(key=key)) as tab:
            tab.go(f"{url}/cache")
            tab.wait_for(f"{IS_LIVE} && shares.rows.length")
            if is_drawn:
                tab.wait_for("!curve.hidden")
                assert tab.text("#curve-words").endswith("This one has 100 blocks and density.")
                told = tab.value("chart.firstChild.getAttribute('aria-label')")
                assert "1 times, density: " in told
            else:
                assert tab.value("curve.hidden")
            assert tab.problems == []
