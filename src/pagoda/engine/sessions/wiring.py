"""What an engine can do with sessions, by its options."""

from __future__ import annotations

from collections.abc import Sequence

from pagoda.cache import CacheManager
from pagoda.engine.sessions.arriving import ArrivingSessions
from pagoda.engine.sessions.blocks import SessionBlocks
from pagoda.engine.sessions.file import SessionFiles
from pagoda.engine.sessions.session import most_bytes
from pagoda.engine.sessions.shelves import SessionShelves
from pagoda.engine.sessions.support import SessionSupport
from pagoda.storage.block_storage import BlockStorage
from pagoda.tiers.namespace import Namespace
from pagoda.tiers.shelf import Shelf


def sessions_of(
    cache: CacheManager,
    storage: BlockStorage,
    arriving: ArrivingSessions,
    *,
    max_tokens: int,
    shelves: Sequence[Shelf],
    namespace: Namespace | None,
    secret: bytes | None,
) -> SessionSupport:
    """`arriving`: what gives way to requests. `max_tokens`: of the longest sequence.
    `shelves`: of the tiers, if there are any. `namespace`: needed beside a `secret`, without which
    there are no files."""
    block_bytes = storage.spec.block_bytes
    moves = (storage.begin_export, storage.import_blocks)
    blocks = SessionBlocks(cache, *moves, arriving, block_bytes)
    kept = SessionShelves(shelves, block_bytes, most_bytes(max_tokens)) if shelves else None
    files = None
    if secret is not None and namespace is not None:
        files = SessionFiles(
            namespace,
            secret,
            block_bytes=block_bytes,
            block_size=cache.block_size,
            num_groups=blocks.num_groups,
            codec=storage.namespace,
            max_tokens=max_tokens,
            max_blocks=cache.stats().num_blocks // blocks.num_groups,
        )
    return SessionSupport(blocks, kept, files)
