"""Texts for the lab, and the windows cut out of them."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

from pagoda.errors import InvalidOptionError
from pagoda.lab.sizes import Sizes
from pagoda.lab.text import TokenText, default_text, prose, read_text

PACKED = gzip.compress(b"word " * 99, mtime=0)
DAMAGED = PACKED[:10] + b"\xff" + PACKED[11:]
"""Behind its header."""


def test_prose_is_paragraphs_without_headings_and_lists() -> None:
    paragraph = " ".join(["word"] * 20)
    text = f"Chapter 1\n\n    {paragraph}\n    word\n\n1.1 More ... 7\n\n{paragraph}\n"
    assert prose(text.replace("\n", "\r\n")) == f"{paragraph} word\n\n{paragraph}"


def test_windows_are_spread_over_the_text_and_begin_with_the_opening() -> None:
    text = TokenText("counting", opening=(7,), token_ids=tuple(range(100, 200)))
    windows = text.windows(count=4, size=11)
    assert [window[0] for window in windows] == [7] * 4
    assert [window[1] for window in windows] == [100, 125, 150, 175]
    assert windows[1][1:] == tuple(range(125, 135))
    tight = text.windows(count=10, size=11)
    assert [token for window in tight for token in window[1:]] == list(range(100, 200))


def test_a_short_text_says_how_many_tokens_it_has_and_how_many_it_takes() -> None:
    text = TokenText("short.txt", opening=(), token_ids=tuple(range(1500)))
    with pytest.raises(InvalidOptionError) as caught:
        text.windows(count=2, size=1000)
    assert str(caught.value) == (
        "text='short.txt': has 1,500 tokens, and 2 windows of 1,000 take 2,000"
    )


def test_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    plain.write_text("eins zwei\n", "utf-8")
    packed.write_bytes(gzip.compress(b"drei", mtime=0))
    text = read_text([plain, packed])
    assert (text.name, text.content) == ("a.txt, b.txt.gz", "eins zwei\n\n\ndrei")


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("missing.txt", None, "No such file"),
        ("latin.txt", b"caf\xe9", "must be UTF-8 text"),
        ("broken.gz", PACKED[:20], "must be UTF-8 text, or such text as .gz"),
        ("damaged.gz", DAMAGED, "must be UTF-8 text, or such text as .gz"),
        ("plain.gz", b"word", "must be UTF-8 text, or such text as .gz"),
    ],
)
def test_a_file_that_is_no_text_is_refused(
    tmp_path: Path, name: str, data: bytes | None, reason: str
) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InvalidOptionError, match=reason):
        read_text([path])


def test_the_default_text_is_long_enough_for_sixty_windows_and_repeats_no_paragraph() -> None:
    paragraphs = default_text().content.split("\n\n")
    assert len(set(paragraphs)) == len(paragraphs)
    assert sum(map(len, paragraphs)) > 4 * 60 * 1024  # characters: a token has some five


def test_a_python_without_its_reference_asks_for_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(InvalidOptionError, match="text=None: this Python comes without"):
        default_text()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"windows": 1}, "windows=1: must be a whole number of at least 2"),
        ({"window": 8}, "window=8: must be"),
        ({"chunk": 0}, "chunk=0: must be"),
        ({"chunk": 300}, "chunk=300: at most 256"),
        ({"window": 64, "chunk": 64}, "chunk=64: must be less than a window, 64"),
        ({"passkey_lengths": (64,)}, "passkey_lengths=64: must be"),
        ({"passkey_trials": -1}, "passkey_trials=-1: must be"),
    ],
)
def test_sizes_out_of_range_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        Sizes(**given)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_sizes_beyond_the_model_are_refused() -> None:
    sizes = Sizes(window=512, passkey_lengths=(512, 2048))
    sizes.require_within(2048)
    with pytest.raises(InvalidOptionError, match="passkey_lengths=2048: the model takes 2,047"):
        sizes.require_within(2047)
    with pytest.raises(InvalidOptionError, match="window=512: the model takes 512"):
        sizes.require_within(512)
    Sizes(window=512, passkey_lengths=(2048,), passkey_trials=0).require_within(1024)
