"""The interactive page "feel the bytes": one file that needs nothing else, from the tables.

Its modules are joined into one script, because a page that is opened from a disk may import none.
The policy inside allows that script and its style by their hashes, and nothing from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagoda.planning.page_data import page_data

_FOLDER = Path(__file__).parent / "page"
_MODULES = (
    "numbers.js", "layers.js", "pool.js", "memory.js", "speed.js", "plan.js", "ways.js",
    "choice.js", "draw.js", "cliff.js", "picker.js", "answer.js", "app.js",
)  # fmt: skip
"""Each after those that it imports."""
_IMPORT = re.compile(r"^import (\{[^}]*\}) from \"\./(\w+)\.js\";$", re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:const|function|class) ([\w$]+))", re.MULTILINE)


def plan_page(
    data: Mapping[str, Any] | None = None, opening: Mapping[str, Any] | None = None
) -> str:
    """The page as HTML. `opening` is what it shows first, as `page_opening` makes it."""
    script = page_script()
    style = (_FOLDER / "style.css").read_text("utf-8")
    parts = {
        "{{policy}}": policy(script, style),
        "{{style}}": style,
        "{{data}}": _embedded(page_data() if data is None else data),
        "{{opening}}": _embedded(opening),
        "{{script}}": script,
    }
    html = (_FOLDER / "index.html").read_text("utf-8")
    return re.sub("|".join(map(re.escape, parts)), lambda found: parts[found[0]], html)


def page_script() -> str:
    """All modules as one script, each in a scope of its own, handing on what it exports."""
    return "\n" + "\n".join(_scoped(_FOLDER / name) for name in _MODULES)


def _scoped(path: Path) -> str:
    source = path.read_text("utf-8")
    names = ", ".join(name for _, name in _EXPORT.findall(source))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = \2_js;", source))
    return f"const {path.stem}_js = (() => {{\n{body}\nreturn {{ {names} }};\n}})();\n"


def policy(script: str, style: str) -> str:
    """A content security policy for exactly this script and this style."""
    return "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            f"script-src {_source(script)}",
            f"style-src {_source(style)}",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
        )
    )


def _source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _embedded(values: object) -> str:
    """JSON that can stand in a script element: nothing in it closes the element."""
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")
