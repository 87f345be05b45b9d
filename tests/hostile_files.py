"""Model files that a stranger could have made: crafted ones by name, and mutations of sound ones.

`Hostile.write(directory)` lays the files out and returns what `locate` is given. The crafted ones
are as large as limits allow where size is what they are about.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from checkpoints import Case, build_model
from gguf_files import model_keys, stored_tensors, tokenizer_keys
from pagoda.models.gguf_header import MOST_ENTRIES, MOST_HEADER_BYTES, MOST_NUMBERS, MOST_STRINGS
from pagoda.models.json_file import CONFIG_LIMITS, JSONLimits
from pagoda.models.stored_tensors import HEADER_LIMITS
from pagoda.models.tensor_files import INDEX_FILE, INDEX_LIMITS, SINGLE_FILE
from pagoda.models.tensor_names import MOST_TENSORS

CASE = Case("llama", {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1})
GGUF_FILE = "tiny.gguf"
STRING, ARRAY, UINT8, UINT32, FLOAT32 = 8, 9, 0, 4, 6


@dataclass(frozen=True)
class Hostile:
    """Files of one model."""

    name: str
    files: Mapping[str, bytes]

    @property
    def kind(self) -> str:
        """What `locate` takes it for."""
        return "gguf" if GGUF_FILE in self.files else "directory"

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.files.values()))

    def write(self, directory: Path) -> Path:
        """Write them, but for those that lie there already; the path of the model."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            path = directory / name
            if not path.is_file() or path.read_bytes() != data:
                path.write_bytes(data)
        return directory / GGUF_FILE if self.kind == "gguf" else directory


@dataclass(frozen=True)
class SoundGGUF:
    """A GGUF file that loads, as what it is written from."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]

    @classmethod
    def make(cls) -> SoundGGUF:
        model = build_model(CASE)
        keys = {f"llama.{key}": value for key, value in model_keys(model.config).items()}
        metadata = {"general.architecture": "llama", **keys, **tokenizer_keys()}
        return cls(metadata, stored_tensors(model))

    def encode(self, metadata: Mapping[str, Any] | None = None) -> bytes:
        """The file's bytes, perhaps with other metadata."""
        metadata = self.metadata if metadata is None else metadata
        entries = b"".join(_value(key, value) for key, value in metadata.items())
        listed, data = b"", b""
        for name, values in self.tensors.items():
            listed += tensor(list(values.shape[::-1]), 0, len(data), name)
            data += values.tobytes()
            data += bytes(-len(data) % 32)
        start = header(len(self.tensors), len(metadata)) + entries + listed
        return start + bytes(-len(start) % 32) + data


def sound_directory(directory: Path) -> Hostile:
    """A directory that loads, of two shards with an index."""
    build_model(CASE).save_pretrained(directory, max_shard_size="40KB")
    return Hostile(
        "sound directory", {file.name: file.read_bytes() for file in directory.iterdir()}
    )


# --- GGUF, written by hand


def header(num_tensors: int = 0, num_entries: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_entries)


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def tensor(dims: list[int], kind: int = 0, offset: int = 0, name: str | bytes = "t") -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def array(key: str, kind: int, length: int, items: bytes) -> bytes:
    return entry(key, ARRAY, struct.pack("<IQ", kind, length) + items)


_TYPES = {bool: (7, "?"), int: (11, "q"), float: (12, "d")}


def _value(key: str, value: Any) -> bytes:
    """An entry of the type that suits the value; what no type suits is text."""
    items = value if isinstance(value, list) and value else [value]
    kind, letter = _TYPES.get(type(items[0]), (STRING, ""))
    try:
        packed = [struct.pack(f"<{letter}", item) if letter else string(item) for item in items]
    except (struct.error, AttributeError, TypeError):
        return entry(key, STRING, string(str(value)))
    if items is value:
        return array(key, kind, len(items), b"".join(packed))
    return entry(key, kind, packed[0])


LLAMA = entry("general.architecture", STRING, string("llama"))
NEEDED = ("embedding_length", "feed_forward_length", "block_count", "attention.head_count")
MATRIX = tensor([32, 2], name="token_embd.weight")


def _with_tokens(tokens: list[str]) -> bytes:
    """A sound model whose tokens, of SentencePiece, are these."""
    sound = SoundGGUF.make()
    own = {"model": "llama", "tokens": tokens, "scores": [0.0] * len(tokens)}
    keys = {name: value for name, value in sound.metadata.items() if "tokenizer" not in name}
    return sound.encode({**keys, **{f"tokenizer.ggml.{name}": own[name] for name in own}})


def _with_list(key: str, kind: int, item: bytes, length: int) -> bytes:
    """A llama whose `key` is a long list."""
    lists = array(key, kind, length, item * length)
    numbers = [entry(f"llama.{name}", UINT32, struct.pack("<I", 32)) for name in NEEDED]
    entries = [LLAMA, lists, *(number for number in numbers if f"llama.{key}" not in str(number))]
    start = header(1, len(entries)) + b"".join(entries) + MATRIX
    return start + bytes(-len(start) % 32 + 256)


def _many_tensors(last: bytes) -> bytes:
    each = (tensor([8], offset=32 * n, name=f"t{n}") for n in range(MOST_TENSORS - 1))
    start = header(MOST_TENSORS) + b"".join(each) + last
    return start + bytes(-len(start) % 32 + 32 * MOST_TENSORS)


def crafted_gguf() -> Iterator[tuple[str, bytes]]:
    rest = bytes(4096)
    yield "no magic", b"PK\x03\x04" + rest
    yield "entries without end", header(num_entries=1 << 60) + rest
    yield "tensors without end", header(num_tensors=1 << 60) + rest
    yield "as many entries as 4,096 bytes hold", header(num_entries=4096 // 13) + rest
    yield "key without end", header(num_entries=1) + struct.pack("<Q", 1 << 62) + rest
    yield "key of nothing", header(num_entries=1) + entry("", UINT8, b"\0") + rest
    yield "key of a megabyte", header(num_entries=1) + entry("k" * 2**20, UINT8, b"\0") + rest
    yield "key with an escape", header(num_entries=1) + entry("k\x1b[2J", UINT8, b"\0") + rest
    yield "key that is no text", header(num_entries=1) + entry(b"\xff", UINT8, b"\0") + rest
    yield "key there twice", header(num_entries=2) + entry("k", UINT8, b"\0") * 2 + rest
    yield "value of an unknown type", header(num_entries=1) + entry("k", 99, b"") + rest
    yield "numbers without end", header(num_entries=1) + array("k", UINT32, 1 << 61, b"") + rest
    yield "strings without end", header(num_entries=1) + array("k", STRING, 1 << 61, b"") + rest
    yield "arrays in arrays", header(num_entries=1) + array("k", ARRAY, 1, b"") * 9999 + rest
    yield (
        "320 KB of dimensions",
        header(1) + string("t") + struct.pack("<I", 40_000) + bytes(320_000),
    )
    yield "dimensions without end", header(1) + string("t") + struct.pack("<I", 2**32 - 1) + rest
    yield "dimensions beyond 64 bits", header(1) + tensor([2**63] * 4) + rest
    yield "dimension of nothing", header(1) + tensor([0, 8]) + rest
    yield "tensor of an unknown type", header(1) + tensor([8], 999) + rest
    yield "tensor outside", header(1) + tensor([8], offset=2**40) + rest
    yield "tensor off its alignment", header(1) + tensor([8], offset=1) + rest
    yield "tensor there twice", header(2) + tensor([8]) + tensor([8], offset=32) + rest
    yield "tensors that overlap", header(2) + tensor([32]) + tensor([8], offset=32, name="u") + rest
    yield "tensor with a newline", header(1) + tensor([8], name="a\nb") + rest
    for value in (0, 3, 48):
        alignment = entry("general.alignment", UINT32, struct.pack("<I", value))
        yield f"alignment of {value}", header(1, 1) + alignment + tensor([8]) + rest
    not_a_number = entry("general.alignment", FLOAT32, struct.pack("<f", float("nan")))
    yield "alignment that is no number", header(1, 1) + not_a_number + tensor([8]) + rest
    listed = array("general.alignment", UINT8, MOST_NUMBERS, bytes(MOST_NUMBERS))
    yield "alignment that is a list", header(1, 1) + listed + tensor([8]) + rest
    architectures = array("general.architecture", UINT8, MOST_NUMBERS, bytes(MOST_NUMBERS))
    yield "architecture that is a list", header(0, 1) + architectures + rest
    yield (
        "architecture that is no text",
        header(0, 1) + entry("general.architecture", STRING, string(b"\xff")),
    )
    million = array("k", STRING, MOST_STRINGS, bytes(8 * MOST_STRINGS))
    yield "a million strings, then damage", header(0, 2) + million + entry("l", 99, b"")
    few = array("k", STRING, 9, bytes(8 * 9))
    others = array("l", STRING, MOST_STRINGS - 8, b"")
    yield "a million strings and one", header(0, 2) + few + others
    numbers = array("k", UINT8, MOST_NUMBERS, bytes(MOST_NUMBERS))
    yield "lists of a million numbers", header(0, 2) + numbers + array("l", UINT8, 2**20 + 1, b"")
    long = array("k", STRING, 1, string(bytes(MOST_HEADER_BYTES)))
    yield "metadata without end", header(0, 2) + long
    entries = b"".join(entry(f"k{n}", UINT8, b"\0") for n in range(MOST_ENTRIES - 1))
    yield "all entries, then damage", header(0, MOST_ENTRIES) + entries + entry("l", 99, b"")
    yield "all tensors, the last twice", _many_tensors(tensor([8], name="t0"))
    yield "all tensors, the last overlaps", _many_tensors(tensor([8], name="last"))
    yield (
        "all tensors, but no model",
        _many_tensors(tensor([8], offset=32 * MOST_TENSORS - 32, name="last")),
    )
    runs = [letter * length for letter in "abcdefgh" for length in range(1, 1023)]
    yield "tokens made of others at each place", _with_tokens(runs)
    yield (
        "a million heads",
        _with_list("llama.attention.head_count", UINT32, struct.pack("<I", 4), MOST_NUMBERS),
    )
    yield (
        "a million names of heads",
        _with_list("llama.attention.head_count", STRING, string("four"), MOST_STRINGS),
    )


# --- safetensors, indices and configs

PROMISED = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def safetensors(text: bytes, size_bytes: int = 16) -> bytes:
    return struct.pack("<Q", len(text)) + text + bytes(size_bytes)


def _nested(opening: bytes, closing: bytes, size_bytes: int) -> bytes:
    depth = size_bytes // len(opening + closing)
    return opening * depth + b"1" + closing * depth


def hostile_json(limits: JSONLimits) -> Iterator[tuple[str, bytes]]:
    """Objects that are too much, or as much as limits allow."""
    size_bytes, most = limits.most_bytes, limits.most_values
    yield "arrays in arrays", b'{"a":' + _nested(b"[", b"]", size_bytes - 9) + b"}"
    yield "900 arrays in arrays", b'{"a":' + _nested(b"[", b"]", 1800) + b"}"
    yield "objects in objects", _nested(b'{"a":', b"}", size_bytes - 9)
    yield "brackets that stay open", b"[" * size_bytes
    yield "empty lists", b'{"a":[' + b"[]," * (size_bytes // 3 - 9) + b"[]]}"
    yield "empty objects", b'{"a":[' + b"{}," * (size_bytes // 3 - 9) + b"{}]}"
    number = b"1" * 4000
    numbers = b",".join([number] * (size_bytes // 4001 - 9))
    yield "numbers of 4,000 digits", b'{"a":[' + numbers + b"]}"
    yield "a number of all digits", b'{"a":' + b"1" * (size_bytes - 9) + b"}"
    yield "names", b"{" + b",".join(b'"%06d":1' % n for n in range(most - 1)) + b"}"
    yield "short texts", b'{"a":[' + b",".join(b'"%06d"' % n for n in range(most - 9)) + b"]}"
    yield "names of lists", b"{" + b",".join(b'"%06d":[]' % n for n in range(most // 2 - 9)) + b"}"
    yield "long names", _named(b'"%s":"%s"', size_bytes, most)
    wide = min(size_bytes, limits.most_wide_bytes)
    yield "wide names", _named('"🙂%s":"🙂%s"'.encode(), wide, most)
    yield "wide text", b'{"a":"' + "🙂".encode() + b"a" * (wide - 19) + b'"}'
    yield "text with an escape", b'{"a":"' + b"a" * (wide - 29) + b'\\ud83d\\ude42"}'
    yield "too much wide text", b'{"a":"' + "🙂".encode() + b"a" * wide + b'"}'
    yield "no text", b"\xff" * 99
    yield "not a number", b'{"a":NaN'
    yield "a list", b"[1]"
    yield "too many bytes", b'{"a":"' + b"a" * size_bytes + b'"}'


def _named(form: bytes, size_bytes: int, most_values: int) -> bytes:
    """As many names and texts as may be, each as long as the size then lets it be."""
    count = min(most_values - 9, size_bytes // (len(form) + 10))
    digits = (size_bytes // count - len(form) + 3) // 2
    return b"{" + b",".join(form % ((b"%0*d" % (digits, n),) * 2) for n in range(count)) + b"}"


def _entries(changes: Mapping[str, Any]) -> bytes:
    return json.dumps({"a": {**PROMISED, **changes}}).encode()


def crafted_headers() -> Iterator[tuple[str, bytes]]:
    yield "nothing", b""
    yield "header beyond the file", struct.pack("<Q", 2**63) + bytes(99)
    yield "header of gigabytes", struct.pack("<Q", HEADER_LIMITS.most_bytes + 1) + bytes(2**23)
    for name, text in hostile_json(HEADER_LIMITS):
        yield f"header of {name}", safetensors(text)
    shapes: dict[str, Any] = {
        "a float": [2.0, 2], "negative": [-2, -2], "true": [True, 4], "text": "22", "nothing": None,
        "long": [1] * 9, "larger than 64 bits": [2**64, 2**64], "in a list": [[2], 2],
    }  # fmt: skip
    for name, shape in shapes.items():
        yield f"shape that is {name}", safetensors(_entries({"shape": shape}))
    offsets: dict[str, Any] = {
        "backwards": [16, 0], "outside": [16, 32], "three": [0, 8, 16], "floats": [0.0, 16.0],
        "negative": [-16, 0], "too few": [0, 8], "none": None, "true": [False, 16],
    }  # fmt: skip
    for name, pair in offsets.items():
        yield f"offsets that are {name}", safetensors(_entries({"data_offsets": pair}))
    for dtype in ("F33", 4, None, ["F32"], "f32"):
        yield f"dtype {dtype!r}", safetensors(_entries({"dtype": dtype}))
    overlapping = {"a": PROMISED, "b": PROMISED}
    yield "tensors that overlap", safetensors(json.dumps(overlapping).encode())
    apart = {"a": PROMISED, "b": {**PROMISED, "data_offsets": [32, 48]}}
    yield "tensors apart", safetensors(json.dumps(apart).encode(), 48)
    yield "bytes of nobody", safetensors(_entries({}), 999)
    twice = f'{{"a": {json.dumps(PROMISED)}, "a": {json.dumps(PROMISED)}}}'
    yield "tensor there twice", safetensors(twice.encode())
    yield "name with an escape", safetensors(json.dumps({"\x1b[2J": PROMISED}).encode())
    yield "name that is no text", safetensors(b'{"\\ud800":' + json.dumps(PROMISED).encode() + b"}")
    yield "name of a megabyte", safetensors(json.dumps({"n" * 2**20: PROMISED}).encode())
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    many = {f"t{n}": empty for n in range(MOST_TENSORS - 1)} | {"last": PROMISED}
    yield "all tensors, but no model", safetensors(json.dumps(many).encode())
    yield "all tensors, then damage", safetensors(json.dumps(many | {"z": 1}).encode())


def crafted_indices() -> Iterator[tuple[str, bytes]]:
    for name in (
        "../outside.safetensors", "/etc/passwd", "../outside.bin", "a/../../b.safetensors", "",
        "model.bin", "nul\0.safetensors", "new\nline.safetensors", "C:\\x.safetensors", ".", 3,
        None, ["model.safetensors"], "n" * 9999 + ".safetensors",
    ):  # fmt: skip
        index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": name}}
        yield f"index to {name!s:.30}", json.dumps(index).encode()
    for weight_map in (None, [], {}, 1, "a"):
        yield f"index of {weight_map!r}", json.dumps({"weight_map": weight_map}).encode()
    files = {f"t{n}": f"{n}.safetensors" for n in range(10_000)}
    yield "index of 10,000 files", json.dumps({"weight_map": files}).encode()
    for name, text in hostile_json(INDEX_LIMITS):
        yield f"index of {name}", text


def crafted(sound: Hostile) -> Iterator[Hostile]:
    """All that are crafted; `sound` is the directory that others are put into."""
    config = {"config.json": sound.files["config.json"]}
    for name, data in crafted_gguf():
        yield Hostile(f"GGUF: {name}", {GGUF_FILE: data})
    for name, data in crafted_headers():
        yield Hostile(f"safetensors: {name}", {**config, SINGLE_FILE: data})
    sharded = {name: data for name, data in sound.files.items() if name != SINGLE_FILE}
    for name, data in crafted_indices():
        yield Hostile(f"index: {name}", {**sharded, INDEX_FILE: data})
    for name, data in hostile_json(CONFIG_LIMITS):
        yield Hostile(f"config: {name}", {"config.json": data})


# --- mutations

_NUMBERS = (0, 1, 2**7, 2**8 - 1, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**63, 2**64 - 1)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 2**31, 2**64, 10**30, 0.5, -1.0, 1e308, float("nan"), "", "x",
    "../x", [], [1], [None], {}, {"a": 1}, [[[]]], ["x"] * 300,
)  # fmt: skip


def mutated(gguf: SoundGGUF, directory: Hostile, seed: int) -> Iterator[Hostile]:
    """Endless mutations of the two models, drawn from the seed."""
    chance = random.Random(seed)
    gguf_bytes = gguf.encode()
    for number in itertools.count():
        kind = chance.randrange(4)
        if kind == 0:
            yield Hostile(f"{number}: bytes", {GGUF_FILE: _change_bytes(chance, gguf_bytes)})
        elif kind == 1:
            metadata = copy.deepcopy(dict(gguf.metadata))
            for _ in range(chance.randint(1, 3)):
                _change_value(chance, metadata)
            yield Hostile(f"{number}: metadata", {GGUF_FILE: gguf.encode(metadata)})
        else:
            name = chance.choice(sorted(directory.files))
            changed = _changed(chance, name, directory.files[name])
            yield Hostile(f"{number}: {name}", {**directory.files, name: changed})


def _changed(chance: random.Random, name: str, data: bytes) -> bytes:
    if name.endswith(".json"):
        return _change_json(chance, data)
    return (_change_header if chance.random() < 0.6 else _change_bytes)(chance, data)


def _change_bytes(chance: random.Random, data: bytes) -> bytes:
    """Bytes and numbers overwritten, most of them near the beginning; pieces lost or repeated."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        reach = chance.choice((64, 1024, len(changed)))
        at = chance.randrange(max(1, min(reach, len(changed))))
        kind = chance.randrange(5)
        if kind == 0:
            changed[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            changed[at : at + 4] = struct.pack("<I", chance.choice(_NUMBERS) % 2**32)
        elif kind == 2:
            changed[at : at + 8] = struct.pack("<Q", chance.choice(_NUMBERS))
        elif kind == 3:
            del changed[at : at + chance.choice((1, 8, 100, len(changed)))]
        else:
            changed[at:at] = changed[at : at + chance.choice((1, 8, 100))]
    return bytes(changed)


def _change_json(chance: random.Random, data: bytes) -> bytes:
    if chance.random() < 0.2:
        return _change_bytes(chance, data)
    value = json.loads(data)
    for _ in range(chance.randint(1, 3)):
        _change_value(chance, value)
    return json.dumps(value).encode()


def _change_header(chance: random.Random, data: bytes) -> bytes:
    """The header's JSON changed, its length right again."""
    [length] = struct.unpack_from("<Q", data)
    text = _change_json(chance, data[8 : 8 + length])
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def _change_value(chance: random.Random, value: Any) -> None:
    """One value of an object, or of one inside it: changed, lost or renamed."""
    while True:
        places = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not places:
            return
        place = chance.choice(places)
        inner = value[place]
        if not isinstance(inner, dict | list) or not inner or chance.random() < 0.3:
            break
        value = inner
    kind = chance.randrange(4)
    if kind == 0:
        del value[place]
    elif kind == 1 and isinstance(value, dict):
        value[f"{place}x"] = value.pop(place)
    else:
        value[place] = chance.choice(_VALUES)
