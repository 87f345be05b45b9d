"""What a contiguous KV cache wastes and a paged one does not.

    python examples/fragmentation.py [--slots 2048] [--block-size 16] [--tokens 50 40 30]

A contiguous cache has to reserve slots for the longest output a sequence might have. A paged one
reserves a block when the one before is full, so a sequence wastes at most block_size - 1 slots.
"""

import argparse
from dataclasses import dataclass

from pagoda.cache import CacheManager, num_blocks_for


@dataclass(frozen=True)
class Usage:
    """Slots taken from the cache, and slots that hold a token."""

    reserved: int
    used: int

    @property
    def waste(self) -> float:
        return 1 - self.used / self.reserved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, default=2048)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--tokens", type=int, nargs="+", default=[50, 40, 30])
    args = parser.parse_args()
    for name, usage in (
        ("contiguous", contiguous(args.slots, args.tokens)),
        ("paged", paged(args.slots, args.block_size, args.tokens)),
    ):
        print(
            f"{name:<11} {usage.used:>5} of {usage.reserved:>5} reserved slots used, "
            f"{usage.waste:6.1%} wasted"
        )


def contiguous(num_slots: int, lengths: list[int]) -> Usage:
    """Every sequence reserves an equal share of the slots for its whole life."""
    return Usage(reserved=num_slots, used=sum(lengths))


def paged(num_slots: int, block_size: int, lengths: list[int]) -> Usage:
    """The same sequences grow token by token in Pagoda's cache; measured at their end."""
    cache = CacheManager(num_slots // block_size, block_size)
    tables = [cache.open() for _ in lengths]
    for step in range(max(lengths)):
        for table, length in zip(tables, lengths, strict=True):
            if step < length:
                cache.reserve(table, step, step + 1)
    for table, length in zip(tables, lengths, strict=True):
        assert len(table) == num_blocks_for(length, block_size)
    return Usage(reserved=sum(map(len, tables)) * block_size, used=sum(lengths))


if __name__ == "__main__":
    main()
