"""Chained hashes and the index over them."""

import hashlib
import struct

import pytest

import pagoda.cache.prefix as prefix_module
from pagoda.cache.prefix import BlockKey, PrefixIndex, block_key, root_hash


def test_the_hash_is_sha256_of_parent_and_tokens() -> None:
    root = root_hash(tenant="t")
    key = block_key(root, [1, 2, 70_000])
    assert key.hash == hashlib.sha256(root + struct.pack("<3I", 1, 2, 70_000)).digest()
    assert key.parent == root


def test_a_block_depends_on_everything_before_it() -> None:
    root = root_hash()
    first, other = block_key(root, [1, 2]), block_key(root, [1, 3])
    assert block_key(first.hash, [5, 6]).hash != block_key(other.hash, [5, 6]).hash


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"tenant": "a"}, {"tenant": "b"}),
        ({"tenant": "a"}, {"cache_salt": "a"}),
        ({"tenant": "ab", "cache_salt": "c"}, {"tenant": "a", "cache_salt": "bc"}),
        ({"tenant": "", "cache_salt": "a"}, {"tenant": "a", "cache_salt": ""}),
        ({"codec": "bfloat16"}, {"codec": "int8"}),
        ({"a": "bc"}, {"ab": "c"}),
    ],
)
def test_no_two_sets_of_extras_share_a_root(one: dict[str, str], other: dict[str, str]) -> None:
    assert root_hash(**one) != root_hash(**other)


def test_a_salt_may_be_any_text() -> None:
    assert root_hash(cache_salt="\ud800") != root_hash(cache_salt="é\0")


def test_only_one_block_is_published_under_a_hash() -> None:
    index = PrefixIndex(9)
    key = block_key(root_hash(), [1, 2])
    assert index.insert(key, 7)
    assert not index.insert(key, 8)
    assert index.find(key) == 7
    assert 7 in index
    assert 8 not in index
    index.remove(7)
    assert index.find(key) is None
    with pytest.raises(KeyError):
        index.remove(7)


def test_a_collision_of_hashes_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    class Constant:
        def digest(self) -> bytes:
            return b"x" * 32

    monkeypatch.setattr(prefix_module, "sha256", lambda data: Constant())
    index = PrefixIndex(9)
    mine, theirs = block_key(b"root", [1, 2]), block_key(b"root", [3, 4])
    assert mine.hash == theirs.hash
    index.insert(theirs, 0)
    assert index.find(mine) is None
    assert index.find(BlockKey(theirs.hash, b"another parent", theirs.tokens)) is None
    assert not index.insert(mine, 1)
    assert index.is_consistent()
