"""The forms in which models think before they answer, as their chat templates taught them.

    <think>             <think> thought </think> answer, and the same with other marks
    Granite             Here is my thought process: thought Here is my response: answer
    harmony (gpt-oss)   <|channel|>analysis<|message|> thought <|end|>
                        <|start|>assistant<|channel|>final<|message|> answer

A form is a row of `THOUGHT_FORMS`, and of `_FOUND` if it is to be found in chat templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

IS_THOUGHT = "analysis"
"""Stands in the head of a message that is a thought."""


@dataclass(frozen=True, slots=True)
class ThoughtForm:
    """What stands around a thought."""

    opening: tuple[str, ...]
    """Any of these begins it."""
    closing: tuple[str, ...]
    """Any of these ends it."""
    is_open: bool = False
    """An answer begins within the thought, whether or not it says so or the prompt does."""
    body: str = ""
    """Where thoughts and answers are messages with a head, what stands behind the head."""

    @property
    def marks(self) -> frozenset[str]:
        """All texts that are neither thought nor answer."""
        return frozenset((*self.opening, *self.closing, self.body)) - {""}

    @property
    def telling(self) -> str:
        """What templates of this form have, and no others."""
        return f"{self.opening[-1]}{IS_THOUGHT}" if self.body else self.closing[0]

    def goes_on_in(self, begun: str) -> bool:
        """An answer of which a prompt has `begun` this much goes on within the thought."""
        if self.body:
            head, found, said = begun.rpartition(self.body)
            is_thought = IS_THOUGHT in head.rpartition(self.opening[0])[2]
            return bool(found) and is_thought and not any(mark in said for mark in self.closing)
        opened = max(begun.rfind(mark) for mark in self.opening)
        closed = max(begun.rfind(mark) for mark in self.closing)
        return self.is_open if opened == closed else opened > closed


_THINK = ThoughtForm(("<think>",), ("</think>",))
_THINK_AT_ONCE = ThoughtForm(("<think>",), ("</think>",), is_open=True)
_SEED = ThoughtForm(("<seed:think>",), ("</seed:think>",))
_MISTRAL = ThoughtForm(("[THINK]",), ("[/THINK]",))
_GRANITE = ThoughtForm(
    ("Here is my thought process:", "Here's my thought process:"),
    ("Here is my response:", "Here's my response:"),
)
_HARMONY = ThoughtForm(
    ("<|start|>", "<|channel|>"), ("<|end|>", "<|call|>", "<|return|>"), body="<|message|>"
)

THOUGHT_FORMS: Mapping[str, ThoughtForm] = MappingProxyType(
    {
        "deepseek_r1": _THINK_AT_ONCE,
        "deepseek_v3": _THINK,
        "glm45": _THINK,
        "glm47": _THINK,
        "granite": _GRANITE,
        "holo2": _THINK,
        "kimi_k2": _THINK,
        "minimax_m2": _THINK_AT_ONCE,
        "mistral": _MISTRAL,
        "nemotron_v3": _THINK,
        "olmo3": _THINK_AT_ONCE,
        "openai_gptoss": _HARMONY,
        "qwen3": _THINK,
        "seed_oss": _SEED,
        "step3": _THINK_AT_ONCE,
        "step3p5": _THINK_AT_ONCE,
    }
)
"""By vLLM's names of `--reasoning-parser`."""

_FOUND = (_HARMONY, _MISTRAL, _SEED, _GRANITE, _THINK)
"""Of these the first counts that a template has the marks of. Whether an answer begins within the
thought is read from its prompt."""


def form_of(template: str) -> ThoughtForm | None:
    """The form of a model with this chat template; None where that has no marks."""
    return next((form for form in _FOUND if form.telling in template), None)
