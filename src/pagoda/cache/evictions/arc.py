"""A list of what was used once and one of what was used more often, and a share that adapts."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator

from pagoda.cache.evictions.content_key import content_key
from pagoda.cache.record import BlockRecord


class ARC:
    """Adaptive replacement: two lists, each least recently used first.

        once    ── hit ──> often        as large as `target`, and the rest is for the other
        ghosts of `once`:  used again, so `once` should have been larger
        ghosts of `often`: used again, so `often` should have been larger

    Ghosts are known by what they held. Of each kind there are at most as many as blocks; in the
    paper both kinds and what is held are two pools together, so that ghosts of `once` are soon
    forgotten where little is used twice. A sequence takes its blocks before it tells what they
    hold: a ghost that is found moves the target for the next eviction, not for its own. Megiddo,
    Modha: ARC: a self-tuning, low overhead replacement cache, FAST 2003.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._once: OrderedDict[int, None] = OrderedDict()
        self._often: OrderedDict[int, None] = OrderedDict()
        self._ghosts_of_once: OrderedDict[int, None] = OrderedDict()
        self._ghosts_of_often: OrderedDict[int, None] = OrderedDict()
        self._target = 0.0
        """Blocks that were used once and should be held."""
        self._keys = array("Q", bytes(8 * num_blocks))
        self._is_reused = bytearray(num_blocks)
        """Of each block: what it holds was used before, as far as is remembered."""

    def publish(self, block_id: int, record: BlockRecord) -> None:
        key = content_key(record)
        self._keys[block_id] = key
        self._is_reused[block_id] = self._was_ghost(key)

    def add(self, block_id: int) -> None:
        self._list_of(block_id)[block_id] = None

    def hit(self, block_id: int) -> None:
        del self._list_of(block_id)[block_id]
        self._is_reused[block_id] = True

    def renew(self, block_id: int) -> None:
        self._list_of(block_id).move_to_end(block_id)

    def forget(self, block_id: int) -> None:
        self._list_of(block_id).pop(block_id, None)
        self._is_reused[block_id] = False

    def evict(self) -> int:
        if self._once and (len(self._once) > self._target or not self._often):
            held, ghosts = self._once, self._ghosts_of_once
        else:
            held, ghosts = self._often, self._ghosts_of_often
        block_id, _ = held.popitem(last=False)
        ghosts[self._keys[block_id]] = None
        if len(ghosts) > self._num_blocks:
            ghosts.popitem(last=False)
        self._is_reused[block_id] = False
        return block_id

    def _was_ghost(self, key: int) -> bool:
        """What is published was given up a while ago, which moves the target."""
        once, often = self._ghosts_of_once, self._ghosts_of_often
        if key in once:
            step = max(1.0, len(often) / len(once))
            self._target = min(self._num_blocks, self._target + step)
            del once[key]
            return True
        if key in often:
            step = max(1.0, len(once) / len(often))
            self._target = max(0.0, self._target - step)
            del often[key]
            return True
        return False

    def _list_of(self, block_id: int) -> OrderedDict[int, None]:
        return self._often if self._is_reused[block_id] else self._once

    def __len__(self) -> int:
        return len(self._once) + len(self._often)

    def __iter__(self) -> Iterator[int]:
        """Those used once, then the others: which list gives one up depends on the target."""
        yield from self._once
        yield from self._often
