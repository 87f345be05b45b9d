"""Codecs that are calibrated for a layer: what they keep, what they cost, and where they lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrated_examples import codec, observed, side, vectors
from pagoda.codecs import CALIBRATED, VectorCodec
from pagoda.codecs.calibrate import Observed, calibrate, lloyd_max_of
from pagoda.codecs.calibration_file import load_codecs, save_codecs
from pagoda.codecs.codec import SideCodec
from pagoda.codecs.levels import lloyd_max
from pagoda.errors import InvalidOptionError
from pagoda.kernels.array import Array

HEADS, SIZE = 2, 64


def cost(codec: SideCodec, metric: Array, made: Array) -> float:
    """Σ eᵀ M e, to that of the vectors themselves."""
    error = (codec.recall(made) - made).astype(np.float64)
    kept = made.astype(np.float64)
    return float(
        np.einsum("hti,hij,htj->", error, metric, error)
        / np.einsum("hti,hij,htj->", kept, metric, kept)
    )


@pytest.mark.parametrize(("name", "bits"), [("int4", 5), ("int3", 4), ("int2", 3)])
def test_vectors_unseen_cost_less_than_in_more_bits_without_calibration(
    name: str, bits: int
) -> None:
    seen, made = observed(HEADS, SIZE, 0), vectors(HEADS, SIZE, 0, 3000)[:, 2000:]
    plain = VectorCodec("levels", bits, "float16", fit="least", turns="signs")
    ours = calibrate(CALIBRATED[name].key, seen)
    assert cost(ours, seen.metric, made) < 0.6 * cost(plain, seen.metric, made)


@pytest.mark.parametrize("size", [64, 128])
def test_queries_meet_keys_as_in_their_own_basis(size: int) -> None:
    made, asked = vectors(HEADS, size, 3), vectors(HEADS, size, 4)
    found = side("int4", "key", HEADS, size)
    basis = found.basis(size)
    turned = found.decode(*found.encode((made @ basis.vectors).astype(np.float32)))
    scores = np.einsum("hti,hti->ht", turned, asked @ basis.queries)
    whole = np.einsum("hti,hti->ht", found.recall(made), asked)
    assert scores == pytest.approx(whole, rel=2e-3, abs=2e-3 * float(np.abs(whole).max()))


def test_what_is_stored_is_as_long_as_what_was_given() -> None:
    seen = observed(HEADS, SIZE, 5)
    found = calibrate(CALIBRATED["int4"].value, seen)
    turned = seen.samples @ found.vectors
    back = found.recall(seen.samples) @ found.vectors
    for chunk in range(SIZE // 16):
        part = slice(16 * chunk, 16 * chunk + 16)
        kept, whole = (turned * back)[..., part].sum(), np.square(turned)[..., part].sum()
        assert kept == pytest.approx(whole, rel=2e-2)


def test_levels_for_normal_numbers_are_those_known() -> None:
    numbers = np.random.default_rng(0).normal(size=400_000)
    assert lloyd_max_of(numbers, 3) == pytest.approx(lloyd_max(3), abs=0.03)


@pytest.mark.parametrize("length", [1.0, 0.0])
def test_vectors_that_never_vary_are_kept(length: float) -> None:
    same = observed(HEADS, SIZE, 7)
    still = same._replace(samples=np.repeat(same.samples[:, :1], 50, 1) * np.float32(length))
    moments = still.samples.astype(np.float64).swapaxes(1, 2) @ still.samples / 50
    found = calibrate(CALIBRATED["int4"].key, still._replace(moments=moments))
    assert found.recall(still.samples) == pytest.approx(still.samples, rel=0.1, abs=0.1)


def test_every_head_is_looked_at_for_levels() -> None:
    heads = 4
    seen = observed(heads, SIZE, 3)
    wild = seen.samples.copy()
    wild[1:] *= np.exp(np.random.default_rng(1).normal(size=wild[1:].shape)).astype(np.float32)
    moments = wild.astype(np.float64).swapaxes(1, 2) @ wild / wild.shape[1]
    found = calibrate(CALIBRATED["int4"].value, seen._replace(samples=wild, moments=moments))
    tame = calibrate(CALIBRATED["int4"].value, seen)
    found_again = {bits: table.values.tolist() for bits, table in found.levels.items()}
    assert found_again != {bits: table.values.tolist() for bits, table in tame.levels.items()}
    last = wild[-1:]
    alone = calibrate(CALIBRATED["int4"].value, Observed(seen.metric[-1:], moments[-1:], last))
    assert cost(found, seen.metric, wild) < 2 * cost(alone, seen.metric[-1:], last)


def test_what_is_not_finite_is_refused() -> None:
    seen = observed(1, SIZE, 0)
    broken = seen.samples.copy()
    broken[0, 7, 3] = np.nan
    with pytest.raises(InvalidOptionError, match="not finite"):
        calibrate(CALIBRATED["int4"].key, seen._replace(samples=broken))


def test_heads_that_are_no_whole_quarters_are_refused_by_name() -> None:
    with pytest.raises(InvalidOptionError, match=r"head size 80.*multiple of 64"):
        calibrate(CALIBRATED["int4"].key, observed(1, 80, 0))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path, kept = tmp_path / "new" / "c.safetensors", [codec("int3", HEADS, SIZE, i) for i in (0, 9)]
    save_codecs(path, kept)
    found = load_codecs(path, CALIBRATED["int3"])
    assert found is not None
    assert [each.key.digest for each in found] == [each.key.digest for each in kept]
    assert [each.value.digest for each in found] == [each.value.digest for each in kept]
    assert found[0].key.digest != found[1].key.digest
    made = vectors(HEADS, SIZE, 0, 20)
    assert np.array_equal(found[1].value.recall(made), kept[1].value.recall(made))


@pytest.mark.parametrize("damage", ["nothing", "cut", "zeros", "text", "other"])
def test_what_is_damaged_counts_as_absent(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "c.safetensors"
    save_codecs(path, [codec("int4", HEADS, SIZE)])
    whole = path.read_bytes()
    zeros = whole[:-4000] + bytes(4000)
    damaged = {"cut": whole[:-40], "zeros": zeros, "text": b"{}", "other": whole}
    path.write_bytes(damaged.get(damage, b""))
    widths = CALIBRATED["int3" if damage == "other" else "int4"]
    assert load_codecs(path, widths) is None
