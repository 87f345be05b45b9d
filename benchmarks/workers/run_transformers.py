"""transformers as a worker of `benchmarks/peers.py`: one request after the other."""

from __future__ import annotations

import torch
import transformers
from worker_loop import Work, serve


class Transformers:
    version = transformers.__version__

    def __init__(self, model: str) -> None:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        self._model = loaded.eval()

    def reset(self) -> None:
        """There is no prefix cache."""

    @torch.inference_mode()
    def run(self, work: Work) -> int:
        return sum(self._generate(ids, count) for ids, count in work)

    def _generate(self, ids: list[int], count: int) -> int:
        prompt = torch.tensor([ids])
        answer = self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            min_new_tokens=count,
            max_new_tokens=count,
        )
        return answer.shape[1] - len(ids)


if __name__ == "__main__":
    serve(Transformers)
