"""The largest step on a GPU, run once on a cache of one block to see what it takes.

What the cache may take is found out, not guessed: the step is run, its CUDA graphs are captured,
and all is given back before the cache is made. A capture takes a fraction of a second a graph, and
what a driver takes for one cannot be known otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pagoda.cache.spec import CacheSpec
from pagoda.engine.devices.gpu_meter import Meter
from pagoda.engine.options import EngineOptions
from pagoda.engine.sampling.gpu_sampler import GPUSampler
from pagoda.engine.sampling.row import SamplingRow
from pagoda.engine.sampling.sampler import Sampler
from pagoda.execution.gpu.executor import GPUExecutor
from pagoda.execution.gpu.graphs import Capture
from pagoda.execution.gpu.trial import largest_batch
from pagoda.models.decoder import DecoderSpec
from pagoda.models.weights import DecoderWeights
from pagoda.request import SamplingParams
from pagoda.sizing.gpu_memory import GPUUsage, MemoryProfile
from pagoda.sizing.graph_sizes import default_sizes, usable_sizes
from pagoda.sizing.step_limits import MAX_PROMPT_LOGIT_ROWS, StepLimits
from pagoda.storage.gpu_storage import GPUStorage

_COSTLY_TOP = 20
_COSTLY_ROW = SamplingRow(
    SamplingParams(temperature=1.0, top_p=0.9, presence_penalty=1.0, logprobs=_COSTLY_TOP),
    seed=0,
    prompt_token_ids=(0,),
    output_token_ids=(0,),
    stop_token_ids=frozenset(),
)
"""What takes the sampler the most memory: changed logits, a whole vocabulary ranked."""


@dataclass(frozen=True, slots=True)
class GPUSteps:
    """What the steps of one engine are made of, but for its cache."""

    spec: DecoderSpec
    weights: DecoderWeights[torch.Tensor]
    max_model_len: int
    limits: StepLimits
    graph_sizes: Sequence[int]
    """Batches of one token a sequence are padded to these, with graphs or without."""
    new_capture: Callable[[], Capture] | None
    """None: no graphs."""
    narrowed: bool = False
    """Requests may see less than the cache's layers do."""

    def executor(self, storage: GPUStorage) -> GPUExecutor:
        """What runs them on that cache; nothing is compiled or captured yet."""
        return GPUExecutor(
            self.spec,
            self.weights,
            storage,
            self.max_model_len,
            self.graph_sizes,
            capture=None if self.new_capture is None else self.new_capture(),
            max_num_tokens=self.limits.max_num_batched_tokens,
            max_num_seqs=self.limits.max_num_seqs,
            max_prompt_logit_rows=MAX_PROMPT_LOGIT_ROWS,
            narrowed=self.narrowed,
        )

    def profile(
        self, cache: CacheSpec, device: torch.device, meter: Meter, at_start: GPUUsage
    ) -> MemoryProfile:
        """Run and sample the largest step, and capture graphs, on a cache of one block.

        `at_start` was in use before the engine began.
        """
        before = meter.usage()
        meter.start_peak()
        executor = self.executor(GPUStorage(cache, 1, device))
        batch = largest_batch(
            self.limits.max_num_batched_tokens,
            self.limits.max_num_seqs,
            self.max_model_len,
            cache.block_size,
            MAX_PROMPT_LOGIT_ROWS,
            len(cache.groups),
        )
        _read_each_row(executor.forward(batch), len(batch.context_lens))
        peak_bytes = meter.peak_bytes() - before.allocated_bytes
        without_graphs = meter.usage()
        executor.warm_up()
        graphs_bytes = without_graphs.free_bytes - meter.usage().free_bytes
        del executor
        meter.settle()
        return MemoryProfile(
            total_bytes=before.total_bytes,
            weights_bytes=self.weights.size_bytes,
            others_bytes=max(0, before.allocated_bytes - self.weights.size_bytes),
            peak_bytes=peak_bytes,
            graphs_bytes=max(0, graphs_bytes),
            outside_bytes=max(0, without_graphs.outside_bytes - at_start.outside_bytes),
        )


def graph_sizes(options: EngineOptions, limits: StepLimits) -> Sequence[int]:
    """What batches of one token a sequence are padded to, with graphs or without."""
    if options.cudagraph_capture_sizes is None:
        return default_sizes(limits.max_num_seqs)
    return usable_sizes(options.cudagraph_capture_sizes, limits.max_num_seqs)


def draw_each_way(sampler: Sampler, logits: torch.Tensor) -> None:
    """Have PyTorch load the kernels of greedy, plain and filtered draws."""
    rows = [
        SamplingRow(params, 0, (), (), frozenset())
        for params in (
            SamplingParams(temperature=0),
            SamplingParams(temperature=1.0),
            SamplingParams(temperature=1.0, top_k=1),
        )
    ]
    for row in (*rows, _COSTLY_ROW):
        sampler.begin(logits, [row], [0]).wait()


def _read_each_row(logits: torch.Tensor, num_drawn: int) -> None:
    """Draw from so many rows, and have the others' log-probabilities told."""
    logits.zero_()  # of numbers that mean nothing
    sampler = GPUSampler()
    prompts = logits[num_drawn:]
    if len(prompts):
        sampler.token_logprobs(prompts, [0] * len(prompts), _COSTLY_TOP)
    # Between rows of prompts, the engine picks out those to draw from.
    drawn = torch.stack(list(logits[:num_drawn]))
    sampler.begin(drawn, [_COSTLY_ROW] * num_drawn, [0] * num_drawn).wait()
