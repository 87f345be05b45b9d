"""Frames come back as they went, or not at all."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pagoda.errors import InvalidOptionError
from pagoda.tiers.compression import (
    NO_COMPRESSION,
    Compression,
    CompressionError,
    Method,
    from_planes,
    to_planes,
)
from pagoda.tiers.frame import FrameError, FrameFormat, Rejection, check_body, inspect
from pagoda.tiers.key_file import read_secret, write_new_secret
from pagoda.tiers.names import BlockName, digest_of, is_frame_name, namespace_of
from pagoda.tiers.namespace import (
    MAX_LABEL_BYTES,
    Namespace,
    is_label,
    label_name_of,
    read_label,
)
from pagoda.tiers.seal import Checksum, Seal, TenantSeal, new_secret, parse_secret

SECRET = bytes(range(32))
ZSTD = Compression(Method.ZSTD, 2)
NAMESPACE, OTHER_NAMESPACE = bytes([1]) * 32, bytes([2]) * 32
BLOCK, OTHER_BLOCK = BlockName(bytes([3]) * 32, 1), BlockName(bytes([4]) * 32, 1)
SEALS: dict[str, Seal] = {"plain": Checksum(), "sealed": TenantSeal(SECRET, "a")}
PAYLOAD_BYTES = 2000
NUM_HEADER, NUM_CHECKSUM = 94, 16
BODY_LENGTH, PAYLOAD_LENGTH, VERSION = slice(22, 30), slice(14, 22), slice(4, 6)
"""Where a header has them."""


def payload_of(number: int, num_bytes: int = PAYLOAD_BYTES) -> bytes:
    """Bfloat16 numbers of a normal distribution: something of them can be compressed."""
    numbers = np.random.default_rng(number).standard_normal(num_bytes // 2, np.float32)
    return (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes()


PAYLOAD = payload_of(0)
FORMATS = {
    f"{name}{' zstd' if compression is ZSTD else ''}": FrameFormat(
        NAMESPACE, PAYLOAD_BYTES, seal, compression
    )
    for name, seal in SEALS.items()
    for compression in (NO_COMPRESSION, ZSTD)
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_frame_comes_back_as_it_went(name: str) -> None:
    form = FORMATS[name]
    frame = form.encode(BLOCK, np.frombuffer(PAYLOAD, np.uint8).data)
    assert len(frame) <= form.max_bytes
    assert (len(frame) < form.max_bytes) == (form.compression is ZSTD)
    for given_as in (frame, bytearray(frame), memoryview(frame)):
        assert bytes(form.decode(BLOCK, given_as)) == PAYLOAD
    header = inspect(form.name(BLOCK), frame)
    assert (header.group, header.payload_bytes, header.namespace) == (1, PAYLOAD_BYTES, NAMESPACE)
    assert header.compression == form.compression
    check_body(frame, form.seal, PAYLOAD_BYTES)
    noise = random.Random(0).randbytes(PAYLOAD_BYTES)
    assert len(form.encode(BLOCK, noise)) == form.max_bytes  # compressing would make it longer
    assert bytes(form.decode(BLOCK, form.encode(BLOCK, noise))) == noise


def test_threads_share_a_format() -> None:
    form = replace(FORMATS["sealed zstd"], payload_bytes=100 * PAYLOAD_BYTES)

    def work(number: int) -> bool:
        block, payload = BlockName(bytes([number]) * 32, 0), 100 * payload_of(number)
        frames = [form.encode(block, payload) for _ in range(20)]
        return all(bytes(form.decode(block, frame)) == payload for frame in frames)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(8)))


def again(frame: bytes) -> bytes:
    """With the checksum that it should have: forged, not damaged."""
    return frame[:-NUM_CHECKSUM] + xxhash.xxh3_128_digest(frame[:-NUM_CHECKSUM])


def written(frame: bytes, place: slice, number: int) -> bytes:
    size = place.stop - place.start
    return frame[: place.start] + number.to_bytes(size, "little") + frame[place.stop :]


def flip(frame: bytes, chance: random.Random) -> tuple[bytes, set[Rejection]]:
    at = chance.randrange(len(frame))
    flipped = frame[:at] + bytes([frame[at] ^ 1 << chance.randrange(8)]) + frame[at + 1 :]
    if at < VERSION.start:
        return flipped, {Rejection.TORN}
    if at < VERSION.stop:
        return flipped, {Rejection.VERSION}
    if BODY_LENGTH.start <= at < BODY_LENGTH.stop:
        return flipped, {Rejection.TORN, Rejection.LENGTH}
    return flipped, {Rejection.CHECKSUM}


def truncate(frame: bytes, chance: random.Random) -> tuple[bytes, set[Rejection]]:
    return frame[: chance.randrange(len(frame))], {Rejection.TORN}


def blank(frame: bytes, chance: random.Random) -> tuple[bytes, set[Rejection]]:
    """A tail of zeros, as a disk leaves it that lost its power; or nothing but zeros."""
    first = chance.choice([0, chance.randrange(NUM_HEADER + 8, len(frame) - NUM_CHECKSUM)])
    reason = Rejection.CHECKSUM if first else Rejection.TORN
    return frame[:first] + bytes(len(frame) - first), {reason}


def lengthen(frame: bytes, chance: random.Random) -> tuple[bytes, set[Rejection]]:
    return frame + chance.randbytes(chance.randrange(1, 99)), {Rejection.LENGTH}


def lie_of_length(frame: bytes, chance: random.Random) -> tuple[bytes, set[Rejection]]:
    length = chance.choice([0, PAYLOAD_BYTES - 1, PAYLOAD_BYTES + 1, 2**40, 2**64 - 1])
    return again(written(frame, PAYLOAD_LENGTH, length)), {Rejection.LENGTH}


def other_version(frame: bytes, chance: random.Random) -> tuple[bytes, set[Rejection]]:
    version = chance.choice([0, 2, 3, 65535])
    return again(written(frame, VERSION, version)), {Rejection.VERSION}


DAMAGES = (flip, truncate, blank, lengthen, lie_of_length, other_version)


def swapped_bodies(form: FrameFormat) -> tuple[bytes, set[Rejection]]:
    """This block's header, another one's body; the checksum of neither."""
    frame, other = form.encode(BLOCK, PAYLOAD), form.encode(OTHER_BLOCK, payload_of(1))
    reasons = {Rejection.CHECKSUM}
    if len(other) != len(frame):
        reasons = {Rejection.TORN, Rejection.LENGTH}
    return frame[:NUM_HEADER] + other[NUM_HEADER:], reasons


def other_block(form: FrameFormat) -> tuple[bytes, set[Rejection]]:
    return form.encode(OTHER_BLOCK, PAYLOAD), {Rejection.HASH}


def other_group(form: FrameFormat) -> tuple[bytes, set[Rejection]]:
    return form.encode(BLOCK._replace(group=0), PAYLOAD), {Rejection.GROUP}


def other_model(form: FrameFormat) -> tuple[bytes, set[Rejection]]:
    other = replace(form, namespace=OTHER_NAMESPACE)
    return other.encode(BLOCK, PAYLOAD), {Rejection.NAMESPACE}


def other_tenant(form: FrameFormat) -> tuple[bytes, set[Rejection]]:
    other = replace(form, seal=TenantSeal(SECRET, "b"))
    return other.encode(BLOCK, PAYLOAD), {Rejection.TENANT}


def other_secret(form: FrameFormat) -> tuple[bytes, set[Rejection]]:
    other = replace(form, seal=TenantSeal(bytes(32), "a"))
    return other.encode(BLOCK, PAYLOAD), {Rejection.TENANT}


def other_size(form: FrameFormat) -> tuple[bytes, set[Rejection]]:
    other = replace(form, payload_bytes=2 * PAYLOAD_BYTES)
    return other.encode(BLOCK, 2 * PAYLOAD), {Rejection.LENGTH}


OTHERS = (swapped_bodies, other_block, other_group, other_model, other_tenant, other_secret)
OTHERS = (*OTHERS, other_size)


def rejection(form: FrameFormat, frame: bytes) -> Rejection | None:
    try:
        form.decode(BLOCK, frame)
    except FrameError as error:
        return error.reason
    return None


def test_of_a_thousand_bad_frames_none_is_taken_and_all_are_told_apart() -> None:
    chance, told = random.Random(7), Counter[Rejection | None]()
    for form in FORMATS.values():
        frame = form.encode(BLOCK, PAYLOAD)
        cases = [make(form) for make in OTHERS]
        cases += [DAMAGES[number % len(DAMAGES)](frame, chance) for number in range(244)]
        for bad, reasons in cases:
            found = rejection(form, bad)
            assert found in reasons, (found, reasons)
            told[found] += 1
    assert told.total() > 1000
    assert set(told) == set(Rejection) - {Rejection.FORM}  # none of these has one


def test_a_forged_frame_passes_no_seal() -> None:
    """Checksums can be made by anybody; what is sealed cannot."""
    sealed = FORMATS["sealed"]
    frame, other = sealed.encode(BLOCK, PAYLOAD), sealed.encode(OTHER_BLOCK, payload_of(1))
    plain = replace(sealed, seal=Checksum())
    forged: dict[str, Callable[[], bytes]] = {
        "a bit of the body": lambda: again(frame[:200] + b"?" + frame[201:]),
        "a bit of the header": lambda: again(written(frame, slice(8, 9), 2)),
        "another's body": lambda: again(frame[:NUM_HEADER] + other[NUM_HEADER:]),
        "no seal": lambda: plain.encode(BLOCK, PAYLOAD),
        "no seal, under the sealed name": lambda: again(
            frame[:NUM_HEADER] + PAYLOAD + bytes(28 + NUM_CHECKSUM)
        ),
    }
    for name, make in forged.items():
        assert rejection(sealed, make()) is Rejection.TENANT, name
    assert rejection(plain, frame) is Rejection.TENANT


def test_names_say_nothing_without_the_key() -> None:
    plain, sealed = FORMATS["plain"], FORMATS["sealed"]
    forms = [plain, sealed, replace(sealed, seal=TenantSeal(SECRET, "b"))]
    forms += [replace(form, namespace=OTHER_NAMESPACE) for form in forms]
    blocks = [BLOCK, OTHER_BLOCK, BLOCK._replace(group=2)]
    names = [form.name(block) for form in forms for block in blocks]
    assert len(set(names)) == len(names)
    assert all(map(is_frame_name, names))
    assert {namespace_of(name) for name in names} == {"01" * 8, "02" * 8}
    assert not any(is_frame_name(name) for name in ("", names[0][:-1], names[0].upper(), "a" * 81))
    for form in forms:
        frame = form.encode(BLOCK, PAYLOAD)
        assert BLOCK.block_hash not in frame
        assert digest_of(form.name(BLOCK)) in frame
        assert form.name(BLOCK) == replace(form, compression=ZSTD).name(BLOCK)
    assert sealed.encode(BLOCK, PAYLOAD) != sealed.encode(BLOCK, PAYLOAD)  # a fresh nonce
    assert PAYLOAD[:16] not in sealed.encode(BLOCK, PAYLOAD)


def test_a_frame_under_another_name_is_found_by_its_look_alone() -> None:
    form = FORMATS["sealed"]
    frame = form.encode(BLOCK, PAYLOAD)
    for name, reason in (
        (form.name(OTHER_BLOCK), Rejection.HASH),
        (replace(form, namespace=OTHER_NAMESPACE).name(BLOCK), Rejection.NAMESPACE),
    ):
        with pytest.raises(FrameError) as caught:
            inspect(name, frame)
        assert caught.value.reason is reason


def test_lengths_that_lie_cost_no_memory() -> None:
    """Zstd's own header claims gigabytes here, and really has megabytes of zeros."""
    form, bomb_bytes = FORMATS["plain zstd"], 16 * 2**20
    bomb = zstandard.ZstdCompressor().compress(bytes(bomb_bytes))
    frame = form.encode(BLOCK, PAYLOAD)
    head = written(frame, BODY_LENGTH, len(bomb))[:NUM_HEADER]
    frames = [again(head + bomb + bytes(NUM_CHECKSUM))]
    claimed = written(head, PAYLOAD_LENGTH, bomb_bytes)
    frames.append(again(claimed + bomb + bytes(NUM_CHECKSUM)))
    rough = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(PAYLOAD_BYTES))
    unsized = written(head, BODY_LENGTH, len(rough)) + rough
    frames.append(again(unsized + bytes(NUM_CHECKSUM)))
    tracemalloc.start()
    assert [rejection(form, frame) for frame in frames] == [Rejection.LENGTH] * 3
    with pytest.raises(FrameError):
        check_body(frames[1], Checksum(), PAYLOAD_BYTES)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2**20


@given(st.binary(max_size=200), st.integers(1, 8))
def test_planes_come_back(data: bytes, item_bytes: int) -> None:
    planes = bytes(to_planes(data, item_bytes))
    assert bytes(from_planes(planes, item_bytes)) == data
    num_items = len(data) // item_bytes
    assert planes[:num_items] == data[: num_items * item_bytes : item_bytes]
    compression, body = Compression(Method.ZSTD, item_bytes).compress(data)
    assert bytes(compression.decompress(body, len(data))) == data
    with pytest.raises(CompressionError):
        compression.decompress(body, len(data) + 1)


def test_a_third_of_bfloat16_numbers_is_saved() -> None:
    """Of zstd's levels, those below 1 leave literals uncoded, and save a fifth."""
    payload = payload_of(0, 2**20)
    assert len(ZSTD.compress(payload)[1]) < 0.7 * len(payload)


FACTS = Namespace({"weights": "ab12", "dtype": "bfloat16", "block_size": 16, "is_exact": True})


def test_a_namespace_says_in_what_it_differs() -> None:
    same = Namespace(dict(reversed(FACTS.facts.items())))
    assert (same.digest, same.differing(FACTS)) == (FACTS.digest, ())
    other = Namespace({**FACTS.facts, "dtype": "float16", "block_size": 32, "codec": "int8"})
    assert other.digest != FACTS.digest
    assert FACTS.differing(other) == other.differing(FACTS) == ("block_size", "codec", "dtype")
    one, true = Namespace({"is_exact": 1}), Namespace({"is_exact": True})
    assert (one.digest == true.digest, one.differing(true)) == (False, ("is_exact",))


def test_a_label_tells_the_facts_and_cannot_lie() -> None:
    name, label = FACTS.label_name, FACTS.label
    assert is_frame_name(name)
    assert is_label(name)
    assert name == label_name_of(FACTS.short)
    assert not is_label(FORMATS["plain"].name(BLOCK))
    assert read_label(name, label) == FACTS
    named = Namespace(FACTS.facts, "a model")
    assert (named.digest, named == FACTS, named.label == label) == (FACTS.digest, True, False)
    found = read_label(name, named.label)
    assert found is not None
    assert found.model_name == "a model"
    assert read_label(Namespace({}).label_name, label) is None, "another's"
    lies = [json.dumps(FACTS.facts).encode(), b'{"facts":{}}', b'{"facts":7,"model":""}']
    lies += [b"", label[:-1], label + b" ", b"[1]", b"\xff", b"9" * 999, bytes(MAX_LABEL_BYTES + 1)]
    assert [read_label(name, lie) for lie in lies] == [None] * len(lies)


def test_keys() -> None:
    secret = new_secret()
    assert secret != new_secret()
    assert parse_secret("key", f"{secret}\n".encode()) == bytes.fromhex(secret)
    assert parse_secret("key", SECRET) == SECRET
    half = secret[:32].encode()
    for wrong in (
        b"",
        SECRET[:-1],
        secret[:-1].encode(),
        b"z" * 64,
        b"\xff" * 64,
        half,
        half.upper(),
    ):
        with pytest.raises(InvalidOptionError) as caught:
            parse_secret("key", wrong)
        assert str(caught.value) == f"key='{len(wrong)} bytes': a key is 32 bytes, or 64 hex digits"


def test_a_key_that_others_may_read_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = tmp_path / "key"
    write_new_secret("key", key)
    for mode, is_told in ((0o600, False), (0o400, False), (0o640, True), (0o604, True)):
        key.chmod(mode)
        caplog.clear()
        read_secret("key", key)
        assert [str(key) in each.getMessage() for each in caplog.records] == [True] * is_told
        assert key.read_text().strip() not in caplog.text
