"""Small random decoders and batches for the tests of execution, and how they are run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
from expert_layers import some_weights

from pagoda.cache import AttentionWindow
from pagoda.cache.window import FULL_ATTENTION
from pagoda.execution.batch import Batch, GroupPages
from pagoda.models.decoder import (
    PARALLEL_NORM,
    POST_NORM,
    SANDWICH_NORM,
    Activation,
    AttentionSpec,
    DecoderLayer,
    DecoderSpec,
    ExpertsSpec,
    MLPSpec,
    NormPlacement,
    NormSpec,
    QKNorm,
    RopeSpec,
)
from pagoda.models.expert_weights import ExpertsWeights
from pagoda.models.names import HUGGING_FACE_NAMES, ExpertNames
from pagoda.models.part import Parts
from pagoda.models.weight_parts import DecoderParts
from pagoda.models.weights import DecoderWeights, LayerWeights
from pagoda.storage.block_storage import BlockStorage

NAMES = replace(HUGGING_FACE_NAMES, experts=ExpertNames("router", "down", "gate", "up"))


def rope_spec(head_dim: int, base: float = 10_000.0) -> RopeSpec:
    return RopeSpec(tuple(base ** (-i / head_dim) for i in range(0, head_dim, 2)))


def decoder_spec(
    layers: Sequence[AttentionSpec], hidden_size: int = 48, vocab_size: int = 97
) -> DecoderSpec:
    return DecoderSpec(
        architecture="TestForCausalLM",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        layers=tuple(DecoderLayer(attention, MLPSpec(80)) for attention in layers),
        norm=NormSpec(1e-5),
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        dtype="float32",
    )


def placed(spec: DecoderSpec, *norms: NormPlacement, **changes: Any) -> DecoderSpec:
    """The decoder with another placement of each layer's norms, and other changes of layers."""
    pairs = zip(spec.layers, norms, strict=True)
    layers = tuple(replace(layer, norms=own, **changes) for layer, own in pairs)
    return replace(spec, layers=layers)


def varied_spec(first: AttentionSpec, second: AttentionSpec, third: AttentionSpec) -> DecoderSpec:
    """A decoder that has at once all that families differ in beside their attention.

    Of each layer other norms are there; the first norms its queries and keys as rows.
    """
    spec = decoder_spec([replace(first, qk_norm=QKNorm.ROW), second, third])
    spec = placed(
        spec, SANDWICH_NORM, POST_NORM, PARALLEL_NORM,
        mlp=MLPSpec(80, Activation.GELU_TANH), residual_scale=0.4,
    )  # fmt: skip
    return replace(
        spec,
        norm=NormSpec(1e-5, is_centred=True, weight_offset=1.0),
        embedding_scale=3.0,
        logit_scale=0.25,
        logit_cap=2.0,
    )


def random_weights(
    spec: DecoderSpec, dtype: torch.dtype = torch.float32, seed: int = 0
) -> DecoderWeights:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float = 0.2, mean: float = 0.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * std + mean).to(dtype)

    def merged(field: str, parts: Parts) -> torch.Tensor | None:
        if not parts:
            return None
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        if field == "sink_logits":
            return normal(*shape, std=1.0, mean=1.0)
        return normal(*shape, mean=norm_mean if field.endswith("norm") else 0.0)

    hidden, norm_mean = spec.hidden_size, 1.0 - spec.norm.weight_offset
    torch.manual_seed(seed)
    layers = [
        LayerWeights(
            **{field: merged(field, parts) for field, parts in parts.own.items()},
            experts=some_weights(layer.mlp, hidden, dtype)
            if isinstance(layer.mlp, ExpertsSpec)
            else None,
        )
        for layer, parts in zip(spec.layers, DecoderParts.of(spec, NAMES).layers, strict=True)
    ]
    embedding = normal(spec.vocab_size, hidden, std=0.5)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layers),
        final_norm=normal((1 + spec.norm.is_shifted) * hidden, mean=norm_mean),
        lm_head=embedding,
        logit_bias=normal(spec.vocab_size) if spec.logit_bias else None,
    )


def on_device(weights: DecoderWeights, device: torch.device) -> DecoderWeights:
    """The same weights there; those that are tied stay so."""

    def moved(item: object) -> object:
        if isinstance(item, tuple):  # of experts: one behind the other, as `GPUMemory` has them
            return tuple(torch.stack(item).to(device))
        if isinstance(item, ExpertsWeights):
            return ExpertsWeights(**all_moved(item))
        return item.to(device) if isinstance(item, torch.Tensor) else item

    def all_moved(weights: LayerWeights | ExpertsWeights) -> dict[str, Any]:
        return {item.name: moved(getattr(weights, item.name)) for item in fields(weights)}

    layers = [LayerWeights(**all_moved(layer)) for layer in weights.layers]
    embedding = weights.embedding.to(device)
    assert weights.lm_head is weights.embedding
    final_norm, bias = weights.final_norm.to(device), moved(weights.logit_bias)
    return DecoderWeights(embedding, tuple(layers), final_norm, embedding, bias)


@dataclass
class PagedSequence:
    """A sequence whose blocks were handed out in random order."""

    token_ids: list[int]
    block_ids: list[int]
    """Of the first group."""
    num_computed: int = 0
    more_block_ids: list[list[int]] = field(default_factory=list)
    """Of the others."""

    @property
    def left(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def tables(self) -> list[list[int]]:
        """Of all groups."""
        return [self.block_ids, *self.more_block_ids]


@dataclass
class Pager:
    """Hands out blocks at random and builds batches, as an engine would."""

    block_size: int
    num_blocks: int
    windows: tuple[AttentionWindow, ...] = (FULL_ATTENTION,)
    """Of the cache's groups; every block is kept."""
    free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.free = np.random.default_rng(0).permutation(self.num_blocks).tolist()

    def sequence(self, token_ids: Sequence[int]) -> PagedSequence:
        num_blocks = -(-len(token_ids) // self.block_size)
        first, *more = ([self.free.pop() for _ in range(num_blocks)] for _ in self.windows)
        return PagedSequence(list(token_ids), first, more_block_ids=more)

    def batch(self, steps: Sequence[tuple[PagedSequence, int]]) -> Batch:
        """The next tokens of each sequence, which then count as computed; logits of every row."""
        token_ids: list[int] = []
        positions: list[int] = []
        starts, contexts = [0], []
        for sequence, count in steps:
            span = range(sequence.num_computed, sequence.num_computed + count)
            token_ids += sequence.token_ids[span.start : span.stop]
            positions += span
            sequence.num_computed += count
            starts.append(starts[-1] + count)
            contexts.append(sequence.num_computed)
        return Batch(
            token_ids=np.array(token_ids, np.int64),
            positions=np.array(positions, np.int32),
            query_starts=np.array(starts, np.int32),
            context_lens=np.array(contexts, np.int32),
            groups=tuple(self.pages(group, steps) for group in range(len(self.windows))),
            logit_rows=np.arange(len(token_ids)),
            copy_sources=np.empty(0, np.int64),
            copy_targets=np.empty(0, np.int64),
        )

    def pages(self, group: int, steps: Sequence[tuple[PagedSequence, int]]) -> GroupPages:
        """Those of one group, for steps that count as computed."""
        size, window = self.block_size, self.windows[group]
        tables = [sequence.tables[group] for sequence, _ in steps]
        padded = np.zeros((len(steps), max(map(len, tables))), np.int32)
        slots: list[int] = []
        for row, (table, (sequence, count)) in enumerate(zip(tables, steps, strict=True)):
            padded[row, : len(table)] = table
            span = range(sequence.num_computed - count, sequence.num_computed)
            slots += [table[i // size] * size + i % size for i in span]
        windows = np.array([(window.window, window.sinks)] * len(steps), np.int32)
        return GroupPages(padded, np.array(slots, np.int64), windows)


def let_go(batch: Batch, windows: tuple[AttentionWindow, ...], storage: BlockStorage) -> Batch:
    """The batch with holes in the tables, whose blocks are spoiled."""
    lowest = batch.positions[batch.query_starts[:-1]]
    for pages, window in zip(batch.groups, windows, strict=True):
        for table, position in zip(pages.block_tables, lowest.tolist(), strict=True):
            for number in window.unseen_blocks(position, storage.block_size):
                if table[number] >= 0:
                    spoiled = np.full(storage.spec.block_bytes, 255, np.uint8)  # NaN, as floats
                    storage.import_block(int(table[number]), spoiled)
                table[number] = -1
    return batch


class Executor(Protocol):
    """What all executors promise; `test_executors.py` holds them to it."""

    @property
    def storage(self) -> BlockStorage: ...

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits of batch.logit_rows, float32, in memory that the next call may use again."""
        ...

    def warm_up(self) -> None:
        """Compile what steps need. No block changes."""
        ...


def run(
    executor: Executor,
    pager: Pager,
    token_ids: Sequence[int],
    chunks: Sequence[int],
    others: Sequence[Sequence[int]] = (),
    pace: int = 1,
) -> torch.Tensor:
    """Logits of one sequence given in chunks, perhaps among others in chunks of their own.

    Of the others the first has `pace` tokens in a step, each next one three more.
    """
    sequence = pager.sequence(token_ids)
    beside = [pager.sequence(other) for other in others]
    outputs = []
    for size in chunks:
        steps = [(other, min(pace + 3 * i, other.left)) for i, other in enumerate(beside)]
        steps = [(other, count) for other, count in steps if count]
        place = len(steps) // 2
        before = sum(count for _, count in steps[:place])
        batch = pager.batch([*steps[:place], (sequence, size), *steps[place:]])
        outputs.append(executor.forward(batch)[before : before + size].clone())
    return torch.cat(outputs).cpu()


def tokens(count: int, seed: int = 0, vocab_size: int = 97) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, vocab_size, count).tolist()
    return found
