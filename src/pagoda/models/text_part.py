"""The language model of a checkpoint that sees images too: its part of config and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from pagoda.models.config import ModelConfig

T = TypeVar("T")

SECTION = "text_config"
_BESIDE_THE_SECTION = ("dtype", "torch_dtype", "tie_word_embeddings")
_OWN_NAMES = MappingProxyType({"model.language_model.": "model.", "language_model.": ""})
"""What the text's tensors begin with, in transformers 5 and before, and what they do by themselves.

Others, such as `lm_head.weight`, may have no beginning of their own.
"""


@dataclass(frozen=True, slots=True)
class TextPart:
    """Where a family's configs and checkpoints have the language model; the rest is not run."""

    model_type: str
    """What the section calls itself, if it says so."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the section may leave out."""
    towers: tuple[str, ...] = ("vision_tower.", "multi_modal_projector.")
    """Beginnings of tensors of the rest, with or without `model.` before them."""

    def is_named_by(self, config: ModelConfig) -> bool:
        """Whether the section is of this language model, which it may leave unsaid."""
        return _section(config).values.get("model_type") in (None, self.model_type)

    def config_of(self, config: ModelConfig) -> ModelConfig:
        """The language model's own config.

        Its dtype is the one beside the section, if there is one. Whether its embeddings are tied
        is said beside the section alone; they are where nothing is said, as in transformers.
        Raises `UnsupportedModelError` for another language model.
        """
        section = _section(config)
        if not self.is_named_by(config):
            name, limit = section.values["model_type"], f"covered is {self.model_type}"
            raise section.unsupported("model_type", name, limit)
        beside = {name: config.values.get(name) for name in _BESIDE_THE_SECTION}
        told = {name: value for name, value in beside.items() if value is not None}
        own = {"model_type": self.model_type, "tie_word_embeddings": True, **told}
        values = {**self.defaults, **section.values, **own}
        return ModelConfig(values, section.prefix)

    def tensors_of(self, tensors: Mapping[str, T]) -> dict[str, T]:
        """The tensors under the names that the language model alone has; towers are left out."""
        names = ((name, _own_name(name)) for name in tensors if not self._is_of_tower(name))
        return {own: tensors[name] for name, own in names}

    def _is_of_tower(self, name: str) -> bool:
        return name.removeprefix("model.").startswith(self.towers)


def _section(config: ModelConfig) -> ModelConfig:
    return config.section(SECTION) or ModelConfig({}, f"{SECTION}.")


def _own_name(name: str) -> str:
    for beginning, own in _OWN_NAMES.items():
        if name.startswith(beginning):
            return own + name.removeprefix(beginning)
    return name
