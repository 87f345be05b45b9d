"""Layers that keep a state of fixed size, however long the sequence is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pagoda.cache.formats import PLAIN_BITS
from pagoda.cache.slots import num_blocks_for


@dataclass(frozen=True, slots=True)
class StateLayerSpec:
    """A recurrent state of fixed size: Mamba, Mamba-2, gated delta net, short convolution.

    conv bytes  = conv_length × (conv_width + group_width × groups) × bytes of `conv_dtype`
    state bytes = state_values × bytes of `state_dtype`

    Both are split over ranks; groups that do not divide are replicated, one a rank. Drafted tokens
    that may yet be refused lengthen the convolution's memory, and each has a state of its own.
    """

    kind: ClassVar[str] = "recurrent state"

    conv_length: int
    """Inputs that the convolution looks back on: its kernel less one."""
    conv_width: int
    conv_dtype: str
    state_values: int = 0
    state_dtype: str = "float32"
    group_width: int = 0
    groups: int = 0
    num_states: int = 1
    """Blocks of a request, however long it is."""
    keeps_every_block: bool = False
    """A request keeps a state for each block of its tokens instead."""

    @property
    def state_bytes(self) -> int:
        """Bytes of one state, of any number of tokens."""
        conv = self.conv_length * (self.conv_width + self.group_width * self.groups)
        conv_bytes = conv * PLAIN_BITS[self.conv_dtype] // 8
        return conv_bytes + self.state_values * PLAIN_BITS[self.state_dtype] // 8

    @property
    def latents(self) -> None:
        return None

    @property
    def vectors(self) -> None:
        return None

    @property
    def shares_blocks_with(self) -> tuple[object, ...]:
        return ("state", self.state_bytes)

    def block_bytes(self, block_size: int) -> int:
        return self.state_bytes

    def num_blocks(self, num_tokens: int, block_size: int, under_way_tokens: int) -> int:
        if self.keeps_every_block:
            return num_blocks_for(num_tokens, block_size)
        return self.num_states

    def read_bytes(self, num_tokens: int) -> int:
        return self.state_bytes

    def stored_as(self, dtype: str) -> StateLayerSpec:
        return self

    def sharded(self, tensor_parallel_size: int) -> StateLayerSpec:
        size = tensor_parallel_size
        groups = self.groups if self.groups % size == 0 else size
        return replace(
            self,
            conv_width=self.conv_width // size,
            groups=groups // size if self.groups else 0,
            state_values=self.state_values // size,
        )

    def keeping_all(self) -> StateLayerSpec:
        return self

    def computed_in(self, dtype: str, state_dtype: str | None = None) -> StateLayerSpec:
        """The convolution's inputs follow the model; so does a state that is no float32.

        `state_dtype` is `--mamba-ssm-cache-dtype`, which goes first.
        """
        own = self.state_dtype if self.state_dtype == "float32" else dtype
        return replace(self, conv_dtype=dtype, state_dtype=state_dtype or own)

    def for_requests(self, num_states: int, encoder_tokens: int | None) -> StateLayerSpec:
        return replace(self, num_states=num_states)

    def drafting(self, num_tokens: int) -> StateLayerSpec:
        """The layer where `num_tokens` are drafted in a step."""
        longer = self.conv_length + num_tokens if self.conv_length else 0
        return replace(self, conv_length=longer, num_states=self.num_states + num_tokens)
