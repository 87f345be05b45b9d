"""The least time in which a machine could do some work, from its limits alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from pagoda.cache.spec import WindowedLayer
from pagoda.models.decoder import DecoderLayer, DecoderSpec, MLPSpec
from pagoda.roofline.workloads import Work, WorkItem

WeightBytes = Callable[[int], int]
"""Bytes of weights that a step of so many tokens reads."""


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """What a machine was seen to do at its best."""

    read_bandwidth: float
    """Bytes a second read from memory; of a GPU, read and written while it copies."""
    product_rate: float
    """Operations a second of matrix products; a multiplication and an addition are two."""

    def best_of(self, other: MachineLimits) -> MachineLimits:
        """The higher of both figures: other work on the machine only ever lowers them."""
        return MachineLimits(
            max(self.read_bandwidth, other.read_bandwidth),
            max(self.product_rate, other.product_rate),
        )


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one forward pass cannot do without."""

    read_bytes: int
    operations: int

    def seconds(self, limits: MachineLimits) -> float:
        """Reading and computing go on at once: the longer of the two."""
        return max(
            self.read_bytes / limits.read_bandwidth,
            self.operations / limits.product_rate,
        )


@dataclass(frozen=True, slots=True)
class Span:
    """Positions `start` to `stop - 1` of one request, computed in a step.

    |<-- shared: counted with another request -->|<-- kept by earlier steps -->|<-- computed -->|
    0                                         shared                         start            stop
    """

    shared: int
    start: int
    stop: int


def roofline_seconds(
    spec: DecoderSpec,
    formats: str | Sequence[str],
    weight_bytes: WeightBytes,
    work: Work,
    limits: MachineLimits,
) -> float:
    """Seconds that `work` takes if each step takes what reading or computing takes alone.

        roofline   = sum over steps of max(bytes / read_bandwidth, operations / product_rate)
        bytes      = `weight_bytes`, what a step of so many tokens reads of weights as they are held
                   + K and V that earlier steps left, read once for all requests that share them
        operations = 2 × values of the layers' matrices × tokens computed
                   + 2 × hidden_size × vocab_size × tokens sampled
                   + 4 × heads × head_dim × tokens attended to, for each token and layer

    The first step computes every distinct prompt token and samples one token a request; each later
    one adds a token to every request that wants more. So nothing is computed twice, nor read twice
    in a step, and the whole prompt counts as one step: where long prompts and growing answers are
    mixed, an engine that computes while it reads could go a little below.

    `formats`: how K and V are stored, of all layers or each. All that is written is left out.
    """
    return sum(cost.seconds(limits) for cost in step_costs(spec, formats, weight_bytes, work))


def step_costs(
    spec: DecoderSpec, formats: str | Sequence[str], weight_bytes: WeightBytes, work: Work
) -> Iterator[StepCost]:
    """What each step of `roofline_seconds` costs."""
    ordered = sorted(work, key=lambda item: item.prompt_token_ids)
    shared = _shared_with_previous(ordered)
    layers = Counter(zip(spec.layers, spec.cache_spec(1, formats).layers, strict=True))
    prompts = [
        Span(common, common, len(item.prompt_token_ids))
        for item, common in zip(ordered, shared, strict=True)
    ]
    yield _step_cost(spec, layers, weight_bytes, prompts, num_sampled=len(work))
    for num_made in range(1, max(item.num_output_tokens for item in work)):
        spans = _decode_spans(ordered, shared, num_made)
        yield _step_cost(spec, layers, weight_bytes, spans, num_sampled=len(spans))


def _shared_with_previous(ordered: Sequence[WorkItem]) -> list[int]:
    """Tokens at the beginning of each prompt that the one before it begins with too."""
    prompts = [item.prompt_token_ids for item in ordered]
    return [0, *(_num_common(before, prompt) for before, prompt in pairwise(prompts))]


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same)


def _decode_spans(ordered: Sequence[WorkItem], shared: Sequence[int], num_made: int) -> list[Span]:
    """The next token of every request that wants more than the `num_made` it has."""
    spans: list[Span] = []
    common = 0
    for item, with_previous in zip(ordered, shared, strict=True):
        # With the last request that is still running, past those that are not.
        common = min(common, with_previous)
        if item.num_output_tokens > num_made:
            start = len(item.prompt_token_ids) + num_made - 1
            spans.append(Span(common, start, start + 1))
            common = len(item.prompt_token_ids)
    return spans


def _step_cost(
    spec: DecoderSpec,
    layers: Counter[tuple[DecoderLayer, WindowedLayer]],
    weight_bytes: WeightBytes,
    spans: Sequence[Span],
    num_sampled: int,
) -> StepCost:
    num_computed = sum(span.stop - span.start for span in spans)
    read_bytes = weight_bytes(num_computed)
    operations = 2 * spec.hidden_size * spec.vocab_size * num_sampled
    for (layer, kv), count in layers.items():
        values = _matrix_values(layer, spec.hidden_size)
        attention = layer.attention
        window = kv.window.window
        kept = sum(min(span.start - span.shared, window) for span in spans)
        attended = sum(_attended(span, window) for span in spans)
        read_bytes += count * kv.block_bytes(kept)
        operations += count * (
            2 * values * num_computed + 2 * attention.num_heads * attention.pair_size * attended
        )
    return StepCost(read_bytes, operations)


def _matrix_values(layer: DecoderLayer, hidden_size: int) -> int:
    """Numbers in the matrices of a layer that a row meets."""
    mlp = layer.mlp
    if isinstance(mlp, MLPSpec):
        width = mlp.num_matrices * mlp.intermediate_size
    else:
        shared = 0 if mlp.shared is None else mlp.shared.intermediate_size
        width = mlp.num_experts + 3 * (mlp.num_used * mlp.intermediate_size + shared)
    return layer.attention.num_weights(hidden_size) + hidden_size * width


def _attended(span: Span, window: int) -> int:
    """Tokens that the tokens of a span attend to, added up; each sees itself."""
    full = max(min(span.stop, window) - span.start, 0)
    within = full * (2 * span.start + full + 1) // 2
    return within + (span.stop - span.start - full) * window
