"""Answers that call tools, as models write them, and what is said in them."""

from __future__ import annotations

import json

from pagoda.server.reading import ToolCall

LONG = "a." * 64
NAMES = frozenset({"weather", "clock", "files.read-2", LONG})
ROME, OSLO = '{"city": "Rome"}', '{"city": "Oslo </tool_call> \\" }"}'
WEATHER_ROME, WEATHER_OSLO = ToolCall("weather", ROME), ToolCall("weather", OSLO)


def hermes(arguments: str, name: str = "weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def llama(arguments: str) -> str:
    return f'{{"name": "weather", "parameters": {arguments}}}'


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
}
"""The form of an answer, its text, and the text and the calls in it."""
