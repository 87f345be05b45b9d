"""The page as people use it, in Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing

import httpx
import pytest

from pagoda.server.keys import KeyRing
from pagoda.server.options import ServerOptions
from server.browser import Browser, Tab
from server.fake_engine import MAX_MODEL_LEN, MODEL, engine_failure
from server.live import live_server, wait_until
from server.saying_engine import SayingEngine

pytestmark = pytest.mark.browser

PIECES = ("One ", "and ", "two.")
WHOLE = "".join(PIECES)
ENTER, ESCAPE = ("Enter", 13), ("Escape", 27)
PROMPT = "<user>Hello"
SEND_IS_BACK = "!document.getElementById('send').hidden"


@pytest.fixture
def engine() -> SayingEngine:
    return SayingEngine(PIECES)


@pytest.fixture
def url(engine: SayingEngine) -> Iterator[str]:
    with live_server(engine) as url:
        yield url


@pytest.fixture
def tab(browser: Browser, url: str) -> Iterator[Tab]:
    """The page; whatever a test does, it stays at home and does not complain."""
    with closing(browser.open()) as tab:
        tab.prefer(prefers_reduced_motion="reduce")  # what slides in cannot be clicked
        open_page(tab, url)
        yield tab
    assert [address for address in tab.requested if not address.startswith(f"{url}/")] == []
    assert tab.problems == []


def open_page(tab: Tab, url: str) -> None:
    tab.go(url)
    tab.wait_for("document.getElementById('model').textContent")


def ask(tab: Tab, question: str = "Hello") -> None:
    tab.click("#question")
    tab.write(question)
    tab.press(*ENTER)


def wait_for_answer(tab: Tab, text: str = WHOLE) -> None:
    """Until the last answer is `text`, and complete."""
    tab.wait_for(f"{SEND_IS_BACK} && {shows('.answer', text)}")


def shows(selector: str, text: str) -> str:
    """JavaScript: the last element that fits says `text`."""
    last = f"[...document.querySelectorAll({selector!r})].at(-1)"
    return f"{last}?.innerText.trim() === {text.strip()!r}"


def test_it_opens_with_the_models_name_and_examples(tab: Tab) -> None:
    assert tab.text("#model") == MODEL
    assert tab.value("document.querySelectorAll('#examples button').length") == 3
    assert tab.value("document.activeElement.id") == "question"
    assert tab.value("document.title") == "Pagoda"


def test_a_thought_is_folded_above_its_answer(tab: Tab, engine: SayingEngine) -> None:
    engine.tokenizer.chat_template = "<think></think>"
    engine.pieces = ["<think>", "Hm.", "</think>", *PIECES]
    engine.held_at = 3
    ask(tab)
    tab.wait_for("document.querySelector('.thought div').textContent === 'Hm.'")
    assert tab.value("document.querySelector('.thought').hidden") is False
    assert tab.value("document.querySelector('.thought').open") is False
    engine.held_at = None
    wait_for_answer(tab)
    ask(tab)
    tab.wait_for("document.querySelectorAll('article').length === 2")
    wait_for_answer(tab)
    assert engine.prompts[-1] == f"{PROMPT}<assistant>{WHOLE}<user>Hello"


def test_an_answer_streams_in_and_says_what_was_cached(tab: Tab, engine: SayingEngine) -> None:
    engine.held_at = 2
    ask(tab)
    tab.wait_for(shows(".answer", "One and"))
    assert tab.value("document.querySelector('article').getAttribute('aria-busy')") == "true"
    assert tab.text("#stop") == "Stop"
    engine.held_at = None
    wait_for_answer(tab)
    figures = tab.text(".figures")
    assert figures.startswith(f"{len(PROMPT)} prompt tokens, 0 from cache · first token")
    assert figures.endswith(" tokens/s")
    assert tab.text("#total") == "0% of prompt tokens came from the cache"

    tab.click(".retry")  # the same prompt
    num_cached = len(PROMPT) - 1
    tab.wait_for(f"document.body.innerText.includes(' {num_cached} from cache')")
    assert tab.value("document.querySelectorAll('article').length") == 1
    assert engine.prompts == [PROMPT] * 2
    share = float(
        tab.value("document.querySelector('article .bar').style.getPropertyValue('--share')")
    )
    assert share == pytest.approx(num_cached / len(PROMPT))
    assert tab.text("#total") == "45% of prompt tokens came from the cache"  # 10 of 22


def test_a_conversation_is_sent_whole_with_the_settings(tab: Tab, engine: SayingEngine) -> None:
    tab.click("#open")
    tab.click("#system")
    tab.write("Be kind")
    tab.value("document.getElementById('temperature').value = 1.5")
    tab.click("#max-tokens")
    tab.value("document.getElementById('max-tokens').select()")
    tab.write("55")
    tab.click("#close")
    ask(tab)
    wait_for_answer(tab)
    ask(tab, "More")
    tab.wait_for("document.querySelectorAll('article:not([aria-busy=true])').length === 2")
    assert engine.prompts[-1] == f"<system>Be kind<user>Hello<assistant>{WHOLE}<user>More"
    assert tab.value("document.querySelectorAll('.retry:not([hidden])').length") == 1
    assert {sampling.temperature for sampling in engine.samplings} == {1.5}
    assert {sampling.max_tokens for sampling in engine.samplings} == {55}


def test_an_empty_limit_leaves_it_to_the_server(tab: Tab, engine: SayingEngine) -> None:
    tab.value("document.getElementById('max-tokens').value = ''")
    ask(tab)
    wait_for_answer(tab)
    assert engine.samplings[0].max_tokens is None  # as long as the context lets it


def test_an_answer_can_be_copied(tab: Tab) -> None:
    ask(tab)
    wait_for_answer(tab)
    tab.click(".copy")
    tab.wait_for(shows(".copy", "Copied"))
    tab.click("#question")
    tab.paste()
    assert tab.value("document.getElementById('question').value") == WHOLE


@pytest.mark.parametrize("how", ["the button", "the key"])
def test_an_answer_can_be_stopped(how: str, tab: Tab, engine: SayingEngine) -> None:
    engine.held_at = 2
    ask(tab)
    tab.wait_for(shows(".answer", "One and"))
    if how == "the button":
        tab.click("#stop")
    else:
        tab.press(*ESCAPE)
    tab.wait_for(SEND_IS_BACK)
    wait_until(lambda: len(engine.aborted) == 1)
    engine.held_at = None
    assert tab.text(".answer") == "One and"
    assert tab.text(".figures").endswith("stopped")
    ask(tab, "Go on")
    wait_for_answer(tab)
    assert engine.prompts[-1] == f"{PROMPT}<assistant>One and <user>Go on"


def test_enter_sends_and_shift_enter_begins_a_line(tab: Tab, engine: SayingEngine) -> None:
    tab.click("#question")
    tab.write("One")
    tab.press(*ENTER, shift=True)
    tab.write("two")
    tab.press(*ENTER)
    wait_for_answer(tab)
    assert engine.prompts == ["<user>One\ntwo"]
    assert tab.value("document.getElementById('question').value") == ""
    tab.press(*ENTER)  # nothing is written
    tab.write("  ")
    tab.press(*ENTER)
    assert engine.prompts == ["<user>One\ntwo"]


def test_examples_share_their_beginning(tab: Tab, engine: SayingEngine) -> None:
    for number in (2, 3):
        tab.click(f"#examples li:nth-child({number}) button")
        wait_for_answer(tab)
        tab.click("#new")
    first, second = engine.prompts
    assert first != second
    assert first.rpartition("\n\n")[0] == second.rpartition("\n\n")[0]
    assert len(first) > 500


def test_a_new_chat_knows_nothing_and_nothing_is_stored(tab: Tab, engine: SayingEngine) -> None:
    engine.held_at = 1
    ask(tab)
    tab.wait_for(shows(".answer", "One"))
    tab.click("#new")
    wait_until(lambda: len(engine.aborted) == 1)
    engine.held_at = None
    assert tab.value("document.querySelectorAll('article').length") == 0
    assert tab.text("#examples")
    ask(tab, "Anew")
    wait_for_answer(tab)
    assert engine.prompts[-1] == "<user>Anew"
    assert tab.value("localStorage.length + sessionStorage.length + document.cookie.length") == 0


HOSTILE = (
    "<img src=x onerror=hacked=1>",
    "<script>hacked=1</script>\n\n",
    "a & b &amp; <b>c</b>\n\n```html\n",
    "<iframe src=https://example.com></iframe>\n```\nafter",
)


def test_what_the_model_says_stays_text(tab: Tab, engine: SayingEngine) -> None:
    engine.pieces = list(HOSTILE)
    ask(tab, "<img src=y onerror=hacked=2>")
    tab.wait_for(f"{SEND_IS_BACK} && document.querySelector('.answer').children.length === 4")
    assert tab.value("[...document.querySelector('.answer').children].map((e) => e.tagName)") == [
        *("P", "P"),
        *("PRE", "P"),
    ]
    assert tab.value(
        "[...document.querySelector('.answer').children].map((e) => e.textContent)"
    ) == [
        HOSTILE[0] + HOSTILE[1].strip(),
        "a & b &amp; <b>c</b>",
        "<iframe src=https://example.com></iframe>",
        "after",
    ]
    assert tab.text(".question") == "<img src=y onerror=hacked=2>"
    assert tab.value("document.querySelectorAll('#turns :is(img, script, iframe, b)').length") == 0
    assert tab.value("typeof hacked") == "undefined"


SHOWN = """import('/page/text.js').then(({ show }) => {
  const parent = document.createElement('div');
  show(%s, parent);
  return [...parent.children].map((e) => [e.tagName, e.dataset.info ?? "", e.textContent]);
})"""


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("```print(1)``` prints\nand so on", [["P", "", "```print(1)``` prints\nand so on"]]),
        ("```\n```x``` y\n```\nz", [["PRE", "", "```x``` y"], ["P", "", "z"]]),
        ("````md\n```py\nx\n```\n````\nz", [["PRE", "md", "```py\nx\n```"], ["P", "", "z"]]),
        ("a\n   ```py  \nx\n`````  \nb", [["P", "", "a"], ["PRE", "py", "x"], ["P", "", "b"]]),
        ("```\nx\n``` y", [["PRE", "", "x\n``` y"]]),
        ("```to be said\n```", [["PRE", "to be said", ""]]),
    ],
)
def test_a_fence_begins_and_ends_as_in_markdown(
    tab: Tab, text: str, blocks: list[list[str]]
) -> None:
    assert tab.value(SHOWN % json.dumps(text)) == blocks


@pytest.mark.parametrize("length", [MAX_MODEL_LEN, MAX_MODEL_LEN // 2])
def test_a_chat_goes_on_after_a_restart_with_another_model(
    browser: Browser, engine: SayingEngine, length: int
) -> None:
    with closing(browser.open()) as tab:
        with live_server(engine) as url:
            open_page(tab, url)
            ask(tab)
            wait_for_answer(tab)
        other = SayingEngine(PIECES)
        other.model_name = "another"
        other.model_names = ("another",)
        other.max_model_len = length
        with live_server(other, port=int(url.rpartition(":")[2])):
            ask(tab, "More")
            tab.wait_for("document.querySelectorAll('article:not([aria-busy=true])').length === 2")
            tab.wait_for("document.getElementById('model').textContent === 'another'")
            assert tab.value("document.getElementById('max-tokens').value") == str(length)
        assert other.prompts == [f"{PROMPT}<assistant>{WHOLE}<user>More"]


def test_an_answer_is_at_most_as_long_as_the_model_takes(tab: Tab, engine: SayingEngine) -> None:
    assert tab.value("document.getElementById('max-tokens').value") == str(MAX_MODEL_LEN)
    assert tab.value("document.getElementById('max-tokens').max") == str(MAX_MODEL_LEN)
    ask(tab)
    wait_for_answer(tab)
    assert engine.samplings[0].max_tokens == MAX_MODEL_LEN


def test_what_is_written_as_html_is_blocked(tab: Tab) -> None:
    blocked = "try { document.body.innerHTML = '<p>'; 'done' } catch (e) { e.name }"
    assert tab.value(blocked) == "TypeError"
    tab.value("fetch('https://example.com/').then(() => 'done', () => 'refused')")
    assert len(tab.problems) >= 2
    assert all("Content Security Policy" in text or "TrustedHTML" in text for text in tab.problems)
    tab.problems.clear()
    tab.requested.clear()


def test_a_refusal_is_told_and_the_question_given_back(tab: Tab, engine: SayingEngine) -> None:
    tab.value("document.getElementById('max-tokens').value = '0'")
    ask(tab)
    tab.wait_for("!document.getElementById('notice').hidden")
    assert tab.text("#reason").startswith("The server answered 400: max_tokens=0: ")
    assert tab.value("document.getElementById('question').value") == "Hello"
    assert tab.value("document.querySelectorAll('article').length") == 0
    assert [problem for problem in tab.problems if "400" not in problem] == []
    tab.problems.clear()  # the browser's own line on the status
    tab.value("document.getElementById('max-tokens').value = '8'")
    tab.click("#again")
    wait_for_answer(tab)
    assert tab.value("document.getElementById('notice').hidden")
    assert tab.value("document.getElementById('question').value") == ""


def test_a_failure_on_the_way_keeps_what_was_said(tab: Tab, engine: SayingEngine) -> None:
    engine.fail = engine_failure()
    ask(tab)
    tab.wait_for("!document.getElementById('notice').hidden")
    told = "The answer broke off: the engine failed while it ran this request."
    assert tab.text("#reason") == told
    assert tab.text(".answer") == "One"
    assert tab.text(".figures").endswith("broken off")
    engine.fail = None
    tab.click("#again")
    wait_for_answer(tab)
    assert tab.value("document.querySelectorAll('article').length") == 1


def test_a_full_server_says_when_to_come_back(browser: Browser, engine: SayingEngine) -> None:
    engine.held_at = 1
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    with live_server(engine, ServerOptions(max_num_queued_reqs=0)) as url, ExitStack() as others:
        tab = browser.open()
        open_page(tab, url)
        for _ in range(engine.max_num_seqs):
            asked = httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60)
            others.enter_context(asked)
        ask(tab)
        tab.wait_for("document.getElementById('reason').innerText.includes('answered 503')")
        assert tab.text("#again") == "Try again in 1 s"
        assert tab.value("document.getElementById('again').disabled")
        others.close()
        engine.held_at = None
        tab.wait_for("!document.getElementById('again').disabled")
        wait_until(lambda: len(engine.ended) == 2)
        tab.click("#again")
        wait_for_answer(tab)


def test_a_server_that_is_gone_is_told(browser: Browser, engine: SayingEngine) -> None:
    tab = browser.open()
    with live_server(engine) as url:
        open_page(tab, url)
    ask(tab)
    tab.wait_for("!document.getElementById('notice').hidden")
    assert tab.text("#reason") == "The server cannot be reached."


def test_the_browser_asks_for_the_key(browser: Browser, engine: SayingEngine) -> None:
    with live_server(engine, keys=KeyRing({"alices-key-1": "alice"})) as url:
        tab = browser.open(key="alices-key-1")
        open_page(tab, url)
        ask(tab)
        wait_for_answer(tab)
    assert engine.asked[0]["options"].tenant == "alice"


@pytest.mark.parametrize("width", [360, 1600])
def test_nothing_is_wider_than_the_window(width: int, tab: Tab, engine: SayingEngine) -> None:
    engine.pieces = ["W" * 400, "\n```\n", "x" * 400, "\n```\n"]
    tab.resize(width, 700)
    ask(tab, "W" * 300)
    tab.wait_for("document.querySelector('.figures')?.innerText.includes('cache')")
    assert tab.value("document.getElementById('scroll').scrollWidth <= innerWidth")
    assert tab.value("document.documentElement.scrollWidth <= innerWidth")
    tab.click("#open")
    assert tab.value(f"document.getElementById('close').getBoundingClientRect().right <= {width}")


def test_motion_is_reduced_for_who_wants_it_so(tab: Tab, engine: SayingEngine) -> None:
    engine.held_at = 1
    ask(tab)
    tab.wait_for(shows(".answer", "One"))
    assert tab.value("document.getAnimations().length") == 0
    tab.prefer(prefers_reduced_motion="no-preference")
    tab.wait_for("document.getAnimations().length === 1")
    engine.held_at = None
    wait_for_answer(tab)
