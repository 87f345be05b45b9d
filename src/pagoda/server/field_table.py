"""Every field that OpenAI's, vLLM's and llama.cpp's clients may send, and what becomes of it.

done       it does what its name says: a field of a body
mapped     it does what another field does here: a field of a body too
ignored    it changes nothing, and the answer's `warnings` say so where it asks for something
refused    it would change the answer, and the request is told 400 where it asks for something

Any other field is ignored, and `warnings` name the first few, those of objects within a body too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Treatment = Literal["done", "mapped", "ignored", "refused"]


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field of a request."""

    name: str
    api: str
    """Whose field it is."""
    treatment: Treatment
    note: str = ""
    neutral: tuple[object, ...] = ()
    """Values that ask for nothing, null apart."""
    is_said: bool = True
    """An answer tells that it was ignored."""

    @property
    def treatment_beside(self) -> Treatment:
        """What becomes of it in a body that has no such field."""
        if self.treatment in ("ignored", "refused"):
            return self.treatment
        return "refused" if self.name in ("tools", "tool_choice") else "ignored"

    @property
    def reason_beside(self) -> str:
        """Why, in words."""
        is_own = self.treatment in ("ignored", "refused")
        return self.note if is_own else "it is no field of this request"

    def asks(self, value: object) -> bool:
        """This value asks for something."""
        return value is not None and value not in self.neutral


@dataclass(frozen=True, slots=True)
class Ignored:
    """A field that asks for something and changes nothing."""

    field: str
    reason: str
    inner: str = ""
    """Which part of it, where others are read."""

    @property
    def warning(self) -> str:
        """For the client; half of a surrogate pair, which no answer can carry, is spelled out."""
        name = f"{self.field}.{self.inner}" if self.inner else self.field
        name = name.encode("utf-8", "backslashreplace").decode()
        return f"{name} is ignored: {self.reason}"


def _done(api: str, *names: str) -> list[FieldRow]:
    return [FieldRow(name, api, "done") for name in names]


def _mapped(api: str, name: str, note: str) -> FieldRow:
    return FieldRow(name, api, "mapped", note)


def _ignored(api: str, name: str, note: str, *neutral: object) -> FieldRow:
    return FieldRow(name, api, "ignored", note, neutral)


def _of_no_answer(api: str, note: str, *names: str) -> list[FieldRow]:
    return [FieldRow(name, api, "ignored", note, is_said=False) for name in names]


def _refused(api: str, name: str, note: str, *neutral: object) -> FieldRow:
    return FieldRow(name, api, "refused", note, neutral)


_OPENAI, _VLLM, _LLAMA, _PAGODA = "OpenAI", "vLLM", "llama.cpp", "Pagoda"
_OTHER_SAMPLER = "the samplers are temperature, min_p, top_k and top_p"
_TEXT_ALONE = "text alone is read and written"

FIELD_ROWS: tuple[FieldRow, ...] = (
    *_done(
        _OPENAI,
        "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature",
        "top_p", "n", "stop", "stream", "stream_options", "seed", "logprobs", "top_logprobs",
        "logit_bias", "presence_penalty", "frequency_penalty", "echo", "response_format",
        "parallel_tool_calls",
    ),
    FieldRow("tools", _OPENAI, "done", neutral=([],)),
    FieldRow("tool_choice", _OPENAI, "done", neutral=("none", "auto")),
    _mapped(
        _OPENAI, "reasoning_effort", "given to the chat template; said where that does not read it"
    ),
    *_of_no_answer(
        _OPENAI, "of an account, not of the answer: nothing is kept",
        "user", "metadata", "store", "safety_identifier", "service_tier", "client_metadata",
    ),
    *_of_no_answer(
        _OPENAI, "the cache finds equal prefixes by itself",
        "prompt_cache_key", "prompt_cache_retention",
    ),
    _ignored(_OPENAI, "verbosity", "say in a message how long the answer should be", "medium"),
    _ignored(_OPENAI, "prediction", "nothing is predicted from it"),
    _refused(_OPENAI, "audio", _TEXT_ALONE),
    _refused(_OPENAI, "modalities", _TEXT_ALONE, ["text"]),
    _refused(_OPENAI, "web_search_options", "nothing is searched"),
    _refused(_OPENAI, "best_of", "n gives several answers; choose among them", 1),
    _refused(_OPENAI, "suffix", "nothing is filled in before a suffix; put it into the prompt", ""),
    _refused(_OPENAI, "functions", "use tools", []),
    _refused(_OPENAI, "function_call", "use tool_choice", "none", "auto"),
    *_done(
        _VLLM,
        "top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids",
        "include_stop_str_in_output", "skip_special_tokens", "prompt_logprobs", "bad_words",
        "allowed_token_ids", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
        "guided_grammar", "priority", "cache_salt", "add_special_tokens", "truncate_prompt_tokens",
        "add_generation_prompt", "continue_final_message", "chat_template_kwargs",
        "return_token_ids", "return_tokens_as_token_ids", "include_reasoning", "session_id",
    ),
    *_of_no_answer(
        _VLLM, "no tokenizer here puts spaces between them", "spaces_between_special_tokens"
    ),
    _ignored(_VLLM, "request_id", "send it as the header x-request-id"),
    _ignored(_VLLM, "kv_transfer_params", "no cache is handed over", {}),
    _ignored(_VLLM, "thinking_token_budget", "a model thinks as long as it does"),
    _ignored(_VLLM, "guided_decoding_backend", "there is one"),
    _ignored(_VLLM, "media_io_kwargs", _TEXT_ALONE, {}),
    _ignored(_VLLM, "mm_processor_kwargs", _TEXT_ALONE, {}),
    _ignored(_VLLM, "vllm_xargs", "there is nothing that reads them", {}),
    _refused(_VLLM, "chat_template", "the model's own is used"),
    _refused(_VLLM, "detokenize", "answers are text; return_token_ids tells their ids too", True),
    _refused(_VLLM, "documents", "put them into a message", []),
    _refused(_VLLM, "guided_whitespace_pattern", "put it into guided_regex"),
    _refused(_VLLM, "length_penalty", "it belongs to beam search", 1.0),
    _refused(_VLLM, "logits_processors", "no code is taken from a request", []),
    _refused(_VLLM, "logprob_token_ids", "logprobs tells the likeliest", []),
    _refused(_VLLM, "prompt_embeds", "prompts are text or token ids"),
    _refused(_VLLM, "structural_tag", "use structured_outputs with a grammar"),
    _refused(_VLLM, "use_beam_search", "use n, and a temperature above 0", False),
    *_done(_PAGODA, "cache_hint", "explain_cache", "kv_retention"),
    _mapped(_LLAMA, "n_predict", "as max_tokens; -1: up to the model's length"),
    _mapped(_LLAMA, "grammar", "as structured_outputs.grammar"),
    _mapped(_LLAMA, "json_schema", "as structured_outputs.json"),
    *_of_no_answer(_LLAMA, "always so", "cache_prompt"),
    _ignored(_LLAMA, "typical_p", _OTHER_SAMPLER, 1, 0),
    _ignored(_LLAMA, "tfs_z", _OTHER_SAMPLER, 1),
    _ignored(_LLAMA, "top_a", _OTHER_SAMPLER, 0),
    _ignored(_LLAMA, "top_n_sigma", _OTHER_SAMPLER, -1, 0),
    _ignored(_LLAMA, "xtc_probability", _OTHER_SAMPLER, 0),
    _ignored(_LLAMA, "xtc_threshold", _OTHER_SAMPLER, 0.1, 0),
    _ignored(_LLAMA, "dynatemp_range", _OTHER_SAMPLER, 0),
    _ignored(_LLAMA, "mirostat", _OTHER_SAMPLER, 0),
    _ignored(_LLAMA, "mirostat_tau", _OTHER_SAMPLER, 5.0),
    _ignored(_LLAMA, "mirostat_eta", _OTHER_SAMPLER, 0.1),
    _ignored(_LLAMA, "dynatemp_exponent", _OTHER_SAMPLER, 1),
    _ignored(_LLAMA, "dry_multiplier", _OTHER_SAMPLER, 0),
    _ignored(_LLAMA, "dry_base", _OTHER_SAMPLER, 1.75),
    _ignored(_LLAMA, "dry_allowed_length", _OTHER_SAMPLER, 2),
    _ignored(_LLAMA, "dry_penalty_last_n", _OTHER_SAMPLER, -1),
    _ignored(_LLAMA, "dry_sequence_breakers", _OTHER_SAMPLER, ["\n", ":", '"', "*"]),
    _ignored(_LLAMA, "return_tokens", "use return_token_ids", False),
    _ignored(_LLAMA, "response_fields", "answers have all their fields", []),
    _ignored(_LLAMA, "post_sampling_probs", "logprobs are the model's own", False),
    _ignored(_LLAMA, "reasoning_format", "--reasoning-parser says it for all", "auto", "deepseek"),
    _ignored(_LLAMA, "samplers", _OTHER_SAMPLER),
    _ignored(_LLAMA, "min_keep", _OTHER_SAMPLER, 0),
    _ignored(_LLAMA, "repeat_penalty", "use repetition_penalty", 1),
    _ignored(_LLAMA, "repeat_last_n", "penalties look at the whole of prompt and answer"),
    _ignored(_LLAMA, "n_keep", "nothing is shifted out; see truncate_prompt_tokens", 0),
    _ignored(_LLAMA, "n_probs", "use logprobs", 0),
    _ignored(_LLAMA, "id_slot", "any sequence may use any block", -1),
    _ignored(_LLAMA, "t_max_predict_ms", "--request-timeout bounds an answer", 0),
    _ignored(_LLAMA, "timings_per_token", "the metrics tell times", False),
    _ignored(_LLAMA, "lora", "not covered", []),
    _refused(_LLAMA, "image_data", _TEXT_ALONE, []),
    _refused(_LLAMA, "input_prefix", "put it into the prompt", ""),
    _refused(_LLAMA, "input_suffix", "put it into the prompt", ""),
)  # fmt: skip

FIELDS: Mapping[str, FieldRow] = MappingProxyType({row.name: row for row in FIELD_ROWS})
"""By name."""
