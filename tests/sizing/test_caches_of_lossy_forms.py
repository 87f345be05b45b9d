"""One judge of lossy forms: the device, and what each layer keeps."""

from __future__ import annotations

import pytest

from pagoda.cache.attention_layer import AttentionLayerSpec
from pagoda.cache.latent import LatentLayerSpec
from pagoda.cache.layer import CachedLayer
from pagoda.cache.layers import SlidingWindowLayerSpec
from pagoda.cache.spec import CacheSpec
from pagoda.errors import InvalidOptionError
from pagoda.sizing.device_policy import CPUPolicy, GPUPolicy
from pagoda.sizing.lossy_form import MOST_NUMBERS, require_lossy_form, require_runs

WIDEST = AttentionLayerSpec(MOST_NUMBERS // 64, 64, "bfloat16")


def is_refused(*layers: CachedLayer) -> bool:
    try:
        require_lossy_form("a field", "kvtc-4x", CPUPolicy(), layers)
    except InvalidOptionError:
        return True
    return False


def test_plain_keys_and_values_suit_it() -> None:
    layers = (WIDEST, SlidingWindowLayerSpec(WIDEST, 8), AttentionLayerSpec(2, 64, "float32"))
    assert not is_refused(*layers)
    assert is_refused(*layers, AttentionLayerSpec(2, 64, "fp8_e4m3"))


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (LatentLayerSpec(64, 16, "bfloat16"), "layer 1 keeps latents"),
        (AttentionLayerSpec(2, 64, "int8_per_token_head"), "layer 1 keeps int8_per_token_head"),
        (AttentionLayerSpec(2, 64, "fp8_e4m3"), "layer 1 keeps fp8_e4m3"),
        (AttentionLayerSpec(17, 64, "bfloat16"), "up to 1,024 numbers.*layer 1 has 1,088"),
    ],
)
def test_what_else_a_layer_keeps_is_refused_by_its_number(layer: CachedLayer, told: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"a field.*{told}"):
        require_lossy_form("a field", "kvtc-4x", CPUPolicy(), (WIDEST, layer))


def test_a_gpu_is_refused_before_any_layer_is_known() -> None:
    with pytest.raises(InvalidOptionError, match="no GPU's"):
        require_lossy_form("a field", "kvtc-4x", GPUPolicy("H100", 2**36, (9, 0)), ())


def test_a_basis_of_layers_that_blocks_keep_apart_is_refused() -> None:
    """Blocks of equal bytes deal layers out by what each takes, so one of another dtype moves all
    behind it."""
    narrow, wide = (AttentionLayerSpec(2, 64, dtype) for dtype in ("bfloat16", "float32"))
    plain = CacheSpec((narrow, *[SlidingWindowLayerSpec(narrow, 8)] * 2) * 2, 16)
    mixed = list(plain.layers)
    mixed[2] = SlidingWindowLayerSpec(wide, 8)
    require_runs("a field", "kvtc-4x", plain, plain)
    with pytest.raises(InvalidOptionError, match=r"a field.*layers 1, 4, which blocks keep apart"):
        require_runs("a field", "kvtc-4x", CacheSpec(tuple(mixed), 16), plain)
