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
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pagoda.cache.own_format import is_own
from pagoda.calculator.page_data import WEIGHT_SCHEMES, Additions, page_data
from pagoda.planning.request import ModelFacts, PlanRequest
from pagoda.planning.result import Plan
from pagoda.planning.subject import Subject, read_subject
from pagoda.planning.tables import find_model
from pagoda.sizing.cache_formats import AUTO

_FOLDER = Path(__file__).parent / "page_files"
_MODULES = (
    "numbers.js", "retention.js", "layers.js", "pool.js", "memory.js", "speed.js", "subject.js",
    "plan.js", "ways.js", "choice.js", "draw.js", "kept.js", "cliff.js", "controls.js",
    "picker.js", "answer.js", "app.js",
)  # fmt: skip
"""Each after those that it imports."""
_IMPORT = re.compile(r"^import (\{[^}]*\}) from \"\./(\w+)\.js\";$", re.MULTILINE)
_INDENT = re.compile(r"^ +", re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:const|function|class) ([\w$]+))", re.MULTILINE)


_CHOSEN = (
    "engine", "gpu", "tensor_parallel_size", "quantization", "kv_cache_dtype", "kv_retention",
    "max_model_len", "gpu_memory_utilization", "context", "users", "shared_prefix", "price",
)  # fmt: skip
"""Fields of a request that the page can vary."""


@dataclass(frozen=True, slots=True)
class PlannedChoice:
    """A command's choice, with its plan; `plan` None: it does not fit, for the `refusal`."""

    facts: ModelFacts
    request: PlanRequest
    draft: ModelFacts | None
    plan: Plan | None
    refusal: str = ""
    typed: str | None = None
    """What the model was called in the command; None: its own name."""


def plan_page(planned: PlannedChoice | None = None) -> str:
    """The page as HTML, opened with what was planned.

    Raises `RefusedError` for a model that cannot be read.
    """
    if planned is None:
        return _page(page_data(), None)
    return _page(page_data(_additions(planned)), _opening(planned))


def _additions(planned: PlannedChoice) -> Additions:
    """What the choice names that the tables lack."""
    facts, request = planned.facts, planned.request
    known = find_model(facts.name)
    is_known = known is not None and ModelFacts.of_row(*known) == facts
    return Additions(
        models=() if is_known else (facts,),
        engines=(request.engine,),
        devices={} if request.memory is None else {_device_name(request.memory): request.memory},
    )


def _device_name(memory: int) -> str:
    gib = f"{memory / 2**30:,.4f}".rstrip("0").rstrip(".")
    return f"{gib} GiB"


def _opening(planned: PlannedChoice) -> dict[str, Any]:
    """The choice as the page keeps it, the plan, and the flags that the page cannot vary."""
    facts, request, plan = planned.facts, planned.request, planned.plan
    subject = read_subject(facts, request, planned.draft)
    choice = {name: getattr(request, name) for name in _CHOSEN}
    if request.memory is not None:
        choice["gpu"] = _device_name(request.memory)
    elif subject.device is not None:
        choice["gpu"] = subject.device.name
    if request.quantization not in (None, *WEIGHT_SCHEMES):
        choice["quantization"] = None
    if is_own(request.kv_cache_dtype):
        choice["kv_cache_dtype"] = AUTO
    if request.context is not None:
        choice["max_model_len"] = subject.max_model_len
    return {
        "choice": {"model": facts.name, **choice},
        "typed": planned.typed or facts.name,
        "context": subject.context,
        "flags": _other_flags(planned),
        "plan": None if plan is None or plan.high is None else plan.as_json() | _asked(subject),
        "refusal": planned.refusal,
    }


def _asked(subject: Subject) -> dict[str, Any]:
    """What the page draws beside the plan's own figures: bytes of one request, and of all."""
    pool, request = subject.pool, subject.request
    own = pool.num_blocks(subject.context)
    shared = pool.shared_blocks(request.shared_prefix)
    wanted = shared + (own - shared) * (request.users or 1) + pool.reserved_blocks
    return {"context_bytes": own * pool.block_bytes, "wanted_bytes": wanted * pool.block_bytes}


def _other_flags(planned: PlannedChoice) -> list[str]:
    request, usual = planned.request, PlanRequest()
    others = [
        field.name
        for field in fields(request)
        if field.name not in (*_CHOSEN, "memory")
        and getattr(request, field.name) != getattr(usual, field.name)
    ]
    if request.quantization not in (None, *WEIGHT_SCHEMES):
        others.append("quantization")
    if is_own(request.kv_cache_dtype):
        others.append("kv_cache_dtype")
    flags = [flag for name in others for flag in _flags(name, getattr(request, name))]
    return flags if planned.draft is None else [*flags, f"--speculative-model {planned.draft.name}"]


def _flags(name: str, value: object) -> list[str]:
    """As they are given: of several values one flag each."""
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return [flag]
    return [f"{flag} {each}" for each in (value if isinstance(value, (tuple, list)) else [value])]


def _page(data: Mapping[str, Any], opening: Mapping[str, Any] | None) -> str:
    script = page_script()
    style = (_FOLDER / "style.css").read_text("utf-8")
    parts = {
        "{{policy}}": policy(script, style),
        "{{style}}": style,
        "{{data}}": _embedded(data),
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
    body = _INDENT.sub("", body)  # which is one byte of a hundred
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
