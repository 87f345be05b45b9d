"""Text to token ids and back, and chats to prompts, as the model's own files say.

transformers is imported where it is wanted: a prompt for a GGUF file does without it, which saves a
command half a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import tokenizers
from tokenizers.models import BPE

from pagoda.errors import InvalidRequestError, ModelError, shorten
from pagoda.models.chat_options import DEFAULT_CHAT_OPTIONS, ChatOptions, TemplateValue
from pagoda.models.config import CONFIG_FILE, read_directory_config
from pagoda.models.gguf_tokenizer import gguf_tokenizer
from pagoda.models.json_file import read_json
from pagoda.models.locate import ModelFiles
from pagoda.models.registry import find_family
from pagoda.models.single_calls import has_several_calls, with_single_calls
from pagoda.models.template_names import names_read_by
from pagoda.models.template_traits import takes_one_call, takes_system
from pagoda.models.tiktoken_file import splitting_of_ranks
from pagoda.models.tool_prompt import ToolFormat, format_in, in_plain_messages
from pagoda.models.user_text import UserText

logger = logging.getLogger("pagoda")

GENERATION_CONFIG_FILE = "generation_config.json"
CHAT_TEMPLATE_FILE = "chat_template.json"

Checked = TypeVar("Checked", contravariant=True)

_MOST_TOLD = 400
"""Characters of what a library says of a file."""
_LARGEST_ID = 2**32 - 1
"""That the tokenizers library can be asked for."""


class Check(Protocol[Checked]):
    """Raises where something will not do."""

    def __call__(self, value: Checked, /) -> None: ...


def _anything(value: object, /) -> None:
    """All will do."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What a model's files give."""

    backend: tokenizers.Tokenizer
    eos_token_ids: frozenset[int]
    """They end an answer."""
    template: Callable[[], Any]
    """A tokenizer of transformers, for its chat template."""


class Tokenizer:
    """The tokenizer of a model; safe to use from several threads.

    Raises `ModelError` where the model's files hold no tokenizer that can be used.
    """

    def __init__(self, files: ModelFiles, *, special_tokens_in_chats: bool = False) -> None:
        """With `special_tokens_in_chats` what is said in a chat may hold special tokens, as it may
        with transformers; without it such text stays text."""
        self._loaded = _READERS[files.kind](files)
        self.eos_token_ids = self._loaded.eos_token_ids
        self.backend = self._loaded.backend
        """Does the work; its limits on length are switched off."""
        self.backend.no_truncation()
        self.backend.no_padding()
        added = self.backend.get_added_tokens_decoder().values()
        self._user_text = UserText(() if special_tokens_in_chats else added)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, the added ones included; the model's own may be larger by padding."""
        return self.backend.get_vocab_size()

    def encode(
        self, text: str, add_special_tokens: bool = True, *, check_count: Check[int] = _anything
    ) -> list[int]:
        """The token ids of a text, with the special tokens the model wants around it, or without.

        `check_count` may refuse their number before they are copied. Raises `InvalidRequestError`
        for text that is no valid Unicode.
        """
        [encoding] = self._encodings([text], "prompt", add_special_tokens=add_special_tokens)
        check_count(len(encoding))
        return encoding.ids

    def count(self, text: str) -> int:
        """How many tokens a text has, without special tokens around it.

        Raises `InvalidRequestError` for text that is no valid Unicode.
        """
        [encoding] = self._encodings([text], "prompt", add_special_tokens=False)
        return len(encoding)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; a character that is not complete becomes U+FFFD.

        Raises `InvalidRequestError` for ids that no token can have.
        """
        try:  # a batch leaves the interpreter's lock free while it is decoded
            [text] = self.backend.decode_batch([list(token_ids)], skip_special_tokens)
        except OverflowError:
            limit = f"token ids are whole numbers from 0 to {_LARGEST_ID}"
            raise InvalidRequestError("token_ids", token_ids, limit) from None
        return text

    @cached_property
    def has_chat_template(self) -> bool:
        """Whether `chat` works. Asking for it prepares the first chat."""
        return bool(self._template.chat_template)

    @cached_property
    def chat_template(self) -> str:
        """The template's text, that of one for tools too; empty where there is none."""
        if not self.has_chat_template:
            return ""
        get = self._template.get_chat_template
        return f"{get()}\n{get(tools=[{}])}"

    def token_id(self, token: str) -> int | None:
        """The id of the token that is written so in the vocabulary; None where there is none."""
        found: int | None = self.backend.token_to_id(token)
        return found

    @cached_property
    def tool_format(self) -> ToolFormat:
        """The form in which the model calls tools that it was told of."""
        return self._native_tool_format or "hermes"

    @cached_property
    def _native_tool_format(self) -> ToolFormat | None:
        """None where the chat template has no place for tools."""
        if not self.has_chat_template:
            return None
        return format_in(self._template.get_chat_template(tools=[{}]))

    @cached_property
    def _takes_system(self) -> bool:
        return takes_system(self._render)

    @cached_property
    def _takes_one_call(self) -> bool:
        return takes_one_call(self._render)

    def _for_template(
        self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
        """Messages and tools as the chat template takes them."""
        if self._native_tool_format is None:
            takes_system = not tools or self._takes_system
            return in_plain_messages(messages, tools, takes_system=takes_system), ()
        if any(has_several_calls(each) for each in messages) and self._takes_one_call:
            return with_single_calls(messages), tools
        return messages, tools

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        options: ChatOptions = DEFAULT_CHAT_OPTIONS,
    ) -> str:
        """The text that the template makes of them; raises whatever it does."""
        text: str = self._template.apply_chat_template(
            list(messages),
            tools=[dict(tool) for tool in tools] or None,
            add_generation_prompt=options.add_generation_prompt,
            continue_final_message=options.continue_final_message,
            tokenize=False,
            **self._user_text.cut(self._read(options.template_kwargs)),
        )
        return text

    @cached_property
    def template_names(self) -> frozenset[str]:
        """What the chat template reads beside messages and tools, as `enable_thinking`."""
        if not self.has_chat_template:
            return frozenset()
        get = self._template.get_chat_template
        return names_read_by(get()) | names_read_by(get(tools=[{}]))

    @cached_property
    def _template(self) -> Any:
        return self._loaded.template()

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        options: ChatOptions = DEFAULT_CHAT_OPTIONS,
        *,
        check_text: Check[str] = _anything,
        check_count: Check[int] = _anything,
    ) -> list[int]:
        """The prompt of a conversation by the model's chat template.

        `tools` are described as the template does it, or else in the system message, or before what
        the user says first. Several calls at once are told one by one where it takes no more.
        `check_text` may refuse the text before it is tokenised, `check_count` the number of tokens
        before they are copied. Raises `InvalidRequestError` where the model has no template or the
        template refuses the messages.
        """
        if not self.has_chat_template:
            raise InvalidRequestError("messages", messages, "the model has no chat template")
        if (
            not isinstance(messages, Sequence)
            or not messages
            or not all(isinstance(message, Mapping) for message in messages)
        ):
            raise InvalidRequestError("messages", messages, "must be a list of messages, not empty")
        given: list[dict[str, Any]] = self._user_text.cut([*messages])
        tools = self._user_text.cut(tools)
        try:
            prompt = self._render(*self._for_template(given, tools), options)
        # the template is a program in the model's files: what it raises cannot be foreseen
        except Exception as error:
            reason = self._user_text.uncut(_first_line(error))
            raise InvalidRequestError(
                "messages", messages, f"the model's chat template refuses them: {reason}"
            ) from error
        check_text(self._user_text.uncut(prompt))
        encode = partial(self._encodings, field="messages", add_special_tokens=False)
        token_ids = self._user_text.encode(prompt, encode, check_count)
        if not options.add_special_tokens:
            return token_ids
        before, behind = self._around
        return [*before, *token_ids, *behind]

    def _read(self, kwargs: Mapping[str, TemplateValue]) -> dict[str, TemplateValue]:
        """Those that the template reads."""
        return {name: value for name, value in kwargs.items() if name in self.template_names}

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokenizer adds before and behind a text."""
        alone = self.encode("a", add_special_tokens=False)
        whole = self.encode("a")
        start = next(i for i in range(len(whole)) if whole[i : i + len(alone)] == alone)
        return whole[:start], whole[start + len(alone) :]

    def _encodings(
        self, texts: Sequence[str], field: str, *, add_special_tokens: bool
    ) -> list[tokenizers.Encoding]:
        """Their lengths are known at once, their `ids` are copied.

        The library lets go of the interpreter's lock for batches alone, and tokenises each text of
        one on a core of its own. Batches of one text leave the other cores to others.
        """
        encode = partial(self.backend.encode_batch_fast, add_special_tokens=add_special_tokens)
        try:
            return [encode([text])[0] for text in texts]
        except (TypeError, UnicodeError) as error:
            raise InvalidRequestError(field, texts[0], "must be valid Unicode text") from error


def _read_gguf(files: ModelFiles) -> _Loaded:
    found = gguf_tokenizer(files.gguf.metadata)
    template = partial(_gguf_template, found.special_tokens, found.chat_template)
    return _Loaded(found.backend, found.eos_token_ids, template)


def _gguf_template(special_tokens: dict[str, str], chat_template: str | None) -> Any:
    """It renders chats and tokenises nothing, so it has no vocabulary."""
    import transformers

    wrap: Any = transformers.PreTrainedTokenizerFast
    template = wrap(tokenizer_object=tokenizers.Tokenizer(BPE()), **special_tokens)
    template.chat_template = chat_template
    return template


def _read_directory(files: ModelFiles) -> _Loaded:
    import transformers

    path = files.path
    splitting = splitting_of_ranks(path)
    config = read_directory_config(path)
    model_type = find_family(config).model_type
    own_class = None
    if config.values.get("tokenizer_class") is not None:
        own_class = config.string("tokenizer_class")
    local: Any = {"local_files_only": True, "trust_remote_code": False}
    try:
        local["config"] = _config_for_transformers(path, model_type, own_class)
        template: Any = None
        if splitting is None:  # else the class is code of the model's own
            template = transformers.AutoTokenizer.from_pretrained(path, **local)
        if getattr(template, "backend_tokenizer", None) is None:
            # a family's own class may come without the library's form: take tokenizer.json as it is
            template = transformers.PreTrainedTokenizerFast.from_pretrained(path, **local)
    # what a broken or missing tokenizer raises depends on its kind: OSError, ValueError, KeyError …
    except Exception as error:
        told = " ".join(str(error).split())[:_MOST_TOLD]
        limit = f"its tokenizer cannot be read: {told}"
        raise ModelError("model", str(path), limit) from error
    if template.chat_template is None and (path / CHAT_TEMPLATE_FILE).is_file():
        template.chat_template = _processors_template(path / CHAT_TEMPLATE_FILE)
    if splitting is not None:
        template.backend_tokenizer.pre_tokenizer = splitting.pre_tokenizer()
    eos = _generation_eos(path, template.backend_tokenizer)
    if template.eos_token_id is not None:
        eos.add(template.eos_token_id)
    return _Loaded(template.backend_tokenizer, frozenset(eos), lambda: template)


def _processors_template(file: Path) -> str:
    """The chat template of a model that sees: an older file of its processor has it alone."""
    template = read_json(file).get("chat_template")
    if type(template) is not str:
        raise ModelError(f"{file.name} chat_template", template, "must be text")
    return template


def _config_for_transformers(path: Path, model_type: str, own_class: str | None) -> Any:
    """What the choice of a tokenizer's class depends on: its family and what config.json names.

    The whole config.json is not shown to transformers: it would refuse the tokenizer for fields of
    the model that are read here, such as a dtype called torch.bfloat16. Nor is the family's own
    class of configs, which brings PyTorch's compiler, two seconds of a start, where
    tokenizer_config.json names a tokenizer of the library.
    """
    import transformers
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    told = get_tokenizer_config(path, local_files_only=True)
    if told.get("tokenizer_class") is None or "auto_map" in told:
        shown: Any = transformers.AutoConfig.for_model(model_type)
    else:
        shown = transformers.PreTrainedConfig()
        shown.model_type = model_type
    if own_class is not None:
        shown.tokenizer_class = own_class
    return shown


_READERS = {"directory": _read_directory, "gguf": _read_gguf}


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _generation_eos(path: Path, backend: tokenizers.Tokenizer) -> set[int]:
    """The eos ids of generation_config.json, or of config.json where there is none.

    Those that are no token's are left out: no answer can end with them, and no rule know them.
    """
    for name in (GENERATION_CONFIG_FILE, CONFIG_FILE):
        if (path / name).is_file():
            value = read_json(path / name).get("eos_token_id")
            ids = value if type(value) is list else [] if value is None else [value]
            if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
                raise ModelError(f"{name} eos_token_id", value, "must be token ids")
            known = {token_id for token_id in ids if _has_token(backend, token_id)}
            if strange := [token_id for token_id in ids if token_id not in known]:
                told = "%s eos_token_id: %s is left out, the tokenizer has no such token"
                logger.warning(told, name, shorten(strange))
            return known
    return set()


def _has_token(backend: tokenizers.Tokenizer, token_id: int) -> bool:
    return token_id <= _LARGEST_ID and backend.id_to_token(token_id) is not None
