"""The config of a model directory, with what its config.json leaves to the weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from pagoda.models.config import ModelConfig
from pagoda.models.locate import ModelFiles
from pagoda.models.mapped import release_pages
from pagoda.models.names import WeightNames
from pagoda.models.registry import language_tensors, names_of
from pagoda.models.stored_tensors import DTYPES, StoredTensor

logger = logging.getLogger("pagoda")

_TIED = "tie_word_embeddings"
_CHUNK_BYTES = 2**25


def completed_by_weights(config: ModelConfig, files: ModelFiles) -> ModelConfig:
    """The config with what the stored tensors say better.

    Where it says nothing about the dtype, the stored embedding does. Where an output head is stored
    that differs from the embedding, the two are not tied, whatever the config says: such
    checkpoints come from merges, and transformers uses the stored head too.

    Raises `ModelError` where the weights are needed to tell, and are missing or damaged.
    """
    values = config.values
    has_dtype = bool(values.get("dtype") or values.get("torch_dtype"))
    if has_dtype and values.get(_TIED) is False:
        return config
    tensors, names = language_tensors(config, files.tensors), names_of(config)
    found = {} if has_dtype else _stored_dtype(tensors, names)
    if values.get(_TIED) is not False and _has_own_head(tensors, names):
        found[_TIED] = False
        if values.get(_TIED):
            logger.warning(
                "%s is stored and differs from the embedding: it is used, although the config says "
                "%s",
                names.lm_head,
                _TIED,
            )
    return ModelConfig({**values, **found}) if found else config


def _stored_dtype(tensors: Mapping[str, StoredTensor], names: WeightNames) -> dict[str, object]:
    embedding = tensors.get(names.embedding)
    if embedding is None:
        return {}
    return {"dtype": DTYPES.get(embedding.dtype, embedding.dtype)}


def _has_own_head(tensors: Mapping[str, StoredTensor], names: WeightNames) -> bool:
    """Whether an output head is stored beside the embedding, with other numbers."""
    head = tensors.get(names.lm_head)
    embedding = tensors.get(names.embedding)
    if head is None or embedding is None:
        return False
    if (head.dtype, head.shape) != (embedding.dtype, embedding.shape):
        return True
    chunks = range(0, head.size_bytes, _CHUNK_BYTES)
    return not all(
        np.array_equal(_chunk(head, first), _chunk(embedding, first)) for first in chunks
    )


def _chunk(tensor: StoredTensor, first: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """A part of the tensor's bytes; the part before it is given back."""
    count = min(_CHUNK_BYTES, tensor.size_bytes - first)
    start = tensor.start + first
    release_pages(tensor.data, start - min(first, _CHUNK_BYTES), min(first, _CHUNK_BYTES))
    return np.frombuffer(tensor.data, np.uint8, count, start)
