"""Whether a number is found again that stands somewhere in a long prompt.

    opening | text … | The pass key is 71432. Remember it. | … text | What is the pass key? …
            <- depth ->

After "Landmark Attention" (Mohtashami and Jaggi, 2305.16300), with the user's text in place of
one sentence over and over. Prompts of one length are asked the deepest first, so that each finds
the text before its key in the cache, as a hit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pagoda.engine.llm import LLM
from pagoda.lab.method import Method
from pagoda.lab.sizes import Sizes
from pagoda.lab.subject import Subject
from pagoda.lab.text import TokenText
from pagoda.models.tokenizer import Tokenizer
from pagoda.request import SamplingParams

USABLE = 0.9
"""The share of keys that the full cache must find at a length for the length to say anything."""

_NEEDLE = "\n\nThe pass key is {key}. Remember it. {key} is the pass key.\n\n"
_QUESTION = "\n\nWhat is the pass key? The pass key is"
_KEYS = range(10_000, 100_000)


@dataclass(frozen=True, slots=True)
class PasskeyScore:
    """Of all prompts of one length with the key at one depth."""

    length: int
    """Tokens of prompt and answer together."""
    depth: float
    """The share of the text that stands before the key."""
    num_found: int
    num_trials: int

    def as_json(self) -> dict[str, float]:
        """As it is."""
        return {
            "length": self.length,
            "depth": self.depth,
            "found": self.num_found,
            "trials": self.num_trials,
        }


def found_share(scores: Sequence[PasskeyScore]) -> float:
    """The share of all keys that were found, of at least one."""
    return sum(each.num_found for each in scores) / sum(each.num_trials for each in scores)


@dataclass(frozen=True, slots=True)
class PasskeyTest:
    """The same prompts for every method."""

    text: TokenText
    tokenizer: Tokenizer
    sizes: Sizes

    def look(self, subject: Subject, method: Method, length: int) -> tuple[PasskeyScore, ...]:
        """How many keys are found in prompts of that length, at each depth."""
        engine, _ = subject.open(method, longest=length, num_tokens=2 * length)
        llm = LLM.from_engine(engine)
        params = SamplingParams(temperature=0, max_tokens=self._most_new)

        def finds(depth: float, trial: int) -> bool:
            key = random.Random(f"{length}/{depth}/{trial}").choice(_KEYS)
            (output,) = llm.generate(self.prompt(length, depth, key), params, use_tqdm=False)
            return output.outputs[0].text.strip().startswith(str(key))

        trials = range(self.sizes.passkey_trials)
        return tuple(
            PasskeyScore(length, depth, sum(finds(depth, each) for each in trials), len(trials))
            for depth in self._depths()
        )

    def _depths(self) -> Iterator[float]:
        """The middles of equal parts, the deepest first."""
        count = self.sizes.passkey_depths
        return ((part + 0.5) / count for part in reversed(range(count)))

    def prompt(self, length: int, depth: float, key: int) -> list[int]:
        """Tokens that leave room for an answer, the key behind a share of `depth` of the text."""
        needle, question = self._own(_NEEDLE.format(key=key)), self._own(_QUESTION)
        taken = len(self.text.opening) + len(needle) + len(question) + self._most_new
        room = max(0, length - taken)
        hay, place = self.text.token_ids[:room], round(depth * room)
        return [*self.text.opening, *hay[:place], *needle, *hay[place:], *question]

    @property
    def _most_new(self) -> int:
        """Tokens of an answer, a space or a line before it included."""
        return len(self._own(f" {_KEYS[-1]}")) + 2

    def _own(self, words: str) -> list[int]:
        """Tokens without the opening."""
        return self.tokenizer.encode(words, add_special_tokens=False)
