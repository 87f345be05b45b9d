"""How conversations with tools are told by chat templates of all kinds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checkpoints import CASES, write_checkpoint
from pagoda.errors import ModelError
from pagoda.models.locate import locate
from pagoda.models.single_calls import with_single_calls
from pagoda.models.tokenizer import Tokenizer
from pagoda.models.tool_prompt import format_in, in_plain_messages

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
CHAT = [{"role": "system", "content": "Be brief."}, *HELLO]
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
TOOLS = [TOOL]


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{% if tools %}[TOOL_CALLS]", "mistral"),
        ("{% if tools %}<tool_call>", "hermes"),
        ("{% if tools %}<tool_call>{function-name}\n<arg_key>", "glm45"),
        ("{% if tools %}<tool_call>\n<function=example>", "qwen3_coder"),
        ("{% if tools %}<function=example>", None),
        ('{% if tools %}{"name": function name, "parameters": dictionary of', "llama"),
        ("{% if tools %}<|python_tag|>", "llama"),
        ("{% if tools %}something else", None),
        ("{{ messages }}", None),
    ],
)
def test_the_form_is_told_from_the_template(template: str, form: str | None) -> None:
    assert format_in(template) == form


def test_a_template_without_tools_is_told_in_words() -> None:
    function = {"name": "clock", "arguments": {"zone": "é"}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "assistant", "content": "Wait.", "tool_calls": [{"function": function}]},
        {"role": "tool", "content": "noon"},
    ]
    system, assistant, user = in_plain_messages(messages, TOOLS)
    assert system["content"].startswith("Be kind.\n\n# Tools")
    assert json.dumps(TOOLS[0]) in system["content"]
    call = {"name": "clock", "arguments": {"zone": "é"}}
    said = f"Wait.\n<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
    assert assistant == {"role": "assistant", "content": said}
    assert user == {"role": "user", "content": "<tool_response>\nnoon\n</tool_response>"}
    assert in_plain_messages(HELLO, []) == HELLO
    assert in_plain_messages(HELLO, TOOLS)[0]["role"] == "system"
    assert "tool_calls" in messages[1]


def called(*ids: str) -> dict[str, Any]:
    function = {"name": "clock", "arguments": {}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": i, "function": function} for i in ids],
    }


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": f"noon {call_id}"}


@pytest.mark.parametrize(
    "turns",
    [
        [result("a")],
        [result("a"), result("b")],
        [result("a"), *HELLO],
        [result("a"), *HELLO, result("b"), *HELLO],
        [*HELLO, result("a")],
    ],
)
def test_results_are_one_message_with_what_the_user_says_beside_them(
    turns: list[dict[str, Any]],
) -> None:
    plain = in_plain_messages([*HELLO, called("a", "b"), *turns, called("c"), *HELLO, *HELLO], [])
    assert [each["role"] for each in plain] == ["user", "assistant"] * 2 + ["user", "user"]
    said = [each["content"] for each in turns if each["role"] == "user"]
    results = [
        f"<tool_response>\n{each['content']}\n</tool_response>"
        for each in turns
        if each["role"] == "tool"
    ]
    assert all(text in plain[2]["content"].split("\n") for text in said)
    assert all(text in plain[2]["content"] for text in results)


def test_tools_are_told_by_the_user_where_there_are_no_system_messages() -> None:
    first = {"role": "user", "content": "hi"}
    [user, assistant, last] = in_plain_messages(
        [first, called("a"), first], TOOLS, takes_system=False
    )
    assert user["content"].startswith("# Tools")
    assert user["content"].endswith("</tool_call>\n\nhi")
    assert (assistant["role"], last) == ("assistant", first)
    [told, _] = in_plain_messages([called("a")], TOOLS, takes_system=False)
    assert told["role"] == "user"


def test_calls_are_told_one_by_one_with_their_results() -> None:
    both = {**called("a", "b"), "content": "Wait."}
    told = with_single_calls([*HELLO, both, result("b"), result("a"), result("x"), *HELLO])
    assert told == [
        *HELLO,
        {**called("a"), "content": "Wait."},
        result("a"),
        called("b"),
        result("b"),
        result("x"),
        *HELLO,
    ]
    unnamed = [{"role": "tool", "content": text} for text in ("1", "2")]
    told = with_single_calls([called("a", "b"), *unnamed])
    assert told == [called("a"), unnamed[0], called("b"), unnamed[1]]
    alone = [called("a"), result("a"), called("b")]
    assert with_single_calls(alone) == alone


ALTERNATING = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
"""As Gemma 2's: a system message is refused too."""
ONE_CALL = (
    '{% if tools %}"parameters": dictionary{% endif %}'
    "{% for m in messages %}{% if m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('single tool-calls') }}{% endif %}"
    "[call]{{ m.tool_calls[0].id }}{% else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)
"""As Llama 3.1's."""
CLOCK = {"name": "clock", "arguments": {}}
TWO_CALLS = [
    {"role": "user", "content": "When?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": i, "function": CLOCK} for i in "ab"],
    },
    {"role": "tool", "tool_call_id": "a", "content": "noon"},
    {"role": "tool", "tool_call_id": "b", "content": "night"},
    {"role": "user", "content": "Which?"},
]


def with_template(directory, template: str, name: str = "chat_template.jinja") -> Tokenizer:
    write_checkpoint(directory, CASES["llama-gqa"])
    (directory / "chat_template.jinja").unlink()
    (directory / name).write_text(template)
    return Tokenizer(locate(str(directory)))


def test_two_results_go_on_where_roles_must_alternate(tmp_path):
    tokenizer = with_template(tmp_path, ALTERNATING)
    text = tokenizer.decode(tokenizer.chat(TWO_CALLS, tools=[TOOL]))
    assert text.startswith("[user]# Tools")
    assert text.count("[user]") == 2
    assert text.count("<tool_response>") == 2
    assert text.endswith("</tool_response>\nWhich?")


def test_two_calls_go_on_where_a_message_may_have_one(tmp_path):
    tokenizer = with_template(tmp_path, ONE_CALL)
    text = tokenizer.decode(tokenizer.chat(TWO_CALLS, tools=[TOOL]))
    told = "[user]When?[call]a[tool]noon[call]b[tool]night[user]Which?"
    assert text == f'"parameters": dictionary{told}'


def test_several_calls_are_told_together_where_the_template_takes_them(tmp_path):
    template = (
        "{{ tools }}<tool_call>{% for m in messages %}[{{ m.tool_calls | length }}]{% endfor %}"
    )
    tokenizer = with_template(tmp_path, template)
    assert tokenizer.decode(tokenizer.chat(TWO_CALLS, tools=[TOOL])).endswith("[0][2][0][0][0]")


def test_a_processors_template_is_taken_where_the_tokenizer_has_none(tmp_path):
    said = json.dumps({"chat_template": "<{{ messages[0].content }}>"})
    tokenizer = with_template(tmp_path, said, "chat_template.json")
    assert tokenizer.decode(tokenizer.chat(CHAT)) == "<Be brief.>"
    (tmp_path / "chat_template.jinja").write_text("[{{ messages[0].content }}]")
    tokenizer = Tokenizer(locate(str(tmp_path)))
    assert tokenizer.decode(tokenizer.chat(CHAT)) == "[Be brief.]"
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "chat_template.json").write_text('{"chat_template": ["x"]}')
    with pytest.raises(ModelError, match=r"chat_template.json chat_template=\['x'\]: must be text"):
        Tokenizer(locate(str(tmp_path)))
