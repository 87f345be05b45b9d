"""transformers over the very weights of a Pagoda model: its modules hold views of them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig

from pagoda.models.decoder import DecoderSpec
from pagoda.models.names import HUGGING_FACE_NAMES, WeightNames
from pagoda.models.weight_parts import DecoderParts
from pagoda.models.weights import DecoderWeights
from pagoda.roofline import Work, WorkItem

_PATIENCE_SECONDS = 300
"""For continuous batching, which runs in a thread of its own."""


class TransformersPeer:
    """A model of transformers in the shape and with the weights of another."""

    version = transformers.__version__

    def __init__(
        self,
        values: Mapping[str, Any],
        spec: DecoderSpec,
        weights: DecoderWeights,
        paged: Mapping[str, Any],
    ) -> None:
        """`paged`: fields of its ContinuousBatchingConfig; those not given it finds out itself."""
        config = transformers.AutoConfig.for_model(**values)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(
                config, dtype=weights.dtype, attn_implementation="sdpa"
            )
        tensors = dict(_named(spec, weights, HUGGING_FACE_NAMES))
        model.load_state_dict(tensors, strict=not spec.tie_word_embeddings, assign=True)
        model.tie_weights()
        self.device = weights.embedding.device
        self.vocab_size = spec.vocab_size
        # its angles are no weights, and were never made on a device without memory
        rotary = type(model.model.rotary_emb)(config=model.config)
        model.model.rotary_emb = rotary.to(self.device)
        self._model = model.eval()
        self._paged = dict(paged)

    @torch.no_grad()
    def generate(self, work: Work, most_tokens: int, *, static: bool = False) -> list[list[int]]:
        """The outputs of `generate`, in static batches of up to `most_tokens` with their outputs.

        Prompts are padded to the longest of a batch, and all go on until the longest output is
        made; what nobody asked for is cut off. `static` is a cache of fixed shape, for which
        transformers compiles the model.
        """
        outputs: list[list[int]] = []
        for batch in batches(work, most_tokens):
            outputs += self._generate_batch(batch, static)
        return outputs

    def _generate_batch(self, batch: Work, static: bool) -> list[list[int]]:
        width = max(len(item.prompt_token_ids) for item in batch)
        most = max(item.num_output_tokens for item in batch)
        padded = [
            [0] * (width - len(item.prompt_token_ids)) + list(item.prompt_token_ids)
            for item in batch
        ]
        ids = torch.tensor(padded, device=self.device)
        lengths = torch.tensor([len(item.prompt_token_ids) for item in batch], device=self.device)
        mask = torch.arange(width, device=self.device) >= width - lengths[:, None]
        more = {"cache_implementation": "static"} if static else {}
        made = self._model.generate(
            ids,
            attention_mask=mask.long(),
            generation_config=_exactly(most, min_new_tokens=most, **more),
        )[:, width:].tolist()
        return [tokens[: item.num_output_tokens] for tokens, item in zip(made, batch, strict=True)]

    @contextmanager
    def continuous_batching(self) -> Iterator[ContinuousBatching]:
        """Its own paged cache and scheduler, ready to take requests until the block ends."""
        with (
            warnings.catch_warnings(action="ignore"),
            torch.no_grad(),
            self._model.continuous_batching_context_manager(
                generation_config=_exactly(1, eos_token_id=-1),
                continuous_batching_config=ContinuousBatchingConfig(**self._paged),
                block=True,
                timeout=30,
            ) as manager,
        ):
            yield ContinuousBatching(manager)


class ContinuousBatching:
    """A running manager of transformers."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def run(self, work: Work) -> list[list[int]]:
        """Submit all at once; their outputs. Raises RuntimeError if one fails."""
        order = [
            self._manager.add_request(
                list(item.prompt_token_ids), max_new_tokens=item.num_output_tokens
            )
            for item in work
        ]
        made: dict[str, list[int]] = {}
        deadline = time.perf_counter() + _PATIENCE_SECONDS
        while len(made) < len(work):
            result = self._manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                if result.error is not None:
                    raise RuntimeError(f"continuous batching: {result.error}")
                made[result.request_id] = result.generated_tokens
            elif not self._manager.is_running():
                raise RuntimeError("continuous batching ended before its requests")
            elif time.perf_counter() > deadline:
                raise RuntimeError(f"no answer within {_PATIENCE_SECONDS} s")
        return [made[request_id] for request_id in order]


def batches(work: Work, most_tokens: int) -> Iterator[list[WorkItem]]:
    """In order, each as many as fit when all are as long as the longest of them."""
    batch: list[WorkItem] = []
    for item in work:
        if batch and _padded_tokens([*batch, item]) > most_tokens:
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _padded_tokens(batch: Work) -> int:
    longest = max(len(item.prompt_token_ids) for item in batch)
    return len(batch) * (longest + max(item.num_output_tokens for item in batch))


def _exactly(num_tokens: int, **more: Any) -> GenerationConfig:
    """Greedy, and no end before `num_tokens`."""
    return GenerationConfig(do_sample=False, max_new_tokens=num_tokens, pad_token_id=0, **more)


def _named(
    spec: DecoderSpec, weights: DecoderWeights, names: WeightNames
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor under transformers' name; parts of merged ones are views."""
    yield names.embedding, weights.embedding
    yield names.final_norm, weights.final_norm
    if not spec.tie_word_embeddings:
        yield names.lm_head, weights.lm_head
    for layer, own in zip(DecoderParts.of(spec, names).layers, weights.layers, strict=True):
        for field, parts in layer.own.items():
            if parts:
                views = getattr(own, field).split([part.shape[0] for part in parts])
                yield from zip((part.name for part in parts), views, strict=True)
