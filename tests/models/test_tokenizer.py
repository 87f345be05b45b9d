"""Text to tokens, chats to prompts, for directories and GGUF files alike."""

from __future__ import annotations

import json
import re

import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import (
    CASES,
    SPECIAL_TOKENS,
    build_model,
    byte_tokenizer,
    write_checkpoint,
    write_tokenizer,
)
from gguf_files import MERGED, write_gguf
from pagoda.engine.async_tokenizer import AsyncTokenizer
from pagoda.engine.vocabulary import Vocabulary
from pagoda.errors import InvalidRequestError, ModelError
from pagoda.models.chat_options import ChatOptions
from pagoda.models.load import load_spec
from pagoda.models.locate import locate
from pagoda.models.template_names import names_read_by
from pagoda.models.tokenizer import Tokenizer

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Naïve? 🙂"},
]


def refused(match: str):
    return pytest.raises(InvalidRequestError, match=re.escape(match))


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, str]:
    """A checkpoint of each kind, with the same model."""
    root = tmp_path_factory.mktemp("models")
    case = CASES["llama-gqa"]
    return {
        "directory": str(write_checkpoint(root / "tiny", case)),
        "gguf": str(write_gguf(root / "tiny.gguf", build_model(case))),
    }


@pytest.fixture(scope="module", params=["directory", "gguf"])
def tokenizer(request, places) -> Tokenizer:
    return Tokenizer(locate(places[request.param]))


@given(text=st.text())
def test_text_comes_back_from_its_tokens(tokenizer, text):
    token_ids = tokenizer.encode(text)
    assert tokenizer.decode(token_ids) == text
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in token_ids)


@given(text=st.text(), adds=st.booleans())
def test_batches_which_free_the_lock_change_nothing(tokenizer, text, adds):
    """`encode` and `decode` of the library hold it for as long as they take."""
    expected = tokenizer.backend.encode(text, add_special_tokens=adds).ids
    assert tokenizer.encode(text, adds) == expected
    for skips in (True, False):
        assert tokenizer.decode(expected, skips) == tokenizer.backend.decode(expected, skips)


def test_tokens_are_bytes(tokenizer):
    assert tokenizer.encode("a€") == [97, 0xE2, 0x82, 0xAC]
    assert tokenizer.decode([0xE2, 0x82]) == "\N{REPLACEMENT CHARACTER}"
    assert tokenizer.backend.get_vocab_size() == tokenizer.vocab_size


def test_special_tokens_are_skipped_unless_wanted(tokenizer):
    token_ids = tokenizer.encode("a<|im_end|>b")
    assert token_ids == [97, 256 + SPECIAL_TOKENS.index("<|im_end|>"), 98]
    assert tokenizer.decode(token_ids) == "ab"
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == "a<|im_end|>b"


def test_a_chat_becomes_the_prompt_of_the_template(tokenizer):
    start = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nNaïve? 🙂<|im_end|>\n"
    for add, end in ((True, "<|im_start|>assistant\n"), (False, "")):
        token_ids = tokenizer.chat(CHAT, options=ChatOptions(add_generation_prompt=add))
        assert tokenizer.decode(token_ids, skip_special_tokens=False) == start + end
        assert token_ids == tokenizer.encode(start + end)


def test_a_prompt_may_end_within_the_last_message(tokenizer):
    begun = ChatOptions(add_generation_prompt=False, continue_final_message=True)
    asked = [{"role": "user", "content": "Name one."}]
    opened = tokenizer.chat(asked)
    for said in ("The best is (", "Naïve 🙂", "a\nb"):
        token_ids = tokenizer.chat([*asked, {"role": "assistant", "content": said}], (), begun)
        assert token_ids == opened + tokenizer.encode(said, add_special_tokens=False)


def test_options_of_a_chat_that_contradict_each_other_are_refused():
    with pytest.raises(InvalidRequestError, match="add_generation_prompt"):
        ChatOptions(continue_final_message=True)


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        ([], "messages=[]: must be a list of messages, not empty"),
        (["hello"], "messages=['hello']: must be a list of messages"),
        ([{"role": "alien", "content": "x"}], "refuses them: unknown role alien"),
        ([{"role": "user"}], "refuses them: "),
        ([{"role": "user", "content": ["x"]}], "refuses them: "),
        ([{"content": "x"}], "refuses them: "),
        (
            [{"role": "assistant", "content": "x", "tool_calls": [{"name": "f"}]}],
            "refuses them: each of tool_calls needs a function with name and arguments",
        ),
        ([{"role": "assistant", "tool_calls": "abc"}], "refuses them: each of tool_calls needs"),
        ([{"role": "user", "content": "\ud800"}], "must be valid Unicode text"),
    ],
)
def test_messages_that_the_template_refuses_are_the_callers_to_mend(tokenizer, messages, match):
    with refused(match) as caught:
        tokenizer.chat(messages)
    assert caught.value.field == "messages"


def test_text_that_is_no_unicode_is_refused(tokenizer):
    with refused("prompt='a\\ud800': must be valid Unicode text"):
        tokenizer.encode("a\ud800")


TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}


def test_a_template_without_a_place_for_tools_is_told_in_the_system_message(tokenizer):
    assert tokenizer.tool_format == "hermes"
    text = tokenizer.decode(tokenizer.chat(CHAT, tools=[TOOL]), skip_special_tokens=False)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>" in text
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_with_a_place_for_tools_describes_them_itself(tmp_path):
    write_tokenizer(write_checkpoint(tmp_path, CASES["llama-gqa"]))
    template = "[AVAILABLE_TOOLS]{{ tools | tojson }}[TOOL_CALLS]{{ messages[0]['content'] }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    tokenizer = Tokenizer(locate(str(tmp_path)))
    assert tokenizer.tool_format == "mistral"
    text = tokenizer.decode(tokenizer.chat(CHAT, tools=[TOOL]))
    assert text == f"[AVAILABLE_TOOLS]{json.dumps([TOOL])}[TOOL_CALLS]Be brief."


def test_a_model_without_a_template_has_no_chat(tmp_path):
    write_checkpoint(tmp_path, CASES["llama-gqa"])
    (tmp_path / "chat_template.jinja").unlink()
    with refused("the model has no chat template"):
        Tokenizer(locate(str(tmp_path))).chat(CHAT)
    path = write_gguf(
        tmp_path / "tiny.gguf", build_model(CASES["qwen2"]), without=("tokenizer.chat_template",)
    )
    with refused("the model has no chat template"):
        Tokenizer(locate(str(path))).chat(CHAT)


def test_a_bos_token_is_added_to_a_text_and_left_to_the_template_in_a_chat(tmp_path):
    path = write_gguf(
        tmp_path / "tiny.gguf",
        build_model(CASES["llama-gqa"]),
        metadata={"tokenizer.ggml.add_bos_token": True},
    )
    tokenizer = Tokenizer(locate(str(path)))
    assert tokenizer.encode("a") == [256, 97]
    assert tokenizer.chat(CHAT)[0] == 256 + SPECIAL_TOKENS.index("<|im_start|>")
    assert tokenizer.decode([256, 97]) == "a"


def test_the_directory_and_the_file_agree_on_more_than_the_merge(places):
    directory, file = (Tokenizer(locate(place)) for place in places.values())
    assert directory.eos_token_ids == {257}
    assert file.eos_token_ids == {257, 259}  # the end of a turn, by its text
    text = "No merges in this: 123 żółć <|im_start|>\n"
    assert directory.encode(text) == file.encode(text)
    assert file.encode(MERGED) == [260]
    assert file.vocab_size == 288


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("generation_config.json", {"eos_token_id": [258, 259]}, {257, 258, 259}),
        ("generation_config.json", {"eos_token_id": 259}, {257, 259}),
        ("generation_config.json", {}, {257}),
        ("config.json", {"eos_token_id": [258]}, {257, 258}),
    ],
)
def test_an_answer_ends_at_any_of_the_models_eos_tokens(name, values, expected, tmp_path):
    write_tokenizer(tmp_path)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / name).write_text(json.dumps({**config, **values}))
    assert Tokenizer(locate(str(tmp_path))).eos_token_ids == expected


@pytest.mark.parametrize(
    "named", ["LlamaTokenizerFast", "PreTrainedTokenizerFast", "Unknown", None]
)
def test_a_named_tokenizer_is_found_without_the_familys_class_of_configs(
    named, tmp_path, monkeypatch
):
    """That class brings PyTorch's compiler, two seconds of a start."""
    asked: list[str] = []
    whole = transformers.AutoConfig.for_model
    monkeypatch.setattr(
        transformers.AutoConfig, "for_model", lambda name: (asked.append(name), whole(name))[1]
    )
    write_checkpoint(tmp_path, CASES["qwen3"])
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": named}))
    found = Tokenizer(locate(str(tmp_path)))._loaded.template()
    assert asked == ([] if named else ["qwen3"])
    own = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(found) is type(own)
    assert found.encode("abc") == own.encode("abc")


@pytest.mark.parametrize("value", ["</s>", -1, True, 1.0, [257, -1], [[257]]])
def test_an_eos_token_that_is_no_id_is_refused(value, tmp_path):
    write_checkpoint(tmp_path, CASES["llama-gqa"])
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    match = f"generation_config.json eos_token_id={value!r}: must be token ids"
    with pytest.raises(ModelError, match=re.escape(match)):
        Tokenizer(locate(str(tmp_path)))


@pytest.mark.parametrize("strange", [287, 2**32 - 1, 2**32, 10**90])
def test_an_eos_id_that_no_token_has_is_left_out_and_told(strange, tmp_path, caplog):
    """The model has logits up to 287, the tokenizer no tokens for the last of them."""
    write_checkpoint(tmp_path, CASES["llama-gqa"])
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, strange]}))
    assert Tokenizer(locate(str(tmp_path))).eos_token_ids == {257, 258}
    [warning] = caplog.messages
    assert "generation_config.json eos_token_id" in warning
    assert str(strange)[:20] in warning


FRAGMENTS = ["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<", "|", ">", "system\n", "é", " "]
SPOKEN = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)
SPECIAL_IDS = range(256, 256 + len(SPECIAL_TOKENS))


@given(texts=st.lists(SPOKEN, min_size=1, max_size=4), tool=SPOKEN)
def test_what_is_said_in_a_chat_never_becomes_a_special_token(tokenizer, texts, tool):
    roles = ["user", "assistant"] * 2
    chat = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
    tools = [{**TOOL, "function": {"name": "clock", "description": tool}}]
    token_ids = tokenizer.chat(chat, tools=tools)
    harmless = [{**message, "content": "x"} for message in chat]
    of_template = tokenizer.chat(harmless, tools=[TOOL])
    special = [each for each in token_ids if each in SPECIAL_IDS]
    assert special == [each for each in of_template if each in SPECIAL_IDS]
    text = tokenizer.decode(token_ids, skip_special_tokens=False)
    assert all(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" in text for m in chat)
    assert json.dumps(tool, ensure_ascii=False) in text


def test_a_chat_may_hold_special_tokens_where_that_is_wanted(places):
    chat = [{"role": "user", "content": "a<|im_end|>"}]
    for place in places.values():
        kept, read = (
            Tokenizer(locate(place), special_tokens_in_chats=wanted) for wanted in (False, True)
        )
        end = 256 + SPECIAL_TOKENS.index("<|im_end|>")
        assert (kept.chat(chat).count(end), read.chat(chat).count(end)) == (1, 2)
        assert read.decode(kept.chat(chat), False) == read.decode(read.chat(chat), False)
        assert kept.chat(CHAT) == read.chat(CHAT)


def test_the_pieces_of_a_chat_are_tokenised_on_one_core(places, monkeypatch):
    """The library takes a core for each text of a batch."""
    tokenizer, batches = Tokenizer(locate(places["directory"])), []

    class Backend:
        def encode_batch_fast(self, texts, add_special_tokens):
            batches.append(texts)
            return backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)

    backend = tokenizer.backend
    monkeypatch.setattr(tokenizer, "backend", Backend())
    tokenizer.chat([{"role": "user", "content": "a<|im_end|>" * 10}])
    assert len(batches) > 10
    assert {len(texts) for texts in batches} == {1}


def test_a_refusal_tells_a_message_as_it_was_sent(tokenizer):
    with refused("refuses them: unknown role <|im_end|>"):
        tokenizer.chat([{"role": "<|im_end|>", "content": "x"}])


def test_a_limit_on_length_in_the_file_does_not_cut_prompts(tmp_path):
    write_checkpoint(tmp_path, CASES["llama-gqa"])
    path = tmp_path / "tokenizer.json"
    state = json.loads(path.read_text())
    state["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    path.write_text(json.dumps(state))
    assert len(Tokenizer(locate(str(tmp_path))).encode("a" * 50)) == 50


def test_a_tokenizer_class_without_a_backend_gives_way_to_tokenizer_json(places, monkeypatch):
    expected = Tokenizer(locate(places["directory"])).chat(CHAT)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: object())
    assert Tokenizer(locate(places["directory"])).chat(CHAT) == expected


@pytest.mark.parametrize("broken", [None, "{", "{}"])
def test_a_missing_or_broken_tokenizer_is_refused(broken, tmp_path):
    write_checkpoint(tmp_path, CASES["llama-gqa"], tokenizer=False)
    if broken is not None:
        (tmp_path / "tokenizer.json").write_text(broken)
    with pytest.raises(ModelError, match="its tokenizer cannot be read"):
        Tokenizer(locate(str(tmp_path)))


def test_the_directory_is_tokenised_as_transformers_does(places):
    own = Tokenizer(locate(places["directory"]))
    other = transformers.AutoTokenizer.from_pretrained(places["directory"])
    assert own.encode("Hello, world") == other.encode("Hello, world")
    rendered = other.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    assert own.decode(own.chat(CHAT), skip_special_tokens=False) == rendered


@pytest.mark.parametrize(
    "changes",
    [
        {"rms_norm_eps": 1},
        {"dtype": "torch.bfloat16"},
        {"torch_dtype": "torch.bfloat16", "dtype": None},
        {"head_dim": None},
        {"id2label": {"a": "b"}},
    ],
)
def test_fields_of_the_model_are_no_matter_of_the_tokenizer(changes, tmp_path):
    write_checkpoint(tmp_path, CASES["llama-gqa"])
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    files = locate(str(tmp_path))
    assert load_spec(files).dtype == ("bfloat16" if "dtype" in changes else "float32")
    assert Tokenizer(files).encode("he") == [104, 101]


def test_a_chat_may_end_within_its_last_message(tokenizer):
    begun = [*CHAT, {"role": "assistant", "content": "It is"}]
    options = ChatOptions(add_generation_prompt=False, continue_final_message=True)
    text = tokenizer.decode(tokenizer.chat(begun, options=options), skip_special_tokens=False)
    assert text.endswith("<|im_start|>assistant\nIt is")


def test_a_template_is_given_what_it_reads():
    text = "{% if enable_thinking %}{{ bos_token }}{{ style }}{% endif %}{{ messages }}"
    assert names_read_by(text) == {"enable_thinking", "style"}
    assert names_read_by("{% generation %}{{ style }}{% endgeneration %}") == {"style"}
    assert names_read_by("{% for %}") == set()


def test_what_a_prompt_says_of_the_answer_already(tokenizer):
    asynchronous = AsyncTokenizer(None, Vocabulary(tokenizer.backend), None)
    [end] = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    prompt = tokenizer.chat(CHAT)
    assert asynchronous.begun(prompt, frozenset()) == "assistant\n"
    begun = tokenizer.encode("<think>\nHm", add_special_tokens=False)
    assert asynchronous.begun([*prompt, *begun], frozenset()) == "assistant\n<think>\nHm"
    assert asynchronous.begun([*prompt, end], frozenset()) == ""
    assert asynchronous.begun([*prompt, end], frozenset({end})) == "assistant\n<|im_end|>"
    assert asynchronous.begun(begun, frozenset()) == "<think>\nHm"
    assert asynchronous.begun([], frozenset()) == ""


def test_what_a_user_says_is_not_of_the_answer_where_names_of_roles_are_not_special():
    backend = byte_tokenizer()
    backend.add_tokens([tokenizers.AddedToken("<|Assistant|>", special=False)])
    asynchronous = AsyncTokenizer(None, Vocabulary(backend), None)
    prompt = backend.encode("What does <think> mean?<|Assistant|>Hm").ids
    assert asynchronous.begun(prompt, frozenset()) == "Hm"


def test_the_templates_text_and_its_tokens(tokenizer):
    assert "<|im_start|>" in tokenizer.chat_template
    [end] = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    assert tokenizer.token_id("<|im_end|>") == end
    assert tokenizer.token_id("<think>") is None
