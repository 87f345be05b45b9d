"""Which type each tensor of a quantised GGUF file has, as llama.cpp chooses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gguf import GGML_QUANT_SIZES, LlamaFileType
from gguf import GGMLQuantizationType as Type

from pagoda.kernels.block_types import BLOCK_TYPES

MIXES = {"Q4_K_M": "Q4_K", "Q5_K_M": "Q5_K"}
"""Mixes, and what most of their matrices are."""
NAMES = (*(name for name in BLOCK_TYPES if name in Type.__members__), *MIXES)
PLAIN = "F32"
"""With which nobody rounds anything."""
FALLBACKS = {
    "Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "IQ4_XS": "IQ4_NL",
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip
"""What stands in where a type's blocks do not divide a row; F16 where nothing here does."""
_FILE_TYPES = {"Q3_K": "Q3_K_S", "Q4_K": "Q4_K_S", "Q5_K": "Q5_K_S"}


@dataclass(frozen=True)
class Recipe:
    """The types of one file: one for all matrices, or a mix."""

    name: str
    """One of `NAMES`, or `PLAIN`."""
    num_layers: int
    head: str
    """The tensor that is the output head, and may be the embedding too."""

    @classmethod
    def of(cls, name: str, tensors: Iterable[str]) -> Recipe:
        """For a model of these tensors."""
        names = set(tensors)
        layers = {tensor.split(".")[1] for tensor in names if tensor.startswith("blk.")}
        head = "output.weight" if "output.weight" in names else "token_embd.weight"
        return cls(name, len(layers), head)

    @property
    def file_type(self) -> LlamaFileType:
        """What metadata call the whole."""
        if self.name == PLAIN:
            return LlamaFileType.ALL_F32
        return LlamaFileType[f"MOSTLY_{_FILE_TYPES.get(self.name, self.name)}"]

    def type_of(self, tensor: str, shape: tuple[int, ...]) -> Type:
        """The type of one tensor, of a row-major shape; vectors stay float32."""
        if len(shape) == 1:
            return Type.F32
        kind = MIXES.get(self.name, self.name)
        if self.name in MIXES and self._is_finer(tensor):
            kind = "Q6_K"
        while shape[-1] % GGML_QUANT_SIZES[Type[kind]][0]:
            kind = FALLBACKS.get(kind, "F16")
        return Type[kind]

    def _is_finer(self, tensor: str) -> bool:
        """In a mix: the head, and v and down of outer layers and of every third of the others."""
        if tensor == self.head:
            return True
        if not tensor.endswith(("attn_v.weight", "ffn_down.weight")):
            return False
        layer, eighth = int(tensor.split(".")[1]), self.num_layers // 8
        is_outer = layer < eighth or layer >= 7 * self.num_layers // 8
        return is_outer or (layer - eighth) % 3 == 2
