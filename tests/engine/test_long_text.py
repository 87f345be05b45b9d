"""Text that has far too many tokens is refused before all of it is tokenised."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from pagoda.engine.checked_tokenizer import CheckedTokenizer
from pagoda.engine.long_text import is_far_too_long
from pagoda.errors import ContextLengthError, InvalidRequestError
from pagoda.request import RequestOptions
from pagoda.truncation import Truncation


class Words:
    """A tokenizer of words, which notes how much it was given."""

    def __init__(self) -> None:
        self.num_characters = 0

    def count(self, text: str) -> int:
        self.num_characters += len(text)
        return len(text.split())

    def encode(self, text: str, *args: object, check_count: Callable[[int], None]) -> list[int]:
        check_count(self.count(text))
        return [0] * len(text.split())

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        return "7 " * len(token_ids)

    def chat(
        self,
        messages: list[dict[str, str]],
        *args: object,
        check_text: Callable[[str], None],
        check_count: Callable[[int], None],
    ) -> list[int]:
        text = "".join(message["content"] for message in messages)
        check_text(text)
        return self.encode(text, check_count=check_count)


@pytest.mark.parametrize("seed", range(30))
def test_nothing_that_fits_is_far_too_long(seed: int) -> None:
    rng, words = Random(seed), Words()
    most = rng.randrange(1, 3000)
    sizes = [rng.choice([1, 2, 9, 60, 300]) for _ in range(rng.randrange(1, 3 * most))]
    text = " ".join("x" * size for size in sizes)
    if is_far_too_long(text, most, words.count):
        assert len(sizes) > most


def test_little_of_a_text_of_many_tokens_is_tokenised() -> None:
    words = Words()
    checked = CheckedTokenizer(words, vocab_size=10, max_model_len=1000)  # type: ignore[arg-type]
    text = "7 " * 50_000
    with pytest.raises(ContextLengthError, match=r"100000 characters.*at most 1000 tokens"):
        checked.prompt(text)
    with pytest.raises(ContextLengthError, match="messages"):
        checked.chat([{"role": "user", "content": text}])
    assert words.num_characters < len(text) / 4


def test_what_is_tokenised_for_itself_may_be_some_prompts_long() -> None:
    checked = CheckedTokenizer(Words(), vocab_size=10, max_model_len=1000)  # type: ignore[arg-type]
    token_ids = checked.encode("7 " * 8000)
    assert len(token_ids) == 8000
    assert checked.decode(token_ids) == "7 " * 8000
    for refused in (
        lambda: checked.encode("7 " * 8001),
        lambda: checked.encode("7 " * 50_000),
        lambda: checked.decode([*token_ids, 7]),
    ):
        with pytest.raises(InvalidRequestError, match="at most 8000 tokens, 8 times") as caught:
            refused()
        assert not isinstance(caught.value, ContextLengthError), "the window is another length"


def test_a_prompt_that_will_be_cut_may_be_so_long_as_well() -> None:
    checked = CheckedTokenizer(Words(), vocab_size=10, max_model_len=1000)  # type: ignore[arg-type]
    options = RequestOptions(truncation=Truncation(5))
    assert checked.prompt("7 " * 8000, options) == (0,) * 5
    for num_tokens in (8001, 50_000):
        with pytest.raises(InvalidRequestError, match="at most 8000"):
            checked.prompt("7 " * num_tokens, options)
