"""The config of a model directory, with what its config.json leaves to the weights."""

from __future__ import annotations

from pathlib import Path

from pagoda.models.config import ModelConfig, read_directory_config
from pagoda.models.names import HUGGING_FACE_NAMES
from pagoda.models.stored_tensors import DTYPES, stored_tensors


def read_config_beside_weights(directory: Path) -> ModelConfig:
    """config.json; where it says nothing about the dtype, the stored embedding does.

    Raises `ModelError` where the config, or then the weights, are missing or damaged.
    """
    config = read_directory_config(directory)
    if config.values.get("dtype") or config.values.get("torch_dtype"):
        return config
    embedding = stored_tensors(directory).get(HUGGING_FACE_NAMES.embedding)
    if embedding is None:
        return config
    dtype = DTYPES.get(embedding.dtype, embedding.dtype)
    return ModelConfig({**config.values, "dtype": dtype})
