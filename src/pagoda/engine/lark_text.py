"""Texts in the notation of Lark that llguidance reads."""

from __future__ import annotations

import json


def lark_text(text: str) -> str:
    """The text in quotation marks."""
    # JSON leaves a delete sign as it is, which llguidance does not read.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")
