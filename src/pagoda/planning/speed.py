"""How fast a machine could be at best: bytes over bandwidth, operations over their rate.

    decode    seconds a token, over stages = the longer of
                (weights + cache of the users in a stage) / bandwidth
                users in a stage × (2 × active numbers + 4 × heads × size × tokens seen) / rate
    prefill   seconds = operations / rate,  2 × active numbers × tokens + 4 × heads × size × pairs;
              the output head is for the last token alone

Of experts those are read that an even router sends some user of a stage to, as is expected
(`pagoda.sizing.experts_read`): a router that prefers some reads fewer, and may be quicker.

Of latents 2 × heads × `Architecture.latent_pair_size` stands for 4 × heads × size. An indexer's
scores and recurrences are left out.

No engine that computes one token a user and step can beat these; real ones reach 50 to 90% of the
first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pagoda.cache.layer import CachedLayer
from pagoda.planning.architecture import Architecture
from pagoda.planning.capability import product_rate
from pagoda.planning.pool import PoolOptions
from pagoda.planning.tables import Accelerator
from pagoda.planning.weights import Weights


@dataclass(frozen=True, slots=True)
class SpeedBound:
    """The least time of a step, and what follows; at `users` requests of `context` tokens."""

    users: int
    context: int
    weight_read_bytes: int
    """Weights read in one decode step, over all ranks."""
    experts_read: float | None
    """The share of the experts among them, 0 to 1; None: there are none."""
    cache_read_bytes: int
    """Cache read in one decode step for all users, over all ranks."""
    step_s: float
    """From one token of a user to the next, at least."""
    tokens_per_s: float
    """What one user gets, at most."""
    total_tokens_per_s: float
    """What all users get together, at most."""
    prefill_s: float
    """To compute a prompt of `context` tokens, at least."""
    prefill_tokens_per_s: float


def speed_bound(
    weights: Weights,
    layers: Sequence[CachedLayer],
    options: PoolOptions,
    device: Accelerator,
    *,
    model: Architecture,
    users: int,
    context: int,
    quantization: str | None = None,
) -> SpeedBound:
    """The least times on `device`s, for so many users of that context.

    `layers` is what one rank of the whole `model` keeps. Stages of a pipeline take turns: each has
    a part of the users, and a token passes all of them.
    """
    num_stages, size = options.pipeline_parallel_size, options.tensor_parallel_size
    in_stage = -(-users // num_stages)
    rank_cache = sum(layer.read_bytes(context) for layer in layers)
    read = weights.read_bytes(in_stage)
    reading_s = (read / size + in_stage * rank_cache) / device.bandwidth
    rate = product_rate(device, quantization)
    parts = weights.parameters
    own = 2 * parts.active + sum(each * seen for each, seen in attended(layers, model, context))
    step_s = max(reading_s, in_stage * own / (rate * size))
    prefill_s = prefill_seconds(
        weights,
        layers,
        options,
        device,
        model=model,
        num_tokens=context,
        quantization=quantization,
    )
    return SpeedBound(
        users=users,
        context=context,
        weight_read_bytes=read,
        experts_read=parts.share_read(in_stage),
        cache_read_bytes=users * rank_cache * size,
        step_s=step_s,
        tokens_per_s=1 / step_s,
        total_tokens_per_s=users / step_s,
        prefill_s=prefill_s,
        prefill_tokens_per_s=context / prefill_s,
    )


def prefill_seconds(
    weights: Weights,
    layers: Sequence[CachedLayer],
    options: PoolOptions,
    device: Accelerator,
    *,
    model: Architecture,
    num_tokens: int,
    quantization: str | None = None,
) -> float:
    """To compute a prompt of so many tokens, at least; see `speed_bound`."""
    parts = weights.parameters
    head = parts.head or parts.embedding
    operations = 2 * ((parts.active - head) * num_tokens + head)
    operations += sum(
        each * _pairs(seen, num_tokens) for each, seen in attended(layers, model, num_tokens)
    )
    num_devices = options.tensor_parallel_size * options.pipeline_parallel_size
    return operations / (product_rate(device, quantization) * num_devices)


def attended(
    layers: Sequence[CachedLayer], model: Architecture, context: int
) -> Iterator[tuple[int, int]]:
    """For each layer operations of scores and weighted values a token seen, and tokens seen."""
    for layer in layers:
        kept, latents = layer.vectors, layer.latents
        if kept is None and latents is None:
            continue
        seen = min(context, layer.read_bytes(context) // layer.block_bytes(1))
        if kept is not None:
            size = kept.head_size + (kept.head_size_v or kept.head_size)
        elif latents is not None:
            size, seen = model.latent_pair_size, min(seen, latents.index_top or seen)
        yield 2 * model.num_heads * size, seen


def _pairs(seen: int, context: int) -> int:
    """Pairs of a token and one that it sees: each of `context` tokens sees those before it, up to
    `seen` of them."""
    return seen * context - seen * seen // 2
