"""Layers that keep the dtype are named by numbers, ranges and their windows, in one way for all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError
from pagoda.models.config import ModelConfig
from pagoda.planning.architecture import read_architecture
from pagoda.planning.pool import PoolOptions, rank_layers
from pagoda.planning.tables import find_model
from pagoda.sizing.cache_formats import CacheFormats
from pagoda.sizing.skipped_layers import SkippedLayers

WINDOWED = [True, False, True, False, False, True]


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ((), []),
        ((0, 3), [0, 3]),
        (("3", " 1-2 "), [1, 2, 3]),
        (("4-4", "3-5", 5), [3, 4, 5]),
        (("sliding_window",), [0, 2, 5]),
        (("sliding_window", "1"), [0, 1, 2, 5]),
    ],
)
def test_layers_by_number_range_and_window(named: Sequence[int | str], found: list[int]) -> None:
    assert sorted(SkippedLayers.read(named).of(WINDOWED)) == found
    formats = CacheFormats("fp8", tuple(named)).of_layers(WINDOWED, "bfloat16")
    assert [number for number, name in enumerate(formats) if name == "bfloat16"] == found


@pytest.mark.parametrize(
    "named", ["", "-1", "3-", "-3", "0-1-2", "first", "sliding", "²", "9" * 10, -1, 1.0, True, None]
)
def test_what_names_no_layer_is_refused_by_name(named: Any) -> None:
    told = f"kv_cache_dtype_skip_layers={named!r}: a layer's number, a range like 0-3, or sliding_w"
    with pytest.raises(InvalidOptionError, match=re.escape(told)):
        EngineOptions(kv_cache_dtype_skip_layers=[0, named])


def test_a_range_that_runs_back_or_past_the_model_and_a_mere_text_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="='3-0': ends before it begins"):
        EngineOptions(kv_cache_dtype_skip_layers=["3-0"])
    with pytest.raises(InvalidOptionError, match="=6: the model has layers 0 to 5"):
        SkippedLayers.read(["4-6"]).of(WINDOWED)
    with pytest.raises(InvalidOptionError, match="='0-3': must be a list"):
        EngineOptions(kv_cache_dtype_skip_layers="0-3")


def test_plans_read_them_too() -> None:
    """Gemma 3 has five layers with windows, then one without."""
    row = find_model("gemma-3-1b-it")
    assert row is not None
    shape = read_architecture(ModelConfig(row[1]["config"]))
    asked = PoolOptions(kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=("sliding_window", "5"))
    layers = [layer.vectors for kept in rank_layers(shape, asked) for layer in kept]
    coded = [number for number, each in enumerate(layers) if each and each.dtype == "fp8_e4m3"]
    assert coded == [11, 17, 23]
