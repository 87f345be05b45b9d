"""What the metadata of a GGUF file tells about the cache, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest

from pagoda.errors import UnsupportedModelError
from pagoda.models.config import ModelConfig
from pagoda.planning.architecture import read_architecture
from pagoda.planning.gguf_fields import config_of_gguf
from pagoda.planning.groups import kinds_of


def metadata(name: str, **keys: Any) -> dict[str, Any]:
    usual = {
        "block_count": 10, "embedding_length": 64, "feed_forward_length": 128,
        "context_length": 256, "attention.head_count": 4, "attention.head_count_kv": 2,
        "attention.key_length": 16,
    }  # fmt: skip
    own = {key.replace("__", "."): value for key, value in keys.items()}
    values = {f"{name}.{key}": value for key, value in {**usual, **own}.items()}
    return {"general.architecture": name, **values}


def kinds(name: str, **keys: Any) -> dict[str, int]:
    config = config_of_gguf(metadata(name, **keys), 100, is_tied=True)
    return dict(kinds_of(read_architecture(ModelConfig(config)).cached_layers))


@pytest.mark.parametrize(
    "name", ["qwen3next", "granitehybrid", "nemotron_h", "mamba", "mamba2", "falcon-h1", "plamo2"]
)
def test_layers_that_a_file_does_not_describe_are_refused_by_name(name: str) -> None:
    keys = {"ssm__conv_kernel": 4, "ssm__state_size": 16, "ssm__inner_size": 128}
    with pytest.raises(UnsupportedModelError, match=f"general.architecture='{name}': .*recurrent"):
        config_of_gguf(metadata(name, **keys), 100, is_tied=True)


def test_layers_without_heads_keep_a_state() -> None:
    keys = {"ssm__conv_kernel": 4, "ssm__state_size": 16, "ssm__inner_size": 128}
    heads = [0, 0, 0, 0, 2] * 2
    assert kinds("jamba", attention__head_count_kv=heads, **keys) == {
        "recurrent state": 8,
        "full attention": 2,
    }


def test_layers_that_use_another_s_cache_keep_nothing() -> None:
    windows = {"attention__sliding_window": 32}
    assert sum(kinds("gemma3n", **windows).values()) == 10
    assert sum(kinds("gemma3n", attention__shared_kv_layers=4, **windows).values()) == 6
