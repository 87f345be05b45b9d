"""Answers that call tools, as models write them, and what is said in them."""

from __future__ import annotations

import json
from typing import Any

from pagoda.server.reading import ToolCall

LONG = "a." * 64
NAMES = frozenset({"weather", "clock", "files.read-2", LONG})
POINT = {"type": "object", "properties": {"x": {"type": "number"}}}
TYPED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "warm": {"type": "boolean"},
        "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "place": {"$ref": "#/$defs/point"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "share": {"type": ["number", "null"]},
        "level": {"enum": [1, 2]},
    },
    "$defs": {"point": POINT},
}
SCHEMAS: dict[str, dict[str, Any]] = {name: TYPED if name == "weather" else {} for name in NAMES}
ROME, OSLO = '{"city": "Rome"}', '{"city": "Oslo </tool_call> \\" }"}'
WEATHER_ROME, WEATHER_OSLO = ToolCall("weather", ROME), ToolCall("weather", OSLO)


def hermes(arguments: str, name: str = "weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def llama(arguments: str) -> str:
    return f'{{"name": "weather", "parameters": {arguments}}}'


def glm(*arguments: tuple[str, str], name: str = "weather", lines: str = "\n") -> str:
    """As GLM-4.5 writes a call; GLM-4.7 writes no lines."""
    pairs = (
        f"<arg_key>{key}</arg_key>{lines}<arg_value>{value}</arg_value>{lines}"
        for key, value in arguments
    )
    return f"<tool_call>{name}{lines}{''.join(pairs)}</tool_call>"


def qwen_coder(*arguments: tuple[str, str], name: str = "weather") -> str:
    """As Qwen3-Coder writes a call."""
    pairs = (f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments)
    return f"<tool_call>\n<function={name}>\n{''.join(pairs)}</function>\n</tool_call>"


MANY = (
    ("city", 'Rome "\\ é\n\n<b> </arg'),
    ("days", " 5 "),
    ("warm", "True"),
    ("unit", "null"),
    ("place", '{"x": 1.5}'),
    ("tags", '["a", "b"]'),
    ("share", "0.50"),
    ("level", "2"),
    ("other", "7"),
)
WEATHER_MANY = ToolCall(
    "weather",
    '{"city": "Rome \\"\\\\ é\\n\\n<b> </arg", "days": 5, "warm": true, "unit": null, '
    '"place": {"x": 1.5}, "tags": ["a", "b"], "share": 0.50, "level": 2, "other": "7"}',
)
ODD = (
    ("city", "5"),
    ("days", "many"),
    ("unit", "5"),
    ("share", "NaN"),
    ("warm", '"x"'),
    ("level", "[1"),
)
WEATHER_ODD = ToolCall(
    "weather",
    '{"city": "5", "days": "many", "unit": "5", "share": "NaN", "warm": "\\"x\\"", "level": "[1"}',
)
CITY = (("city", "Rome"),)

CUT_CALLS = (WEATHER_ROME, ToolCall("clock", '{"at": 1'))
CALLS = f'[{{"name": "weather", "parameters": {ROME}}}, {{"name": "clock", "parameters": {{"at": 1'
"""As a grammar makes them that forces calls; the second one is cut."""

READ: dict[str, tuple[str, str, str, tuple[ToolCall, ...]]] = {
    "no call": ("hermes", "It is <b>warm</b>.\n", "It is <b>warm</b>.\n", ()),
    "a call": ("hermes", hermes(ROME), "", (WEATHER_ROME,)),
    "two calls": ("hermes", f"{hermes(ROME)}\n{hermes(OSLO)}", "", (WEATHER_ROME, WEATHER_OSLO)),
    "text before": ("hermes", f"Let me see.\n\n{hermes(ROME)}", "Let me see.", (WEATHER_ROME,)),
    "text after": ("hermes", f"A {hermes(ROME)} B", "A  B", (WEATHER_ROME,)),
    "no closing tag": ("hermes", hermes(ROME).removesuffix("</tool_call>"), "", (WEATHER_ROME,)),
    "arguments as text": (
        "hermes",
        hermes(json.dumps(ROME)),
        "",
        (WEATHER_ROME,),
    ),
    "no arguments": ("hermes", hermes("{}", "clock"), "", (ToolCall("clock", "{}"),)),
    "half a call": ("hermes", hermes(ROME)[:30], hermes(ROME)[:30], ()),
    "no JSON": ("hermes", "<tool_call>x</tool_call>", "<tool_call>x</tool_call>", ()),
    "an unknown tool": ("hermes", hermes(ROME, "rm"), hermes(ROME, "rm"), ()),
    "an unknown tool with odd arguments": ("hermes", hermes("[1", "rm"), hermes("[1", "rm"), ()),
    "arguments as they were written": (
        "hermes",
        hermes('{ "n":1.50,\n"x":NaN,"e":"\\u00e9" }'),
        "",
        (ToolCall("weather", '{ "n":1.50,\n"x":NaN,"e":"\\u00e9" }'),),
    ),
    "arguments that break off": (
        "hermes",
        hermes(ROME).removesuffix('me"}}\n</tool_call>'),
        "",
        (ToolCall("weather", '{"city": "Ro'),),
    ),
    "arguments that break": (
        "hermes",
        hermes('{"city": ]'),
        "]}\n</tool_call>",
        (ToolCall("weather", '{"city": '),),
    ),
    "arguments before the name": (
        "hermes",
        f'<tool_call>{{"arguments": {ROME}, "name": "weather"}}</tool_call>',
        "",
        (WEATHER_ROME,),
    ),
    "text of arguments before the name": (
        "hermes",
        f'<tool_call>{{"parameters": {json.dumps(ROME)}, "name": "weather"}}</tool_call>',
        "",
        (WEATHER_ROME,),
    ),
    "more beside the arguments": (
        "hermes",
        f'<tool_call>{{"id": 7, "name": "weather", "arguments": {ROME}, "x": [{{}}], "y": null}}',
        "",
        (WEATHER_ROME,),
    ),
    "cut behind the arguments": (
        "hermes",
        f'<tool_call>{{"name": "weather", "arguments": {ROME}, "x": "',
        "",
        (WEATHER_ROME,),
    ),
    "a call without arguments": (
        "hermes",
        '<tool_call>{"name": "clock"}</tool_call>',
        "",
        (ToolCall("clock", "{}"),),
    ),
    "arguments of null": ("hermes", hermes("null", "clock"), "", (ToolCall("clock", "{}"),)),
    "arguments of a number": ("hermes", hermes("1"), hermes("1"), ()),
    "arguments twice": (
        "hermes",
        f'<tool_call>{{"name": "weather", "arguments": {ROME}, "arguments": {{}}}}</tool_call>',
        "",
        (WEATHER_ROME,),
    ),
    "half a character": (
        "hermes",
        hermes(r'"\ud800"'),
        hermes(r'"\ud800"'),
        (),
    ),
    "no JSON before a call": (
        "hermes",
        f"<tool_call>x</tool_call>{hermes(ROME)}",
        "<tool_call>x</tool_call>",
        (WEATHER_ROME,),
    ),
    "deep JSON": ("hermes", "<tool_call>" + "[" * 9999, "<tool_call>" + "[" * 9999, ()),
    "half a tag at the end": ("hermes", "a <tool_ca", "a <tool_ca", ()),
    "Mistral's": (
        "mistral",
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {ROME}}}, '
        f'{{"name": "weather", "arguments": {OSLO}}}]',
        "",
        (WEATHER_ROME, WEATHER_OSLO),
    ),
    "Mistral's newer": (
        "mistral",
        f"Well.[TOOL_CALLS]weather[ARGS]{ROME}[TOOL_CALLS]weather[ARGS]{OSLO}",
        "Well.",
        (WEATHER_ROME, WEATHER_OSLO),
    ),
    "Mistral's newer, with ids": (
        "mistral",
        f"[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{ROME}",
        "",
        (WEATHER_ROME,),
    ),
    "Mistral's newer, bare": ("mistral", f"[TOOL_CALLS] weather {ROME}", "", (WEATHER_ROME,)),
    "Mistral's list, cut": (
        "mistral",
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {ROME}}}, {{"na',
        "",
        (WEATHER_ROME,),
    ),
    "Mistral's list with something else": (
        "mistral",
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {ROME}}}, 5] there',
        " 5] there",
        (WEATHER_ROME,),
    ),
    "Mistral's empty list": ("mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]", ()),
    "a name with a dot": (
        "mistral",
        "[TOOL_CALLS]files.read-2[ARGS]{}",
        "",
        (ToolCall("files.read-2", "{}"),),
    ),
    "a long name": (
        "mistral",
        f"[TOOL_CALLS]{LONG}[CALL_ID]a1b2c3d4e[ARGS]{{}}",
        "",
        (ToolCall(LONG, "{}"),),
    ),
    "a name with a dot, Llama's": (
        "llama",
        '{"name": "files.read-2", "parameters": {}}',
        "",
        (ToolCall("files.read-2", "{}"),),
    ),
    "Mistral's newer, unknown": ("mistral", "[TOOL_CALLS]rm[ARGS]{}", "[TOOL_CALLS]rm[ARGS]{}", ()),
    "Mistral's newer, cut": ("mistral", "[TOOL_CALLS]weather[AR", "[TOOL_CALLS]weather[AR", ()),
    "Mistral's odd name": ("mistral", "[TOOL_CALLS]wea ther{}", "[TOOL_CALLS]wea ther{}", ()),
    "Mistral's text": ("mistral", "See [1] and [TOOL", "See [1] and [TOOL", ()),
    "Llama's": ("llama", llama(ROME), "", (WEATHER_ROME,)),
    "Llama's with a tag": ("llama", f"<|python_tag|>{llama(ROME)}", "", (WEATHER_ROME,)),
    "Llama's two": ("llama", f"{llama(ROME)}; {llama(OSLO)}", "", (WEATHER_ROME, WEATHER_OSLO)),
    "Llama's text": ("llama", f"Sure: {llama(ROME)}", f"Sure: {llama(ROME)}", ()),
    "Llama's list": ("llama", f"[{llama(ROME)}]", f"[{llama(ROME)}]", ()),
    "Llama's call and text": ("llama", f"{llama(ROME)} there", "there", (WEATHER_ROME,)),
    "Llama's own JSON": (
        "llama",
        '{"name": "Bob", "parameters": 1}',
        '{"name": "Bob", "parameters": 1}',
        (),
    ),
    "GLM's": ("glm45", glm(*CITY), "", (WEATHER_ROME,)),
    "GLM's of all kinds": ("glm45", glm(*MANY), "", (WEATHER_MANY,)),
    "GLM's of no such kind": ("glm45", glm(*ODD), "", (WEATHER_ODD,)),
    "GLM's in one line": ("glm45", glm(*MANY, lines=""), "", (WEATHER_MANY,)),
    "GLM's two": (
        "glm45",
        f"Both.\n{glm(*CITY)}\n{glm(name='clock')} Now.",
        "Both.\n\n Now.",
        (WEATHER_ROME, ToolCall("clock", "{}")),
    ),
    "GLM's spaces": (
        "glm45",
        glm(("city", "\n a ")),
        "",
        (ToolCall("weather", '{"city": "\\n a "}'),),
    ),
    "GLM's unknown tool": ("glm45", glm(*CITY, name="rm"), glm(*CITY, name="rm"), ()),
    "GLM's, cut": (
        "glm45",
        glm(*CITY)[: -len("me</arg_value>\n</tool_call>")],
        "",
        (ToolCall("weather", '{"city": "Ro'),),
    ),
    "GLM's, cut in a mark": (
        "glm45",
        glm(("days", "5")).removesuffix("ool_call>"),
        "",
        (ToolCall("weather", '{"days": 5'),),
    ),
    "GLM's half a name": ("glm45", "<tool_call>weat", "<tool_call>weat", ()),
    "GLM's with something else": (
        "glm45",
        f"{glm(*CITY).removesuffix('</tool_call>')} there",
        "\n there",
        (ToolCall("weather", '{"city": "Rome"'),),
    ),
    "GLM's text": ("glm45", "a <tool_call> of two", "a <tool_call> of two", ()),
    "Qwen3-Coder's": ("qwen3_coder", qwen_coder(*CITY), "", (WEATHER_ROME,)),
    "Qwen3-Coder's of all kinds": ("qwen3_coder", qwen_coder(*MANY), "", (WEATHER_MANY,)),
    "Qwen3-Coder's of no such kind": ("qwen3_coder", qwen_coder(*ODD), "", (WEATHER_ODD,)),
    "Qwen3-Coder's two": (
        "qwen3_coder",
        f"Both.\n{qwen_coder(*CITY)}\n{qwen_coder(name='clock')} Now.",
        "Both.\n\n Now.",
        (WEATHER_ROME, ToolCall("clock", "{}")),
    ),
    "Qwen3-Coder's lines": (
        "qwen3_coder",
        qwen_coder(("city", "\n a\n"), ("unit", ""), ("other", "")),
        "",
        (ToolCall("weather", '{"city": "\\n a\\n", "unit": "", "other": ""}'),),
    ),
    "Qwen3-Coder's without lines": (
        "qwen3_coder",
        "<tool_call><function=weather><parameter=city>Rome</parameter></function></tool_call>",
        "",
        (WEATHER_ROME,),
    ),
    "Qwen3-Coder's without a closing tag": (
        "qwen3_coder",
        qwen_coder(*CITY).removesuffix("\n</tool_call>"),
        "",
        (WEATHER_ROME,),
    ),
    "Qwen3-Coder's, cut": (
        "qwen3_coder",
        qwen_coder(*CITY).partition("ter>\n</func")[0],
        "",
        (ToolCall("weather", '{"city": "Rome'),),
    ),
    "Qwen3-Coder's unknown tool": (
        "qwen3_coder",
        qwen_coder(*CITY, name="rm"),
        qwen_coder(*CITY, name="rm"),
        (),
    ),
    "Qwen3-Coder's text": ("qwen3_coder", "<tool_call>x", "<tool_call>x", ()),
}
"""The form of an answer, its text, and the text and the calls in it."""
