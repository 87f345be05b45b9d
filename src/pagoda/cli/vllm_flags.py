"""vLLM's flags that Pagoda does not have, and what is there in their place."""

from __future__ import annotations

from pagoda.engine.foreign_options import FOREIGN_OPTIONS, INSTEAD

SHORT_FORMS = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "-sc": "--speculative-config",
}
"""vLLM's, and what they stand for."""


def long_form(flag: str) -> str | None:
    """The name of the option that a flag of vLLM's stands for, if Pagoda has it not.

    A switch may be turned off by a flag of its own, --no-….
    """
    name = SHORT_FORMS.get(flag, flag).removeprefix("--")
    return next((each for each in (name, name.removeprefix("no-")) if each in INSTEAD), None)


def vllm_flags_table() -> str:
    """The same for people, in Markdown."""
    lines = ["| vLLM's flag | here |", "|---|---|"]
    for names, words in FOREIGN_OPTIONS:
        flags = ", ".join(f"`--{name}`" for name in names)
        lines.append(f"| {flags} | {words} |")
    return "\n".join(lines)
