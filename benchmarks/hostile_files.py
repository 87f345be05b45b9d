"""How long files of strangers take to be refused, and how much memory that takes.

    python benchmarks/hostile_files.py [--mutated 1000] [--seed 14] [--shown 12]

Every file of tests/hostile_files.py that is crafted, and that many mutations of sound ones, are
opened as an engine opens a model. Time is the processor's, the best of three; memory is the peak of
what Python and NumPy allocate, measured in a run of its own. Prints the slowest, the largest, and
one JSON line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from hostile_files import Hostile, SoundGGUF, crafted, mutated, sound_directory
from pagoda.errors import ModelError
from pagoda.models.load import load_spec, load_weights
from pagoda.models.locate import locate
from pagoda.models.tokenizer import Tokenizer

REPEAT = 3
MIB = 2**20


@dataclass(frozen=True)
class Refusal:
    """What one file took."""

    name: str
    seconds: float
    peak_bytes: int
    said: str | None
    """None: it loads."""


def opened(model: Path) -> str | None:
    """How the model is refused; None where it loads."""
    try:
        files = locate(str(model))
        load_weights(files, load_spec(files), "float32")
        if files.kind == "gguf":
            Tokenizer(files)
    except ModelError as error:
        return str(error)
    return None


def measured(hostiles: Iterable[Hostile], directory: Path) -> list[Refusal]:
    """What each of them takes."""
    found = []
    for hostile in hostiles:
        model = hostile.write(directory / "model")
        times = []
        for _ in range(REPEAT):
            start = time.process_time()
            said = opened(model)
            times.append(time.process_time() - start)
        tracemalloc.start()
        opened(model)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        found.append(Refusal(hostile.name, min(times), peak_bytes, said))
        shutil.rmtree(directory / "model")
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutated", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--shown", type=int, default=12)
    given = parser.parse_args()
    logging.getLogger("pagoda").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        sound = sound_directory(Path(name) / "sound")
        mutations = mutated(SoundGGUF.make(), sound, given.seed)
        hostiles = itertools.chain(crafted(sound), itertools.islice(mutations, given.mutated))
        found = measured(hostiles, Path(name))
    refused = [refusal for refusal in found if refusal.said is not None]
    orders = {"slowest": lambda one: -one.seconds, "largest": lambda one: -one.peak_bytes}
    for order, key in orders.items():
        print(f"the {order} of {len(refused)} that are refused ({len(found)} tried)")
        for one in sorted(refused, key=key)[: given.shown]:
            figures = f"{one.seconds * 1e3:7.1f} ms {one.peak_bytes / MIB:7.1f} MiB"
            print(f"  {figures}  {one.name:48.48} {one.said:.90}")
    worst = {
        "tried": len(found),
        "refused": len(refused),
        "worst_ms": round(max(one.seconds for one in refused) * 1e3, 1),
        "worst_mib": round(max(one.peak_bytes for one in refused) / MIB, 1),
    }
    print(json.dumps(worst))


if __name__ == "__main__":
    main()
