"""Transforms lose what their step says, keep what they were found with, and undo positions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pagoda.codecs.block_transform import BlockTransform, TooFewNumbersError
from pagoda.codecs.rotary import Rotary
from pagoda.codecs.transform import Moments, RunTransform, SideTransform
from pagoda.codecs.transform_file import FoundTransforms
from pagoda.kernels.array import Array

HEADS, SIZE, TOKENS = 2, 8, 16
NUMBERS = HEADS * SIZE
CHANCE = np.random.default_rng(0)
MIX = CHANCE.standard_normal((NUMBERS, NUMBERS)) * np.geomspace(4, 0.01, NUMBERS)[:, None]


def vectors(count: int = TOKENS) -> Array:
    return (CHANCE.standard_normal((count, NUMBERS)) @ MIX + 3).astype(np.float32)


def moments() -> Moments:
    own = vectors(4000).astype(np.float64)
    roots = CHANCE.standard_normal((HEADS, SIZE, SIZE))
    return Moments(
        own.mean(0), np.cov(own.T, bias=True), roots @ roots.swapaxes(1, 2) + 8 * np.eye(SIZE)
    )


MOMENTS = moments()
SIDE = SideTransform.fit(MOMENTS)
RUNS = tuple(RunTransform((number,), SIDE, SideTransform.fit(moments())) for number in range(2))


def cost(errors: Array) -> Array:
    """Of each token, in the metric."""
    of_heads = errors.reshape(len(errors), HEADS, SIZE)
    return np.einsum("thi,hij,thj->t", of_heads, MOMENTS.metric, of_heads)


def test_numbers_are_uncorrelated_and_errors_cost_their_squares() -> None:
    turned = SIDE.turn(vectors(20_000)).astype(np.float64)
    covariance = np.cov(turned.T)
    scale = np.outer(SIDE.sigma, SIDE.sigma)
    assert np.abs(covariance - np.diag(np.square(SIDE.sigma))).max() < 0.05 * scale.max()
    assert (np.diff(SIDE.sigma) <= 0).all()
    errors = CHANCE.standard_normal((5, NUMBERS)).astype(np.float32)
    own = SIDE.turn_back(errors) - SIDE.turn_back(np.zeros_like(errors))
    assert cost(own) == pytest.approx(np.square(errors).sum(1), rel=0.05)


def test_there_and_back() -> None:
    own = vectors()
    assert SIDE.turn_back(SIDE.turn(own)) == pytest.approx(own, abs=1e-3)


@pytest.mark.parametrize("step", [0.01, 0.3])
def test_what_is_lost_is_bounded_by_the_step(step: float) -> None:
    transform = BlockTransform.of(RUNS, step)
    sides = [(vectors(), vectors()) for _ in RUNS]
    packed = transform.pack(sides)
    assert packed is not None
    found = transform.unpack(memoryview(packed), TOKENS)
    most = NUMBERS * (0.6 * step) ** 2
    for own, back in zip(sides, found, strict=True):
        assert cost(own[0] - back[0]).max() < most
        assert cost(own[0] - back[0]).max() > 0


def test_no_step_makes_blocks_smaller_than_what_stands_beside_codes() -> None:
    with pytest.raises(TooFewNumbersError):
        BlockTransform.of_size(RUNS, [[(vectors(), vectors()) for _ in RUNS]], 1)


def test_numbers_like_no_others_take_more_bytes_and_come_back_as_near() -> None:
    transform = BlockTransform.of(RUNS, 0.1)
    sides = [(vectors(), vectors()) for _ in RUNS]
    usual = transform.pack(sides)
    sides[1][0][3] *= 1000
    packed = transform.pack(sides)
    assert usual is not None
    assert packed is not None
    assert len(packed) > len(usual)
    (_, (back, _)) = transform.unpack(memoryview(packed), TOKENS)
    assert back[3] == pytest.approx(sides[1][0][3], rel=1e-2, abs=0.5)


def test_what_is_no_number_is_not_coded() -> None:
    transform = BlockTransform.of(RUNS, 0.1)
    sides = [(vectors(), vectors()) for _ in RUNS]
    sides[1][1][0, 0] = np.inf
    assert transform.pack(sides) is None


def test_a_step_is_found_for_the_bytes_that_are_wanted() -> None:
    blocks = [[(vectors(), vectors()) for _ in RUNS] for _ in range(4)]
    for wanted in (1500, 700):
        transform = BlockTransform.of_size(RUNS, blocks, wanted)
        sizes = [len(transform.pack(each) or b"") for each in blocks]
        assert 0.9 * wanted < np.mean(sizes) <= wanted


def test_moments_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        SideTransform.fit(MOMENTS._replace(mean=MOMENTS.mean * np.nan))


def test_what_was_found_is_kept_whole_or_counts_as_absent(tmp_path: Path) -> None:
    path, found = tmp_path / "own" / "found.safetensors", FoundTransforms(RUNS, {"kvtc-4x": 0.25})
    assert FoundTransforms.load(path) is None
    found.save(path)
    back = FoundTransforms.load(path)
    assert back is not None
    assert (back.digest, back.steps, len(back.runs)) == (found.digest, {"kvtc-4x": 0.25}, 2)
    assert found.digest != FoundTransforms(RUNS, {"kvtc-4x": 0.5}).digest
    written = bytearray(path.read_bytes())
    written[-40] ^= 1
    path.write_bytes(written)
    assert FoundTransforms.load(path) is None
    path.write_bytes(b"nothing of the kind")
    assert FoundTransforms.load(path) is None


@pytest.mark.parametrize("rotated", [0, 2, SIZE // 2])
def test_positions_are_taken_off_and_put_on(rotated: int) -> None:
    angles = np.outer(np.arange(50), np.geomspace(1, 0.01, rotated)).astype(np.float32)
    rotary = Rotary(1.5 * np.cos(angles), 1.5 * np.sin(angles))
    own = vectors().reshape(TOKENS, HEADS, SIZE)
    turned = rotary.put_on(own, 20)
    assert rotary.take_off(turned, 20) == pytest.approx(own, abs=1e-4)
    assert turned[..., 2 * rotated :] == pytest.approx(own[..., 2 * rotated :])
    if rotated:
        assert np.abs(rotary.take_off(turned, 21) - own).max() > 0.1
