"""OpenVINO GenAI's continuous batching as a worker of `benchmarks/peers.py`."""

from __future__ import annotations

import numpy as np
import openvino
import openvino_genai
from worker_loop import KV_CACHE_BYTES, MAX_NUM_SEQS, Work, serve


class OpenVINO:
    version = openvino_genai.__version__

    def __init__(self, model: str) -> None:
        self._model = model
        self._pipeline = self._build()

    def _build(self) -> openvino_genai.ContinuousBatchingPipeline:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = KV_CACHE_BYTES // 2**30
        scheduler.max_num_batched_tokens = 2048
        scheduler.max_num_seqs = MAX_NUM_SEQS
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        precision = {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "bf16"}
        return openvino_genai.ContinuousBatchingPipeline(self._model, scheduler, "CPU", precision)

    def reset(self) -> None:
        # No call empties the prefix cache. The old pipeline goes first: two take twice the memory.
        self._pipeline = None
        self._pipeline = self._build()

    def run(self, work: Work) -> int:
        prompts = [openvino.Tensor(np.array([ids], dtype=np.int64)) for ids, _ in work]
        results = self._pipeline.generate(prompts, [_exactly(count) for _, count in work])
        return sum(len(result.m_generation_ids[0]) for result in results)


def _exactly(num_tokens: int) -> openvino_genai.GenerationConfig:
    """Greedy, and no end before `num_tokens`."""
    config = openvino_genai.GenerationConfig()
    config.do_sample = False
    config.ignore_eos = True
    config.min_new_tokens = config.max_new_tokens = num_tokens
    return config


if __name__ == "__main__":
    serve(OpenVINO)
