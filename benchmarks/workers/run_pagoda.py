"""Pagoda as a worker of `benchmarks/peers.py` and `benchmarks/stored_speed.py`."""

from __future__ import annotations

import json

from worker_loop import KV_CACHE_BYTES, MAX_MODEL_LEN, Work, serve

from pagoda import LLM, SamplingParams, __version__
from pagoda.engine.build import assemble, load_model
from pagoda.engine.options import EngineOptions


class Pagoda:
    version = __version__

    def __init__(self, model: str, options: str = '{"quantization": "none"}') -> None:
        """`options` of the engine, as JSON; without them it has the model as the others do."""
        checked = EngineOptions(
            model=model,
            dtype="bfloat16",
            max_model_len=MAX_MODEL_LEN,
            kv_cache_memory_bytes=KV_CACHE_BYTES,
            **json.loads(options),
        )
        engine, running = assemble(load_model(checked), checked)
        self._llm, self._chores = LLM.from_engine(engine), running.chores

    def reset(self) -> None:
        """The first time it has the system provide the cache's memory, as an idle server does.

        Peers have filled theirs before they are ready, which an engine of ours is without it.
        """
        for _ in self._chores:
            pass
        self._llm.reset_prefix_cache()

    def run(self, work: Work) -> int:
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in work]
        outputs = self._llm.generate([ids for ids, _ in work], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)


if __name__ == "__main__":
    serve(Pagoda)
