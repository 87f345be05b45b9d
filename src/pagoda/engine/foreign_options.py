"""vLLM's options that Pagoda does not have, and what is there in their place.

By their flags' names; flags in the words are Pagoda's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FOREIGN_OPTIONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"),
        "one process on one machine's CPUs or on one GPU; `--threads` says how many cores",
    ),
    (("trust-remote-code",), "code that comes with a model is never run"),
    (
        ("compilation-config",),
        "what is compiled is kept on disk; `--cudagraph-capture-sizes` and `--enforce-eager` are "
        "flags of their own",
    ),
    (
        ("async-scheduling",),
        "always so on a GPU, never on CPUs: the next step is planned while the device is still at "
        "this one",
    ),
    (
        ("enable-chunked-prefill",),
        "always on; `--max-num-batched-tokens` is the size of a step",
    ),
    (
        ("load-format",),
        "a `.gguf` file is recognised",
    ),
    (("tokenizer",), "the model's own"),
    (("download-dir",), "the environment's `HF_HOME` says where models from the hub are kept"),
    (("task", "runner"), "text is generated, nothing else"),
    (
        ("chat-template", "chat-template-content-format"),
        "the model's own. A model without one refuses chats",
    ),
    (
        ("enable-auto-tool-choice", "tool-call-parser"),
        "always on; the form of the calls is read from the model's chat template",
    ),
    (("ssl-keyfile", "ssl-certfile", "root-path"), "a proxy's work"),
    (
        ("swap-space", "cpu-offload-gb"),
        "a sequence that is preempted keeps its published blocks, and computes the rest again",
    ),
    (
        ("generation-config", "override-generation-config"),
        "requests without a temperature have 1.0, whatever the model's files say; where an answer "
        "ends is read from them",
    ),
    (("max-logprobs",), "20, always"),
    (("config",), "flags are given on the command line"),
    (
        ("max-num-partial-prefills", "max-long-partial-prefills"),
        "as many prompts at a time as `--max-num-batched-tokens` has tokens for; "
        "`--long-prefill-token-threshold` bounds each",
    ),
    (("speculative-config", "enable-lora", "limit-mm-per-prompt"), "not covered"),
    (
        (
            *("enable-log-requests", "disable-log-requests"),
            *("uvicorn-log-level", "disable-uvicorn-access-log"),
        ),
        "a line for each request, without what was said",
    ),
)

INSTEAD: Mapping[str, str] = MappingProxyType(
    {name: words.replace("`", "") for names, words in FOREIGN_OPTIONS for name in names}
)
"""What to know of each of them."""
