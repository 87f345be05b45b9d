"""Text to token ids and back, and chats to prompts, as the model's own files say.

transformers is imported where it is wanted: a prompt for a GGUF file does without it, which saves a
command half a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.models import BPE

from pagoda.errors import InvalidRequestError, ModelError
from pagoda.models.chat_options import DEFAULT_CHAT_OPTIONS, ChatOptions
from pagoda.models.config import CONFIG_FILE, read_json
from pagoda.models.gguf_tokenizer import gguf_tokenizer
from pagoda.models.locate import ModelFiles
from pagoda.models.tool_prompt import ToolFormat, format_in, in_plain_messages
from pagoda.models.user_text import UserText

GENERATION_CONFIG_FILE = "generation_config.json"


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

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text, with the special tokens the model wants around it, or without.

        Raises `InvalidRequestError` for text that is no valid Unicode.
        """
        return self._encode(text, "prompt", add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; a character that is not complete becomes U+FFFD."""
        return self.backend.decode(token_ids, skip_special_tokens)

    @cached_property
    def has_chat_template(self) -> bool:
        """Whether `chat` works. Asking for it prepares the first chat."""
        return bool(self._template.chat_template)

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
    def _template(self) -> Any:
        return self._loaded.template()

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        options: ChatOptions = DEFAULT_CHAT_OPTIONS,
    ) -> list[int]:
        """The prompt of a conversation by the model's chat template.

        `tools` are described as the template does it, or else in the system message. Raises
        `InvalidRequestError` where the model has no template or the template refuses the messages.
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
        if self._native_tool_format is None:
            given, tools = in_plain_messages(given, tools), ()
        try:
            prompt = self._template.apply_chat_template(
                given,
                tools=[dict(tool) for tool in tools] or None,
                add_generation_prompt=options.add_generation_prompt,
                continue_final_message=options.continue_final_message,
                tokenize=False,
            )
        # the template is a program in the model's files: what it raises cannot be foreseen
        except Exception as error:
            reason = self._user_text.uncut(_first_line(error))
            raise InvalidRequestError(
                "messages", messages, f"the model's chat template refuses them: {reason}"
            ) from error
        encode = partial(self._encode, field="messages", add_special_tokens=False)
        return self._user_text.encode(prompt, encode)

    def _encode(self, text: str, field: str, *, add_special_tokens: bool) -> list[int]:
        try:
            return self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (TypeError, UnicodeError) as error:
            raise InvalidRequestError(field, text, "must be valid Unicode text") from error


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
    local: Any = {"local_files_only": True, "trust_remote_code": False}
    try:
        template: Any = transformers.AutoTokenizer.from_pretrained(path, **local)
        if getattr(template, "backend_tokenizer", None) is None:
            # a family's own class may come without the library's form: take tokenizer.json as it is
            template = transformers.PreTrainedTokenizerFast.from_pretrained(path, **local)
    # what a broken or missing tokenizer raises depends on its kind: OSError, ValueError, KeyError …
    except Exception as error:
        raise _unreadable(path, error) from error
    eos = _generation_eos(path)
    if template.eos_token_id is not None:
        eos = [*eos, template.eos_token_id]
    return _Loaded(template.backend_tokenizer, frozenset(eos), lambda: template)


def _unreadable(path: Path, error: Exception) -> ModelError:
    """transformers reads the config before the tokenizer: what it says of that is said of that."""
    from huggingface_hub.errors import StrictDataclassError

    if isinstance(error, StrictDataclassError):
        reason = " ".join(str(error).split())
        return ModelError(CONFIG_FILE, str(path), f"transformers refuses it: {reason}")
    return ModelError("model", str(path), f"its tokenizer cannot be read: {_first_line(error)}")


_READERS = {"directory": _read_directory, "gguf": _read_gguf}


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _generation_eos(path: Path) -> Iterable[int]:
    """The eos ids of generation_config.json, or of config.json where there is none."""
    for name in (GENERATION_CONFIG_FILE, CONFIG_FILE):
        if (path / name).is_file():
            value = read_json(path / name).get("eos_token_id")
            ids = value if type(value) is list else [] if value is None else [value]
            if not all(type(token_id) is int for token_id in ids):
                raise ModelError(f"{name} eos_token_id", value, "must be token ids")
            return ids
    return ()
