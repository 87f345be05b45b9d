"""A decoder's weights in the order in which products read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch

from pagoda.errors import InvalidOptionError, UnsupportedModelError
from pagoda.execution.cpu.panel_matrix import OnPacked, PanelMatrix
from pagoda.kernels.block_types import PANEL
from pagoda.models.decoder import DecoderSpec, ExpertsSpec, LatentAttentionSpec, MLPSpec
from pagoda.models.expert_weights import ExpertsWeights
from pagoda.models.stored_rows import Matrix, StoredMatrix, StoredRows
from pagoda.models.weight_memory import HostMemory
from pagoda.models.weights import DecoderWeights, LayerWeights
from pagoda.sizing.kept_weights import matrix_bytes


def require_even_rows(spec: DecoderSpec, dtype: str) -> None:
    """Refuse a model whose rows cannot be multiplied two numbers at a time, as bfloat16 is.

    Raises UnsupportedModelError naming the config's field.
    """
    if dtype != "bfloat16":
        return
    widths = {"hidden_size": {spec.hidden_size}}
    for layer in spec.layers:
        for field, size in _inner_widths(layer.mlp).items():
            widths.setdefault(field, set()).add(size)
        if isinstance(layer.attention, LatentAttentionSpec):
            for field, size in _latent_widths(layer.attention).items():
                widths.setdefault(field, set()).add(size)
    for field, sizes in widths.items():
        for size in sizes:
            if size % 2:
                limit = "must be even in bfloat16 on a CPU; --dtype float32 runs it"
                raise UnsupportedModelError(field, size, limit)


def _latent_widths(attention: LatentAttentionSpec) -> dict[str, int]:
    return {
        "q_lora_rank": attention.q_rank or 0,
        "kv_lora_rank": attention.rank,
        "qk_nope_head_dim": attention.nope_dim,
        "v_head_dim": attention.num_heads * attention.value_dim,
    }


def _inner_widths(mlp: MLPSpec | ExpertsSpec) -> dict[str, int]:
    """By the fields that they have in most configs."""
    if isinstance(mlp, MLPSpec):
        return {"intermediate_size": mlp.intermediate_size}
    widths = {"moe_intermediate_size": mlp.intermediate_size}
    if mlp.shared is not None:
        widths["shared_expert_intermediate_size"] = mlp.shared.intermediate_size
    return widths


@dataclass(frozen=True, slots=True)
class PanelLayer:
    """One layer: `LayerWeights` with its matrices in panels, gate and up each for themselves.

    gate is None where there is no such thing.

    key_up is turned, [rank, nope] of each head, and as value_up padded to whole panels of each.
    """

    qkv: PanelMatrix
    o: PanelMatrix
    gate: PanelMatrix | None
    up: PanelMatrix | None
    down: PanelMatrix | None
    attention_norm: torch.Tensor | None
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o_bias: torch.Tensor | None
    attention_output_norm: torch.Tensor | None
    mlp_norm: torch.Tensor | None
    gate_up_bias: torch.Tensor | None
    up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    mlp_output_norm: torch.Tensor | None
    sink_logits: torch.Tensor | None
    q_down: PanelMatrix | None
    q_down_bias: torch.Tensor | None
    kv_down: PanelMatrix | None
    kv_down_bias: torch.Tensor | None
    key_up: PanelMatrix | None
    value_up: PanelMatrix | None
    experts: ExpertsWeights[PanelMatrix] | None = None

    def all(self) -> Iterator[PanelMatrix | torch.Tensor]:
        """Every weight."""
        own = (getattr(self, field.name) for field in fields(self) if field.name != "experts")
        yield from (weight for weight in own if weight is not None)
        yield from () if self.experts is None else self.experts.tensors()


@dataclass(frozen=True, slots=True)
class PanelWeights:
    """All weights of a decoder, the matrices in panels."""

    embedding: PanelMatrix
    layers: tuple[PanelLayer, ...]
    final_norm: torch.Tensor
    lm_head: PanelMatrix
    """The very matrix of `embedding` where the two are tied."""
    logit_bias: torch.Tensor | None = None
    """[vocab]"""

    @classmethod
    def take_over(
        cls,
        weights: DecoderWeights[Matrix] | PanelWeights,
        on_packed: OnPacked = lambda num_bytes: None,
    ) -> PanelWeights:
        """Turn every matrix into panels: `weights` must not be used otherwise again.

        Plain ones are turned where they lie. Those that stay as stored are packed from their file,
        into one allocation of their own. Rows of bfloat16 have to be even (`require_even_rows`).
        Raises InvalidOptionError for another dtype than float32 and bfloat16, ModelError for a
        scale that is not finite, CapacityError where the system has no such memory.
        """
        if isinstance(weights, PanelWeights):
            return weights
        if weights.dtype not in (torch.float32, torch.bfloat16):
            raise InvalidOptionError("dtype", str(weights.dtype), "float32 or bfloat16 on a CPU")
        packer = _Packer(weights.dtype, _memory_for(weights), on_packed)
        embedding = packer.matrix(weights.embedding)
        is_tied = weights.lm_head is weights.embedding
        return cls(
            embedding=embedding,
            layers=tuple(packer.layer(layer) for layer in weights.layers),
            final_norm=weights.final_norm,
            lm_head=embedding if is_tied else packer.matrix(weights.lm_head),
            logit_bias=weights.logit_bias,
        )

    @property
    def dtype(self) -> torch.dtype:
        """Of all that does not keep the type of its file."""
        return self.final_norm.dtype

    @property
    def size_bytes(self) -> int:
        """Bytes of all weights; a tied one counts once."""
        tied = 0 if self.lm_head is self.embedding else self.lm_head.nbytes
        layers = sum(weight.nbytes for layer in self.layers for weight in layer.all())
        ends = self.embedding.nbytes + tied + self.final_norm.nbytes
        return ends + (0 if self.logit_bias is None else self.logit_bias.nbytes) + layers


class _Packer:
    """Puts matrices into panels, whatever they come as."""

    def __init__(self, dtype: torch.dtype, memory: HostMemory, on_packed: OnPacked) -> None:
        self._dtype = dtype
        self._memory = memory
        self._on_packed = on_packed

    def matrix(self, matrix: Matrix) -> PanelMatrix:
        if isinstance(matrix, torch.Tensor):
            return PanelMatrix.plain(matrix)
        return PanelMatrix.stored(
            matrix.parts,
            self._dtype,
            self._memory,
            self._on_packed,
        )

    def layer(self, layer: LayerWeights[Matrix]) -> PanelLayer:
        gate, up = (None, layer.up) if layer.gate_up is None else _halves(layer.gate_up)
        return PanelLayer(
            qkv=self.matrix(layer.qkv),
            o=self.matrix(layer.o),
            gate=self.matrix_if_any(gate),
            up=self.matrix_if_any(up),
            down=self.matrix_if_any(layer.down),
            attention_norm=layer.attention_norm,
            qkv_bias=layer.qkv_bias,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            o_bias=layer.o_bias,
            attention_output_norm=layer.attention_output_norm,
            mlp_norm=layer.mlp_norm,
            gate_up_bias=layer.gate_up_bias,
            up_bias=layer.up_bias,
            down_bias=layer.down_bias,
            mlp_output_norm=layer.mlp_output_norm,
            sink_logits=layer.sink_logits,
            q_down=self.matrix_if_any(layer.q_down),
            q_down_bias=layer.q_down_bias,
            kv_down=self.matrix_if_any(layer.kv_down),
            kv_down_bias=layer.kv_down_bias,
            key_up=None if layer.key_up is None else _of_heads(_turned(layer.key_up)),
            value_up=None if layer.value_up is None else _of_heads(layer.value_up),
            experts=None if layer.experts is None else self.experts(layer.experts),
        )

    def matrix_if_any(self, matrix: Matrix | None) -> PanelMatrix | None:
        """None where the layer has no such matrix."""
        return None if matrix is None else self.matrix(matrix)

    def experts(self, weights: ExpertsWeights[Matrix]) -> ExpertsWeights[PanelMatrix]:
        """Each matrix in panels of its own."""
        values = {field.name: getattr(weights, field.name) for field in fields(weights)}
        one = ("router", "shared_gate", "shared_up", "shared_down")
        of_each = ("gate", "up", "down")
        values |= {name: self.matrix_if_any(values[name]) for name in one}
        values |= {name: tuple(map(self.matrix, values[name])) for name in of_each}
        return ExpertsWeights(**values)


def _turned(matrices: torch.Tensor) -> torch.Tensor:
    """[heads, columns, rows], where [heads, rows, columns] lay: they are not good for more."""
    heads, rows, columns = matrices.shape
    turned = matrices.view(heads, columns, rows)
    return turned.copy_(matrices.transpose(1, 2).clone(memory_format=torch.contiguous_format))


def _of_heads(matrices: torch.Tensor) -> PanelMatrix:
    """[heads, rows, columns] in panels, of which each head has whole ones.

    Where they are not whole, as in no published model, they are padded, in memory of their own.
    """
    heads, rows, columns = matrices.shape
    if rows % PANEL:
        padded = matrices.new_zeros(heads, -(-rows // PANEL) * PANEL, columns)
        padded[:, :rows] = matrices
        matrices = padded
    return PanelMatrix.plain(matrices.view(-1, columns))


def _halves(gate_up: Matrix) -> tuple[Matrix, ...]:
    """Gate and up."""
    if isinstance(gate_up, torch.Tensor):
        return gate_up.chunk(2)
    return tuple(
        part if isinstance(part, torch.Tensor) else StoredMatrix((part,)) for part in gate_up.parts
    )


def _memory_for(weights: DecoderWeights[Matrix]) -> HostMemory:
    """For what stays as stored. Raises `CapacityError` where the system has no such memory."""
    matrices = [weights.embedding]
    if weights.lm_head is not weights.embedding:
        matrices.append(weights.lm_head)
    for layer in weights.layers:
        halves = () if layer.gate_up is None else _halves(layer.gate_up)
        own = (layer.qkv, layer.o, *halves, layer.up, layer.down)
        of_latents = (layer.q_down, layer.kv_down)
        matrices += [matrix for matrix in (*own, *of_latents) if matrix is not None]
        matrices += () if layer.experts is None else layer.experts.tensors()
    kept = [
        [part for part in matrix.parts if isinstance(part, StoredRows)]
        for matrix in matrices
        if isinstance(matrix, StoredMatrix)
    ]
    size_bytes = sum(matrix_bytes(parts, weights.dtype.itemsize) for parts in kept)
    return HostMemory(size_bytes, sum(map(len, kept)))
