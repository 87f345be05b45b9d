"""A session as a file, for another machine.

    prefix                                                    | label     | record | frames
    magic version label  block  groups tokens blocks record   | of the    | sealed | of block 0,
                  bytes  size                        bytes    | namespace |        | of block 1 …
    8     2       4      4      4      4      4      4        |           |        |

The record is the session (`pagoda.engine.sessions.session`), sealed with everything before it, so
that no number is another's. A frame is `pagoda.tiers.frame`'s, with four bytes of its length before
it, sealed likewise, and bound to the tokens up to its block's end. Its name is that of nobody's
block: whose the session is, the file does not say, and whoever imports it computes own keys.

What a file says of itself is believed where it was authenticated, and before that only within what
can be at all, so that nothing large is allocated by it.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from pagoda.cache.origin import Origin
from pagoda.cache.prefix import block_key
from pagoda.engine.sessions.errors import SessionFileError
from pagoda.engine.sessions.session import Session, most_bytes, read_session
from pagoda.tiers.frame import FrameError, FrameFormat
from pagoda.tiers.names import BlockName
from pagoda.tiers.namespace import MAX_LABEL_BYTES, Fact, Namespace, parse_label
from pagoda.tiers.seal import SealError, TenantSeal
from pagoda.tiers.segment import Row
from pagoda.tiers.shelf import Payloads

VERSION = 1
MAGIC = b"PGDASESN"
_PREFIX = struct.Struct("<8sHIIIIII")
_LENGTH = struct.Struct("<I")
_NO_TENANT = "\0 session files"
"""Of whose key and names they are: no tenant is called so."""
_SHOWN = 60
"""Characters of a fact that people may want to read."""
_DIGEST = re.compile(r"\b[0-9a-f]{16,}\b")


class _Prefix(NamedTuple):
    magic: bytes
    version: int
    label_bytes: int
    block_size: int
    num_groups: int
    num_tokens: int
    num_blocks: int
    record_bytes: int


@dataclass(frozen=True, slots=True)
class SessionFile:
    """A file that was opened: its session is authentic, its frames are still to be read."""

    session: Session
    names: Sequence[Row]
    """Of its blocks."""
    frames_at: int
    """Where they begin, in bytes."""


class SessionFiles:
    """Writes and reads the files of one engine. Any thread may call it."""

    def __init__(
        self,
        namespace: Namespace,
        secret: bytes,
        *,
        block_bytes: int,
        block_size: int,
        num_groups: int,
        codec: str,
        max_tokens: int,
        max_blocks: int,
    ) -> None:
        """`secret`: of the house, which all servers have that read each other's. `max_tokens`: of
        the longest session. `max_blocks`: in all groups, that the pool holds."""
        self._namespace = namespace
        self._seal = TenantSeal(secret, _NO_TENANT)
        self._frame_format = FrameFormat(namespace.digest, block_bytes, self._seal)
        self._block_size = block_size
        self._num_groups = num_groups
        self._codec = codec
        self._max_tokens = max_tokens
        self._max_blocks = min(max_tokens // block_size, max_blocks)

    @property
    def max_bytes(self) -> int:
        """Of the longest file there can be."""
        head = _PREFIX.size + MAX_LABEL_BYTES + self._most_record_bytes
        return head + self._most_frame_bytes(self._max_blocks)

    def bytes_of(self, file: BinaryIO, num_bytes: int) -> int | None:
        """How many bytes a file has at most of which the first `num_bytes` have come; None where
        its record has not. Leaves it at its end. Raises `SessionFileError`."""
        try:
            _, prefix = self._prefix_of(file)
            if (
                prefix is None
                or num_bytes < _PREFIX.size + prefix.label_bytes + prefix.record_bytes
            ):
                return None
            opened = self.open(file, _NO_TENANT)
            return opened.frames_at + self._most_frame_bytes(len(opened.names))
        finally:
            file.seek(0, os.SEEK_END)

    # ---- writing -----------------------------------------------------------------------------

    def write(self, file: BinaryIO, session: Session, rows: Iterator[Payloads]) -> int:
        """Write a session and its leading blocks, as many as come; returns how many.

        `file` is empty, and can be written to anywhere.
        """
        told = session.to_bytes()
        record_bytes = len(told) + self._seal.extra_bytes
        label = self._namespace.label
        file.seek(_PREFIX.size + len(label) + record_bytes)
        num_blocks = 0
        for names, payloads in zip(self._names(session), rows, strict=False):
            for name, payload in zip(names, payloads, strict=True):
                frame = self._frame_format.encode(name, payload)
                file.write(_LENGTH.pack(len(frame)))
                file.write(frame)
            num_blocks += 1
        prefix = _Prefix(
            *(MAGIC, VERSION, len(label), self._block_size, self._num_groups),
            *(session.num_tokens, num_blocks, record_bytes),
        )
        head = _PREFIX.pack(*prefix) + label
        file.seek(0)
        file.write(head)
        file.write(self._seal.protect(head, told))
        file.seek(0, os.SEEK_END)
        return num_blocks

    # ---- reading -----------------------------------------------------------------------------

    def open(self, file: BinaryIO, tenant: str) -> SessionFile:
        """The session in a file, as one of this tenant. Raises `SessionFileError`."""
        packed, prefix = self._prefix_of(file)
        if prefix is None:
            raise _torn()
        label = _exactly(file, prefix.label_bytes)
        record = _exactly(file, prefix.record_bytes)
        try:
            told = self._seal.reveal(packed + label, record)
        except SealError:
            limit = "is sealed with another key than this server's kv_tier_key_file, or was changed"
            raise SessionFileError("seal", limit) from None
        self._require_own(label, prefix)
        session = read_session(tenant, bytes(told))
        if session is None or session.num_tokens != prefix.num_tokens:
            raise SessionFileError("record", "is of another version of Pagoda")
        names = self._names(session)[: prefix.num_blocks]
        return SessionFile(session, names, file.tell())

    def rows(self, file: BinaryIO, opened: SessionFile) -> Iterator[Payloads]:
        """The blocks of a file, one after the other, each opened and verified.

        Raises `SessionFileError`, for what follows the last block too.
        """
        file.seek(opened.frames_at)
        for number, names in enumerate(opened.names):
            yield tuple(self._payload(file, number, name) for name in names)
        if file.read(1):
            raise SessionFileError("length", "goes on behind its end")

    def _payload(self, file: BinaryIO, number: int, name: BlockName) -> bytes:
        (num_bytes,) = _LENGTH.unpack(_exactly(file, _LENGTH.size))
        if num_bytes > self._frame_format.max_bytes:
            limit = f"block {number} says that it has {num_bytes:,} bytes, more than one can have"
            raise SessionFileError("length", limit)
        frame = _exactly(file, num_bytes)
        try:
            return bytes(self._frame_format.decode(name, frame))
        except FrameError as error:
            limit = f"block {number} is not as it was written: {error.reason.value}"
            raise SessionFileError("block", limit) from None

    def _prefix_of(self, file: BinaryIO) -> tuple[bytes, _Prefix | None]:
        """A file's first bytes, and what they say; None: not all of them are there."""
        file.seek(0)
        packed = file.read(_PREFIX.size)
        self._require_magic(packed)
        if len(packed) < _PREFIX.size:
            return packed, None
        prefix = _Prefix(*_PREFIX.unpack(packed))
        self._require_possible(prefix)
        return packed, prefix

    def _require_magic(self, packed: bytes) -> None:
        if packed[: len(MAGIC)] != MAGIC[: max(len(packed), 1)]:
            raise SessionFileError("form", "is no session: `pagoda session export` makes one")

    def _require_possible(self, prefix: _Prefix) -> None:
        if prefix.version != VERSION:
            limit = f"is of version {prefix.version}, here {VERSION}"
            raise SessionFileError("version", limit)
        if prefix.num_tokens > self._max_tokens:
            limit = f"has {prefix.num_tokens:,} tokens, and here max_model_len is "
            raise SessionFileError("num_tokens", f"{limit}{self._max_tokens:,}")
        if prefix.label_bytes > MAX_LABEL_BYTES or prefix.record_bytes > self._most_record_bytes:
            raise SessionFileError("length", "says that its head is longer than one can be")

    def _require_own(self, label: bytes, prefix: _Prefix) -> None:
        """Its blocks can stand for those that would be computed here."""
        theirs = parse_label(label)
        if theirs is None:
            raise SessionFileError("namespace", "is of another version of Pagoda")
        differing = self._namespace.differing(theirs)
        if differing:
            told = [_difference(each, theirs.facts, self._namespace.facts) for each in differing]
            raise SessionFileError("namespace", f"is of another engine: {'; '.join(told)}")
        own = (self._block_size, self._num_groups)
        most = prefix.num_tokens // self._block_size
        if (prefix.block_size, prefix.num_groups) != own or prefix.num_blocks > most:
            raise SessionFileError("layout", "is of another engine: its blocks differ")
        if prefix.num_blocks > self._max_blocks:
            limit = f"has {prefix.num_blocks:,} blocks, and the cache here holds "
            raise SessionFileError("num_blocks", f"{limit}{self._max_blocks:,} of a session")

    def _names(self, session: Session) -> list[Row]:
        """Of all full blocks, as if they were nobody's."""
        parent, size = Origin(codec=self._codec, retention=session.retention).root(), 4
        step, rows = self._block_size * size, list[Row]()
        tokens = memoryview(session.tokens).cast("I")
        for start in range(0, len(session.tokens) // step * step, step):
            block = tokens[start // size : (start + step) // size].tolist()
            parent = block_key(parent, block).hash
            rows.append([BlockName(parent, group) for group in range(self._num_groups)])
        return rows

    def _most_frame_bytes(self, num_blocks: int) -> int:
        return num_blocks * self._num_groups * (_LENGTH.size + self._frame_format.max_bytes)

    @property
    def _most_record_bytes(self) -> int:
        return most_bytes(self._max_tokens) + self._seal.extra_bytes


def _exactly(file: BinaryIO, num_bytes: int) -> bytes:
    """Raises `SessionFileError` where there are not so many. Asks for no more than is there."""
    found = file.read(num_bytes)
    if len(found) < num_bytes:
        raise _torn()
    return found


def _torn() -> SessionFileError:
    return SessionFileError("torn", "ends too early: it was not copied whole")


def _difference(name: str, theirs: Mapping[str, Fact], ours: Mapping[str, Fact]) -> str:
    """In a few words: the parts that differ, but for digests, which tell people nothing."""
    told = [_readable(str(facts.get(name, "none"))) for facts in (theirs, ours)]
    own = [[part for part in parts if part not in told[1 - at]] for at, parts in enumerate(told)]
    if not any(own):
        return f"{name} differs"
    shown = [", ".join(parts)[:_SHOWN] or "without" for parts in own]
    return f"{name} {shown[0]}, here {shown[1]}"


def _readable(fact: str) -> list[str]:
    parts = (_DIGEST.sub("", part).strip() for part in fact.split(", "))
    return [part for part in parts if part]
