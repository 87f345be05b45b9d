"""What can be set on an engine; the names are vLLM's flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from pagoda.cache import EVICTION_POLICIES, AttentionWindow
from pagoda.cache.evictions import DEFAULT_POLICY
from pagoda.cache.retention import parse_retention
from pagoda.engine.tenant_quota import parse_quotas
from pagoda.errors import InvalidOptionError
from pagoda.scheduling.queue import POLICIES
from pagoda.sizing.cache_formats import AUTO, STORED_FORMATS, CacheFormats
from pagoda.sizing.cache_size import CacheSize
from pagoda.sizing.device_policy import DEFAULT_BLOCK_SIZE, CPUPolicy, DevicePolicy
from pagoda.sizing.held_weights import ACTIVATION_DTYPES
from pagoda.sizing.quantised_weights import QUANTIZATIONS
from pagoda.sizing.skipped_layers import SkippedLayers
from pagoda.tiers.credentials import without_credentials
from pagoda.tiers.kinds import is_shared, parse_tier
from pagoda.tiers.tier import Tier
from pagoda.tiers.tier_option import FORM_FIELD, TierOption

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "bfloat16", "float16", "float32")
_OWN_SCHEME = "; what a checkpoint is quantised by is found in its files: leave the option out"

_ONE_FORM = (
    "all tiers of an engine keep blocks in one form: what is loaded from one is stored on others"
)
_NEEDS_KEY = (
    "is shared with others, so what lies there is encrypted: `pagoda tiers new-key FILE` makes a "
    "key, and kv_tier_key_file names it"
)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of one engine. Raises `InvalidOptionError` for one out of range."""

    model: str | None = None
    """A directory, a .gguf file, a hub id; None: the default model, SmolLM2-135M-Instruct."""
    revision: str | None = None
    """Of a hub id: a commit, a branch or a tag; None: what the hub has as main."""
    device: str = "auto"
    """cpu, or cuda, a GPU of NVIDIA's or AMD's; auto: a GPU if there is one that can be used."""
    dtype: str = "auto"
    """The dtype of weights, activations and cache; auto: the checkpoint's. float16 is for GPUs: on
    a CPU auto takes bfloat16 in its place."""
    quantization: str | None = None
    """q8_0, q6_k, q4_k or q4_0: plain matrices are quantised when they are loaded, on CPUs, with
    bfloat16 for all else. None: on a CPU and in bfloat16, quantised matrices stay as they are
    stored. none: they are de-quantised to `dtype`; answers are those of None."""
    activation_dtype: str = "auto"
    """What products with weights that stay as stored take. auto: `dtype`, and answers are those of
    de-quantised weights; int8: on a CPU, rows rounded to eight bits, 32 numbers a scale, which is
    quicker and a little less exact."""
    max_model_len: int | None = None
    """Longest prompt and output together, in tokens; None: what the model was made for."""
    block_size: int = DEFAULT_BLOCK_SIZE
    """Tokens per block."""
    kv_cache_dtype: str = AUTO
    """How keys and values are stored. auto: as `dtype`. In fewer bits and less exact: fp8
    (fp8_e4m3), fp8_e5m2, fp8_per_token_head, int8_per_token_head; int4_per_token_head and
    turboquant_ with k8v4, 4bit_nc, k3v4_nc or 3bit_nc, which leaves the two layers at each end as
    they are. On CPUs also float32 and bfloat16, and int4, int3 and int2, which are calibrated for a
    model when it first starts with them, as what fp8 leaves out of keys there is."""
    kv_cache_dtype_skip_layers: Sequence[int | str] | None = None
    """Layers whose keys and values are stored as `dtype` all the same: numbers, ranges like 0-3,
    or sliding_window, which is all that have one; None: none."""
    kv_cache_memory_bytes: int | None = None
    """Memory for K and V; goes before `gpu_memory_utilization`."""
    gpu_memory_utilization: float | None = None
    """On a GPU, the share of its memory that the engine takes in all; None: 0.92. On a CPU, the
    share of the memory that is free once the weights are loaded; None: half of it, but no more
    than 4 GiB."""
    num_gpu_blocks_override: int | None = None
    """Exactly this many blocks; goes before memory for them."""
    enable_prefix_caching: bool = True
    """Blocks of tokens that were seen before are found again."""
    kv_retention: str = "full"
    """Which tokens of a sequence stay. full: all of them, or what a layer's own window sees.
    streaming:sinks=4,window=1020: those first ones and that many last ones, so that a sequence may
    go on past the model's length in constant memory. window:1024: the last ones alone."""
    request_kv_retention: bool = False
    """A request may ask for a retention of its own, by its field `kv_retention`."""
    eviction_policy: str = DEFAULT_POLICY
    """Which cached blocks go first where blocks are short, by its name in `cache.evictions`."""
    tenant_quotas: Mapping[str, str] | None = None
    """By tenant, like floor=10%,cap=4000,weight=2: blocks, or a share of them, that are its own
    whoever else wants them; most that it has; its part of steps and seats beside others'."""
    max_num_batched_tokens: int | None = None
    """Tokens that go through the model in one step. None: 512 on a CPU, 8192 on a GPU of 70 GiB or
    more, but for the A100, and 2048 on others."""
    max_num_seqs: int | None = None
    """Sequences that run at once. None: 128 on a CPU, 1024 or 256 on GPUs, large and others."""
    scheduling_policy: str = "fcfs"
    """In which order requests wait: fcfs, as they came, or priority, the lowest number first."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one sequence in a step; 0: no bound but the step's own."""
    seed: int = 0
    """Where the draws of requests without a seed of their own start."""
    threads: int | None = None
    """Threads that compute; None: one for each core that this process may use."""
    kv_tier: str | Tier | Sequence[str | Tier] | None = field(default=None, repr=False)
    """Where blocks are kept beside the pool, the nearest first: like disk:PATH,size=20GiB,
    redis://host:6379/0, s3://bucket/prefix, or a `Tier` of one's own."""
    kv_tier_key_file: str | None = None
    """A file with the secret that frames on shared tiers, redis and s3, and exported sessions are
    sealed with."""
    kv_offloading_size: float | None = None
    """GiB of main memory that blocks of a GPU are kept in; None: none."""
    kv_offloading_backend: str = "native"
    """What keeps them there: Pagoda itself."""
    enforce_eager: bool = False
    """No CUDA graphs: a GPU is given each kernel of a step anew."""
    cudagraph_capture_sizes: Sequence[int] | None = None
    """Numbers of sequences that a CUDA graph is captured for; smaller batches are padded to the
    next. None: 1, 2, 4, and every eighth up to `max_num_seqs` or 512; none at all: no graphs."""
    special_tokens_in_chats: bool = False
    """Text of special tokens in the messages of a chat becomes those tokens, as with transformers;
    otherwise it stays text, and nobody can write another one's turn."""
    served_model_name: str | Sequence[str] | None = None
    """Names by which clients may ask for the model; answers and metrics have the first. None: the
    model's own."""

    @property
    def served_model_names(self) -> tuple[str, ...]:
        """As a tuple, empty where they are the model's own."""
        given = self.served_model_name or ()
        return (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))

    @property
    def cache_formats(self) -> CacheFormats:
        """What they say of how K and V are stored."""
        return CacheFormats(self.kv_cache_dtype, tuple(self.kv_cache_dtype_skip_layers or ()))

    @property
    def cache_size(self) -> CacheSize:
        """What they say of the size of the cache."""
        return CacheSize(
            self.num_gpu_blocks_override, self.kv_cache_memory_bytes, self.gpu_memory_utilization
        )

    @property
    def kv_tiers(self) -> tuple[TierOption | Tier, ...]:
        """The tiers, read; what `kv_offloading_size` asks for comes first."""
        given = self._given_tiers
        tiers = [parse_tier(each) if isinstance(each, str) else each for each in given]
        if self.kv_offloading_size is not None:
            size_bytes = round(self.kv_offloading_size * 2**30)
            tiers.insert(0, parse_tier(f"host:size={size_bytes}"))
        return tuple(tiers)

    @property
    def kv_tier_form(self) -> str | None:
        """The lossy form that blocks lie in on every tier; None: as they are, or none leaves the
        pool."""
        if not self.enable_prefix_caching:
            return None
        forms = {each.form for each in self.kv_tiers if isinstance(each, TierOption)}
        return next(iter(forms), None)

    @property
    def _given_tiers(self) -> Sequence[str | Tier]:
        given = [self.kv_tier] if isinstance(self.kv_tier, str) else self.kv_tier or ()
        return given if isinstance(given, Sequence) else [given]

    def as_told(self) -> dict[str, object]:
        """By name, for people and programs to see: without the passwords of tiers."""
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        if self.kv_tier is not None:
            told["kv_tier"] = [without_credentials(str(each)) for each in self._given_tiers]
        return told

    @property
    def retention(self) -> AttentionWindow:
        """What is kept of a sequence that does not say it."""
        return parse_retention(self.kv_retention)

    def __post_init__(self) -> None:
        _require_whole("block_size", self.block_size, 1)
        parse_retention(self.kv_retention)
        parse_quotas(self.tenant_quotas)
        for name in (
            "max_model_len", "kv_cache_memory_bytes", "num_gpu_blocks_override",
            "max_num_batched_tokens", "max_num_seqs", "threads",
        ):  # fmt: skip
            if getattr(self, name) is not None:
                _require_whole(name, getattr(self, name), 1)
        _require_whole("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        _require_whole("seed", self.seed, 0)
        _require_share("gpu_memory_utilization", self.gpu_memory_utilization)
        _require_one_of("device", self.device, DEVICES)
        _require_one_of("dtype", self.dtype, DTYPES)
        if self.quantization is not None:
            _require_one_of("quantization", self.quantization, QUANTIZATIONS, _OWN_SCHEME)
        _require_one_of("activation_dtype", self.activation_dtype, ACTIVATION_DTYPES)
        _require_one_of("scheduling_policy", self.scheduling_policy, tuple(POLICIES))
        _require_one_of("eviction_policy", self.eviction_policy, tuple(EVICTION_POLICIES))
        for name in (
            "enable_prefix_caching",
            "enforce_eager",
            "special_tokens_in_chats",
            "request_kv_retention",
        ):
            if not isinstance(getattr(self, name), bool):
                raise InvalidOptionError(name, getattr(self, name), "must be true or false")
        _require_numbers("cudagraph_capture_sizes", self.cudagraph_capture_sizes, 1)
        if not isinstance(self.kv_cache_dtype, str):
            raise InvalidOptionError("kv_cache_dtype", self.kv_cache_dtype, "must be a string")
        if self.kv_cache_dtype_skip_layers is not None:
            SkippedLayers.read(self.kv_cache_dtype_skip_layers)
        if self.device == "cpu":
            self.require_done_by(CPUPolicy())
        else:  # which device it is tells PyTorch alone, and that takes seconds to load
            self.cache_formats.require_one_of(STORED_FORMATS, "CPU or a GPU")
        for name in ("model", "revision"):
            if not isinstance(getattr(self, name), str | None):
                raise InvalidOptionError(name, getattr(self, name), "must be a string")
        _require_names("served_model_name", self.served_model_name)
        self._require_tiers()

    def require_done_by(self, policy: DevicePolicy) -> None:
        """Raises `InvalidOptionError` for a dtype, a quantisation or a format that a kind of device
        does not do."""
        policy.require_dtype(self.dtype)
        policy.require_quantization(self.quantization, self.dtype)
        self.cache_formats.require_one_of(policy.cache_formats(self.dtype), policy.kind)

    def _require_tiers(self) -> None:
        if self.kv_offloading_size is not None:
            _require_positive("kv_offloading_size", self.kv_offloading_size)
        _require_one_of("kv_offloading_backend", self.kv_offloading_backend, ("native",))
        if not isinstance(self.kv_tier_key_file, str | None):
            raise InvalidOptionError("kv_tier_key_file", self.kv_tier_key_file, "must be a path")
        places = [tier.place for tier in self.kv_tiers if isinstance(tier, TierOption)]
        for tier in self.kv_tiers:
            of_option = isinstance(tier, TierOption)
            if not of_option and (isinstance(tier, type) or not isinstance(tier, Tier)):
                raise InvalidOptionError("kv_tier", tier, "must be a string or a Tier")
            shared = is_shared(tier) if isinstance(tier, TierOption) else tier.is_shared
            if shared and self.kv_tier_key_file is None:
                raise InvalidOptionError("kv_tier", str(tier), _NEEDS_KEY)
            if isinstance(tier, TierOption) and places.count(tier.place) > 1:
                raise InvalidOptionError("kv_tier", str(tier), "is named twice: once is enough")
        self._require_one_form()

    def _require_one_form(self) -> None:
        """What went through a lossy form is never stored as if it had been computed."""
        forms = {each.form if isinstance(each, TierOption) else None for each in self.kv_tiers}
        if forms <= {None}:
            return
        told = ", ".join(sorted(each or "none" for each in forms))
        if len(forms) > 1:
            raise InvalidOptionError(FORM_FIELD, told, _ONE_FORM)
        if not self.retention.is_full or self.request_kv_retention:
            limit = "undoes the positions of whole prompts; leave kv_retention out"
            raise InvalidOptionError(FORM_FIELD, told, limit)


def _require_whole(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InvalidOptionError(name, value, f"must be a whole number of at least {low}")


def _require_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 2**20:
        raise InvalidOptionError(name, value, "must be a number of GiB above 0")


def _require_numbers(name: str, value: object, low: int) -> None:
    if value is None:
        return
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidOptionError(name, value, "must be a list of whole numbers")
    for number in value:
        _require_whole(name, number, low)


def _require_names(name: str, value: object) -> None:
    names = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        raise InvalidOptionError(name, value, "must be a string, or a list of strings")


def _require_share(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise InvalidOptionError(name, value, "must be a number above 0 and at most 1")


def _require_one_of(name: str, value: object, known: tuple[str, ...], more: str = "") -> None:
    if not isinstance(value, str) or value not in known:
        raise InvalidOptionError(name, value, f"one of {', '.join(known)}{more}")
