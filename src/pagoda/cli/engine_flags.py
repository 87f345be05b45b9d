"""The engine's flags, with vLLM's names."""

from __future__ import annotations

from pagoda.cache import EVICTION_POLICIES
from pagoda.cli.flags import (
    LAYERS,
    NAMES,
    REAL,
    SIZE,
    SWITCH,
    TEXT,
    TOKENS,
    WHOLE,
    WHOLES,
    Flag,
    FlagGroup,
)
from pagoda.engine.options import EngineOptions

ENGINE_FLAGS = FlagGroup(
    "options",
    EngineOptions,
    (
        Flag(
            "model",
            TEXT,
            "A directory, a .gguf file or a hub id; without it smollm2, which is built in.",
        ),
        Flag("revision", TEXT, "Of a hub id: a commit, a branch or a tag."),
        Flag("device", TEXT, "cpu, cuda (a GPU of NVIDIA's or AMD's), or auto: a GPU if there is."),
        Flag("dtype", TEXT, "Weights and cache as auto, bfloat16, float16 (GPUs) or float32."),
        Flag(
            "quantization",
            TEXT,
            "On CPUs, quantise plain weights when they are loaded: q8_0, q6_k, q4_k, q4_0. none: "
            "de-quantise those of a file, which stay as stored without it.",
        ),
        Flag(
            "activation_dtype",
            TEXT,
            "int8: on CPUs, round what stored weights are multiplied with; quicker, less exact.",
        ),
        Flag("max_model_len", TOKENS, "Longest prompt and answer together, as 8192, 32k or 8K."),
        Flag("block_size", WHOLE, "Tokens per block of the KV cache."),
        Flag(
            "kv_cache_dtype",
            TEXT,
            "Keys and values as auto (the dtype), fp8, int8_per_token_head, turboquant_4bit_nc and "
            "others; on CPUs also int4 (calibrated for the model, once). Latents as fp8 or "
            "int8_per_group.",
        ),
        Flag(
            "kv_cache_dtype_skip_layers",
            LAYERS,
            "Layers whose keys and values keep the dtype, like 0-2,29, or sliding_window (all that "
            "have one); may be given again.",
        ),
        Flag(
            "kv_cache_memory_bytes",
            SIZE,
            "Memory for the KV cache, like 2GiB, 512MiB or 1e9.",
        ),
        Flag(
            "gpu_memory_utilization",
            REAL,
            "On a GPU, the share of its memory that the engine takes, 0.92 if not given; on a CPU, "
            "of the free memory for the KV cache.",
        ),
        Flag("num_gpu_blocks_override", WHOLE, "Exactly this many blocks."),
        Flag("enable_prefix_caching", SWITCH, "Share blocks of equal prefixes.", negatable=True),
        Flag(
            "kv_retention",
            TEXT,
            "Which tokens of a sequence stay: full; streaming:sinks=4,window=1020, for streams "
            "that go on past the model's length; window:1024.",
        ),
        Flag("request_kv_retention", SWITCH, "Let requests choose what of them stays."),
        Flag(
            "eviction_policy",
            TEXT,
            f"Which cached blocks are forgotten first: {', '.join(EVICTION_POLICIES)}.",
        ),
        Flag(
            "max_num_batched_tokens",
            TOKENS,
            "Most tokens in one step; 512 on a CPU, 2048 or 8192 on a GPU if not given.",
        ),
        Flag(
            "max_num_seqs",
            WHOLE,
            "Most sequences that run at once; 128 on a CPU, 256 or 1024 on a GPU if not given.",
        ),
        Flag("scheduling_policy", TEXT, "fcfs, or priority (lower goes first)."),
        Flag(
            "long_prefill_token_threshold",
            WHOLE,
            "Most tokens of one prompt in a step; 0: as many as fit.",
        ),
        Flag(
            "seed",
            WHOLE,
            "Where random draws start: the same requests in the same order get the same answers. "
            "A request to the server that has a seed of its own takes that one.",
        ),
        Flag("threads", WHOLE, "Threads of a CPU to compute with; without it, one per core."),
        Flag(
            "kv_tier",
            NAMES,
            "Where blocks are kept beside the cache: disk:PATH,size=20GiB, redis://host:6379/0, "
            "s3://bucket/prefix; may be given again, the nearest first.",
        ),
        Flag(
            "kv_tier_key_file",
            TEXT,
            "The key that frames on redis and s3, and sessions that are exported, are sealed with.",
        ),
        Flag("kv_offloading_size", REAL, "GiB of main memory that keep blocks of a GPU."),
        Flag("kv_offloading_backend", TEXT, "What keeps them there: native."),
        Flag("enforce_eager", SWITCH, "On a GPU, do without CUDA graphs."),
        Flag(
            "cudagraph_capture_sizes",
            WHOLES,
            "Batches that a CUDA graph is captured for, like 1,2,4,8; may be given again.",
        ),
        Flag(
            "special_tokens_in_chats",
            SWITCH,
            "In the messages of chats, read the text of a special token as that token.",
        ),
        Flag(
            "served_model_name",
            NAMES,
            "The model's name in the API; may be given again, for more names of it.",
        ),
    ),
)
