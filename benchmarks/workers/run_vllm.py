"""vLLM's CPU build as a worker of `benchmarks/peers.py`: its threads bound to the cores."""

from __future__ import annotations

import os

from worker_loop import KV_CACHE_BYTES, MAX_MODEL_LEN, MAX_NUM_SEQS, Work, serve


class VLLM:
    def __init__(self, model: str) -> None:
        cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = cores
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(KV_CACHE_BYTES // 2**30)
        import vllm

        self.version = vllm.__version__
        self._params = vllm.SamplingParams
        self._llm = vllm.LLM(
            model,
            dtype="bfloat16",
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=MAX_NUM_SEQS,
            enable_prefix_caching=True,
        )

    def reset(self) -> None:
        assert self._llm.reset_prefix_cache() is not False

    def run(self, work: Work) -> int:
        prompts = [{"prompt_token_ids": ids} for ids, _ in work]
        params = [self._params(temperature=0, max_tokens=n, ignore_eos=True) for _, n in work]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)


if __name__ == "__main__":
    serve(VLLM)
