"""vLLM's flags that Pagoda does not have, and what is there in their place."""

from __future__ import annotations

_ROWS = (
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
    (("kv-cache-dtype",), "the cache has the numbers of `--dtype`"),
    (
        ("quantization", "load-format"),
        "a `.gguf` file is recognised, and de-quantised when loaded",
    ),
    (("tokenizer",), "the model's own"),
    (("download-dir",), "the environment's `HF_HOME` says where models from the hub are kept"),
    (("task", "runner"), "text is generated, nothing else"),
    (("chat-template",), "the model's own. A model without one refuses chats"),
    (
        ("enable-auto-tool-choice", "tool-call-parser"),
        "always on; the form of the calls is read from the model's chat template",
    ),
    (("reasoning-parser",), "what a model thinks is part of its answer"),
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
    (("speculative-config", "enable-lora", "limit-mm-per-prompt"), "not covered"),
    (
        ("disable-log-requests", "uvicorn-log-level"),
        "a line for each request, without what was said",
    ),
)

SHORT_FORMS = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "-sc": "--speculative-config",
}
"""vLLM's, and what they stand for."""

INSTEAD = {f"--{name}": words for names, words in _ROWS for name in names}
"""What to know of each of these flags, by its long form."""


def vllm_flags_table() -> str:
    """The same for people, in Markdown."""
    lines = ["| vLLM's flag | here |", "|---|---|"]
    for names, words in _ROWS:
        flags = ", ".join(f"`--{name}`" for name in names)
        lines.append(f"| {flags} | {words} |")
    return "\n".join(lines)
