"""What a chat template reads beside the messages."""

from __future__ import annotations

import re

from jinja2 import Environment, TemplateError, meta

_GIVEN = frozenset(
    {
        "messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
        "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token",
        "additional_special_tokens", "strftime_now", "raise_exception",
        "conversation", "chat_template", "tokenize", "padding", "truncation", "max_length",
        "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
        "tool_choice", "kwargs", "self",
    }
)  # fmt: skip
"""Names that are given to every template, or that whoever renders it keeps for himself."""
_GENERATION_TAG = re.compile(r"{%-?\s*(end)?generation\s*-?%}")
"""Marks what the assistant said, for training; Jinja alone does not know it."""


def names_read_by(template: str) -> frozenset[str]:
    """The variables that a client may set; none where the template cannot be parsed."""
    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(
            _GENERATION_TAG.sub("", template)
        )
    except (TemplateError, RecursionError):
        return frozenset()
    return frozenset(meta.find_undeclared_variables(tree)) - _GIVEN
