"""GGUF files in the types that stay as stored, made by llama.cpp's own quantiser.

    python benchmarks/stored_files.py OUT --peers-dir DIR [--types Q8_0 Q4_K_M ...]
        [--model FILE.gguf | --shape 1b]

Writes OUT/NAME-TYPE.gguf for each type: the matrices of a GGUF model, de-quantised, or random ones
of a shape, in that type; metadata and vectors as they are. Rows that the type's blocks do not
divide get the type that llama.cpp takes in its place; Q4_K_M and Q5_K_M mix types as it does. F32,
which is there for the asking, rounds nothing.
DIR/llamacpp holds llama.cpp (workers/llama_library.py says how it comes there).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quant_shape_to_byte_shape
from numpy.typing import NDArray
from stored_recipes import NAMES, PLAIN, Recipe

from pagoda.errors import ModelError
from pagoda.models.locate import locate

sys.path.append(str(Path(__file__).parent / "workers"))
import llama_library

SHAPES = {
    "small": (512, 1536, 4, 8, 2),  # blocks of 256 divide every row
    "1b": (2048, 8192, 16, 32, 8),
    "3b": (3072, 8192, 28, 24, 8),
    "8b": (4096, 14336, 32, 32, 8),
}
"""Hidden and intermediate size, layers, heads, KV heads."""
_OF_THE_FILE = ("general.architecture", "general.file_type")
_CHUNK_ROWS = 512

Values = NDArray[np.float32]


@dataclass(frozen=True)
class Tensor:
    """A tensor of the model that is quantised."""

    name: str
    shape: tuple[int, ...]
    """Row-major."""
    values: Callable[[], Values]


@dataclass(frozen=True)
class Source:
    """What files are made of."""

    name: str
    reader: gguf.GGUFReader
    """Whose metadata they have."""
    own: Mapping[str, int]
    """Of the metadata, what is another number."""
    tensors: tuple[Tensor, ...]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {tensor.name: tensor.shape for tensor in self.tensors}


def of_file(path: Path, name: str) -> Source:
    """A GGUF file, its weights de-quantised."""
    reader = gguf.GGUFReader(path)

    def tensor(each: gguf.ReaderTensor) -> Tensor:
        shape = tuple(int(size) for size in reversed(each.shape))
        return Tensor(
            each.name, shape, lambda: dequantize(each.data, each.tensor_type).reshape(shape)
        )

    return Source(name, reader, {}, tuple(tensor(each) for each in reader.tensors))


def of_shape(shape: str, vocabulary: Path) -> Source:
    """Random weights of a Llama, with the vocabulary of a file."""
    hidden, inner, layers, heads, kv_heads = SHAPES[shape]
    head = hidden // heads
    matrices = {
        "attn_q": (hidden, hidden), "attn_k": (kv_heads * head, hidden),
        "attn_v": (kv_heads * head, hidden), "attn_output": (hidden, hidden),
        "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner),
    }  # fmt: skip
    reader = gguf.GGUFReader(vocabulary)
    num_tokens = len(reader.fields["tokenizer.ggml.tokens"].data)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (num_tokens, hidden)}
    for layer in range(layers):
        shapes |= {f"blk.{layer}.{name}": size for name, size in matrices.items()}
        shapes |= {f"blk.{layer}.{name}_norm": (hidden,) for name in ("attn", "ffn")}
    shapes["output_norm"] = (hidden,)
    own = {
        "embedding_length": hidden, "feed_forward_length": inner, "block_count": layers,
        "attention.head_count": heads, "attention.head_count_kv": kv_heads,
        "rope.dimension_count": head, "context_length": 32768,
    }  # fmt: skip
    return Source(
        f"random-{shape}",
        reader,
        {f"llama.{key}": value for key, value in own.items()},
        tuple(_random(f"{name}.weight", size) for name, size in shapes.items()),
    )


def _random(name: str, shape: tuple[int, ...]) -> Tensor:
    def values() -> Values:
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        rng = np.random.default_rng(list(name.encode()))
        return rng.standard_normal(shape, np.float32) * np.float32(0.02)

    return Tensor(name, shape, values)


class Quantiser:
    """llama.cpp's, on all cores."""

    def __init__(self, library: CDLL) -> None:
        self._library = library
        self._pool = ThreadPoolExecutor(cpu_count())

    def rows(self, values: Values, kind: Type) -> NDArray[np.uint8]:
        """[rows, bytes of a row] of [rows, columns]."""
        values = np.ascontiguousarray(values)
        out = np.empty(quant_shape_to_byte_shape(values.shape, kind), np.uint8)

        def quantise(first: int) -> None:
            num_rows = min(_CHUNK_ROWS, len(values) - first)
            written = self._library.ggml_quantize_chunk(
                kind, values[first:].ctypes.data, out[first:].ctypes.data, 0, num_rows,
                values.shape[1], None,
            )  # fmt: skip
            assert written == num_rows * out.shape[1]

        list(self._pool.map(quantise, range(0, len(values), _CHUNK_ROWS)))
        return out


def write(path: Path, recipe: Recipe, source: Source, quantiser: Quantiser) -> None:
    """The file; it is there once it is whole."""
    unfinished = path.with_suffix(".part")
    architecture = source.reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(unfinished, architecture, use_temp_file=True)
    writer.add_file_type(recipe.file_type)
    _copy_metadata(writer, source)
    for tensor in source.tensors:
        kind = recipe.type_of(tensor.name, tensor.shape)
        values = tensor.values()
        if kind is Type.F32 or kind is Type.F16:
            writer.add_tensor(tensor.name, values.astype(kind.name.replace("F", "float")))
        else:
            writer.add_tensor(tensor.name, quantiser.rows(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(path)


def _copy_metadata(writer: gguf.GGUFWriter, source: Source) -> None:
    for key, field in source.reader.fields.items():
        if key.startswith("GGUF.") or key in _OF_THE_FILE or key in source.own:
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), field.types[0])
    for key, value in source.own.items():
        writer.add_uint32(key, value)


def main() -> None:
    args = arguments()
    try:
        library = llama_library.load(llama_library.find(args.peers_dir))
    except llama_library.LlamaError as error:
        sys.exit(str(error))
    try:
        files = locate(args.model)
    except ModelError as error:
        sys.exit(str(error))
    if files.kind != "gguf":
        sys.exit(f"{args.model} is no GGUF file")
    source = of_shape(args.shape, files.path) if args.shape else of_file(files.path, files.name)
    args.out.mkdir(parents=True, exist_ok=True)
    quantiser = Quantiser(library)
    for kind in args.types:
        path = args.out / f"{source.name}-{kind}.gguf"
        write(path, Recipe.of(kind, source.shapes), source, quantiser)
        print(f"{path}: {path.stat().st_size / 2**20:.0f} MiB", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--peers-dir", type=Path, required=True)
    parser.add_argument("--types", nargs="+", default=list(NAMES), choices=(*NAMES, PLAIN))
    parser.add_argument("--model", default=None, help="the default model without it")
    parser.add_argument("--shape", choices=SHAPES, help="random weights")
    return parser.parse_args()


if __name__ == "__main__":
    main()
