"""The cache as a library: no model, no arrays, only numpy installed.

    python examples/cache_alone.py

Three requests share a system prompt. The second and third find its blocks, one is forked, and a
pool that is too small forgets what nobody holds, tail first.
"""

from pagoda.cache import BlockTable, CacheManager, CacheSpec


def main() -> None:
    spec = CacheSpec.uniform(
        num_layers=30, num_kv_heads=3, head_size=64, dtype="bfloat16", block_size=16
    )
    print(f"a token takes {spec.bytes_per_token:,.0f} bytes, a block {spec.block_bytes:,}")

    cache = CacheManager(num_blocks=10, block_size=spec.block_size)
    system = list(range(1000, 1064))  # 64 tokens: 4 blocks
    tables = []
    for name, question in (("first", [1] * 20), ("second", [2] * 20), ("third", [3] * 20)):
        table = serve(cache, name, system + question)
        tables.append(table)
        if name != "second":
            cache.free(table)  # finished; its blocks can still be found
    second = tables[1]

    twin = cache.fork(second, num_tokens=84)
    copies = cache.reserve(twin, 84, 85)  # writes into the block that both hold: a private copy
    print(f"the fork shares {len(twin) - len(copies)} blocks and copies {len(copies)}")

    stats = cache.stats()
    print(
        f"{stats.prefix_hits} of {stats.prefix_queries} tokens came from the cache, "
        f"{stats.num_free_blocks} of {stats.num_blocks} blocks are free, "
        f"{stats.evictions} were evicted"
    )
    cache.free(twin)
    cache.free(second)
    cache.check_integrity()


def serve(cache: CacheManager, name: str, tokens: list[int]) -> BlockTable:
    """What an engine does for a prompt, without computing anything."""
    table = cache.open(cache_salt="examples")
    match = cache.match(table, tokens)
    cache.acquire(table, tokens, match)
    cache.reserve(table, match.num_tokens, len(tokens))
    # … here the model writes K and V of the tokens that were not cached into their slots …
    cache.commit(table, tokens, len(tokens))
    print(
        f"{name}: {match.num_tokens} of {len(tokens)} tokens cached, blocks {list(table.block_ids)}"
    )
    return table


if __name__ == "__main__":
    main()
