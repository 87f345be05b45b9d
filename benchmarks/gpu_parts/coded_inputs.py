"""Sequences whose keys and values are stored in eight bits a number, and what is stored of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch

from gpu_parts.paged_inputs import PagedInputs
from pagoda.codecs import CODECS, VectorCodec
from pagoda.execution.gpu.layer_codes import page_codes
from pagoda.kernels.gpu.code_form import VectorForm
from pagoda.kernels.gpu.coded_rotary import rotate_and_encode
from pagoda.kernels.gpu.decode_attention import decode_attention
from pagoda.kernels.gpu.head_norms import NO_NORMS
from pagoda.kernels.gpu.partial_sums import PartialSums
from pagoda.kernels.gpu.parts import decode_parts

EIGHT_BITS = ("fp8_e4m3", "int8_per_token_head")
"""Formats that turn nothing and have no offsets: queries and results are those of plain caches."""
_BLOCKS_AT_ONCE = 1024


class CodedInputs(PagedInputs):
    """The queries and tables of others, and their keys and values in a format of eight bits."""

    def __init__(self, plain: PagedInputs, name: str) -> None:
        assert name in EIGHT_BITS
        vars(self).update({key: copy.copy(value) for key, value in vars(plain).items()})
        heads, device = plain.heads, plain.query.device
        self.out = torch.zeros_like(plain.out)
        self._codec = CODECS[name]
        self._codes = page_codes(
            self._codec, heads.num_kv_heads, heads.head_dim, heads.block_size, device
        )
        size = (len(plain.blocks), self._codes.form.block_bytes)
        self.blocks = torch.empty(size, dtype=torch.uint8, device=device)
        for first in range(0, len(plain.blocks), _BLOCKS_AT_ONCE):
            self._store(plain.blocks[first : first + _BLOCKS_AT_ONCE], first)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the codes and scales that are seen."""
        form, size = self._codes.form, self.heads.block_size
        return sum(span.context for span in self.spans) * form.block_bytes // size

    def decode(self) -> Callable[[], None]:
        """Launches decode attention of every sequence's one query."""
        heads, device, windows = self.heads, self.query.device, self.windows
        rows = torch.arange(len(self.spans), dtype=torch.int32, device=device)
        num_parts = decode_parts(len(self.spans), heads.num_heads)
        workspace = PartialSums.of(num_parts, heads.head_dim, device)
        return lambda: decode_attention(
            self.out, self.query, self.blocks, self.tables, self.context_lens, rows, rows,
            heads.scale, windows, workspace, self._codes,
        )  # fmt: skip

    def dense(self, index: int) -> torch.Tensor:
        """What is stored of one sequence without blocks: [2, Hkv, context, D]."""
        heads, context = self.heads, self.spans[index].context
        table = self.tables[index, : -(-context // heads.block_size)].long()
        sides = [side[:, :context] for side in self._sides(self.blocks[table])]
        return torch.stack(sides).to(self.query.device)

    def _store(self, plain: torch.Tensor, first: int) -> None:
        """Code plain blocks as those from `first` on."""
        heads, device = self.heads, plain.device
        vectors = plain.movedim(3, 1).flatten(0, 1).flatten(1, 2)  # [slots, 2 Hkv, D]
        count = len(vectors)
        query = vectors.new_zeros(count, heads.num_kv_heads, heads.head_dim)
        begin = first * heads.block_size
        none = torch.zeros(1, 0, device=device)
        rotate_and_encode(
            torch.empty_like(query), torch.cat((query, vectors), 1).flatten(1), self.blocks,
            torch.zeros(count, dtype=torch.int32, device=device),
            torch.arange(begin, begin + count, device=device), none, none, NO_NORMS,
            self._codes,
        )  # fmt: skip

    def _sides(self, blocks: torch.Tensor) -> Iterator[torch.Tensor]:
        """Keys and values in blocks, [Hkv, slots, D] float32 in main memory."""
        content, form = blocks.cpu(), self._codes.form
        yield self._vectors(content, form.keys, self._codec.key)
        yield self._vectors(content, form.values, self._codec.value)

    def _vectors(self, content: torch.Tensor, form: VectorForm, side: VectorCodec) -> torch.Tensor:
        heads, size = self.heads.num_kv_heads, self.heads.block_size
        codes = content[:, form.start : form.start + heads * form.head_bytes]
        codes = codes.reshape(-1, heads, size, self.heads.head_dim)
        scales = torch.ones(codes.shape[:-1])
        if form.scale_bytes:
            beside = content[:, form.scales : form.scales + heads * form.scale_head_bytes]
            scales = beside.contiguous().view(torch.float32).view_as(scales)
        zeros = torch.zeros_like(scales)
        found = side.decode(codes.numpy(), scales.numpy(), zeros.numpy())
        return torch.from_numpy(found).transpose(0, 1).flatten(1, 2)
